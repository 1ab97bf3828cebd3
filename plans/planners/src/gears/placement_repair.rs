//! Corrections of greedy pruning.
//!
//! Pruning is ordered by the memory freed and the load that remains possible, so of two models that limit nothing yet, the larger goes
//! first, on device after device, until it binds: the last devices that could have kept it have lost it by then. So
//! afterwards devices are moved from one set of models to another, whole groups down to single devices, as long as that
//! makes the busiest range less busy.

use super::balance::Group;
use super::model_costs::Models;
use super::model_set::ModelSet;

/// Most models for which all sets are examined.
const MAX_MODELS: usize = 10;

/// Most moves.
const MOVES: usize = 256;

/// Moves devices between sets of models as long as that lowers `utilisation`. Groups fit before and after, and `holds` stays true.
pub(super) fn rearrange(
    mut groups: Vec<Group>,
    wanted: ModelSet,
    models: &Models,
    holds: impl Fn(&[Group]) -> bool,
    utilisation: impl Fn(&[Group]) -> f64,
) -> Vec<Group> {
    if wanted.iter().count() > MAX_MODELS {
        return groups;
    }
    let mut lowest = utilisation(&groups);
    for _ in 0..MOVES {
        let mut best = None;
        for (index, group) in groups.iter().enumerate() {
            for set in fullest(wanted, models, group.memory_bytes) {
                for count in halves(group.devices.len()).filter(|_| set != group.hosted) {
                    let moved = moved(&groups, index, set, count);
                    let after = utilisation(&moved);
                    if after < lowest * (1.0 - 1e-6) && holds(&moved) {
                        lowest = after;
                        best = Some(moved);
                    }
                }
            }
        }
        match best {
            Some(better) => groups = better,
            None => break,
        }
    }
    groups
}

/// The sets that fit and to which nothing can be added.
fn fullest(wanted: ModelSet, models: &Models, memory_bytes: u64) -> Vec<ModelSet> {
    let all: Vec<usize> = wanted.iter().collect();
    let fits = |set: ModelSet| models.memory_of(set) <= memory_bytes;
    let full = |set: &ModelSet| {
        fits(*set)
            && all
                .iter()
                .all(|model| set.contains(*model) || !fits(set.with(*model)))
    };
    let set = |code: usize| -> ModelSet {
        let chosen = all.iter().enumerate().filter(|(place, _)| code >> place & 1 == 1);
        chosen.map(|(_, model)| *model).collect()
    };
    (0..1_usize << all.len()).map(set).filter(full).collect()
}

/// All, half, a quarter, ... down to one.
fn halves(count: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(count), |count| (*count > 1).then_some(count / 2))
}

/// The groups after some devices of one of them got another set.
fn moved(groups: &[Group], index: usize, set: ModelSet, count: usize) -> Vec<Group> {
    let mut moved = groups.to_vec();
    let Some(group) = moved.get_mut(index) else {
        return moved;
    };
    let kept = group.devices.len().saturating_sub(count);
    let changed = Group {
        hosted: set,
        devices: group.devices.split_off(kept),
        ..*group
    };
    moved.retain(|group| !group.devices.is_empty());
    join(&mut moved, changed);
    moved
}

/// Adds a group to its like, or as one more.
pub fn join(groups: &mut Vec<Group>, added: Group) {
    let like = |group: &&mut Group| {
        group.hosted == added.hosted
            && group.memory_bytes == added.memory_bytes
            && group.speed.to_bits() == added.speed.to_bits()
    };
    match groups.iter_mut().find(like) {
        Some(group) => {
            group.devices.extend(added.devices);
            group.devices.sort_unstable();
        }
        None => groups.push(added),
    }
}
