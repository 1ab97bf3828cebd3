//! SP3, hardware mapping: which model runs on which device (CascadeServe §4.4).
//!
//! Every needed model starts on every device, which carries the most load and seldom fits. Then replicas are pruned until it does:
//! always the one of highest utility,
//!
//! ```text
//! utility(r, d) = min(overallocated memory of d, memory freed by r) * (1 - u)
//! ```
//!
//! with `u` the highest utilisation after pruning over all ranges that use the replica's model (the paper's formula was lost; this
//! this one is monotonic in the same quantities). The last replica of a needed model is never pruned; one without which a range cannot be
//! carried only if nothing else is left to prune. Replicas that need not have been pruned, because a larger one was pruned later, are put back,
//! and errors of the greedy order are corrected by [rearranging](super::placement_repair); if a range still cannot be carried, that is the violation.
//!
//! A thousand devices with eight models are some seven thousand prunings out of thousands of candidates each. Three things
//! make that a fraction of a second. Devices that host the same are one group, and one candidate. Ranges with the same
//! cascade differ only in load, so the highest represents all. And the effect of pruning on `u` is read off the Hall bounds,
//! which change by a subtraction, instead of solving a program. Of a fleet above 64 devices, a 64th is pruned at a time, and
//! less only where that would be too much; up to 64 it is one replica at a time, as in the paper.

use std::collections::BTreeMap;

use super::balance::{Group, HallBounds};
use super::model_costs::Models;
use super::model_set::ModelSet;
use super::placement_repair::{join, rearrange};
use super::search::Cascade;
use super::violation::ViolationKind;
use crate::device::DeviceSpec;

/// A cascade at the highest load that it serves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    pub(super) cascade: &'a Cascade,
    /// Index of the range of load.
    pub(super) range: usize,
    /// Upper end of the range, requests/s.
    pub(super) qps: f64,
}

/// Why the needs cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unplaced {
    pub(super) range: usize,
    pub(super) model: usize,
    pub(super) kind: ViolationKind,
}

/// The devices, and their budget of prunings.
#[derive(Debug, Clone)]
pub(super) struct Fleet {
    kinds: Vec<Group>,
    /// Devices that are pruned at a time.
    pub(super) step: usize,
}

/// Steps that the devices are pruned in.
const STEPS: usize = 64;

impl Fleet {
    pub(super) fn new(devices: &[DeviceSpec]) -> Self {
        let mut kinds: BTreeMap<(u64, u64), Vec<usize>> = BTreeMap::new();
        for (index, device) in devices.iter().enumerate() {
            // Positive floats sort like their bits.
            kinds
                .entry((device.memory_bytes, device.speed.to_bits()))
                .or_default()
                .push(index);
        }
        let group = |((memory_bytes, speed), devices)| Group {
            speed: f64::from_bits(speed),
            memory_bytes,
            hosted: ModelSet::default(),
            devices,
        };
        Self {
            kinds: kinds.into_iter().map(group).collect(),
            step: devices.len().div_ceil(STEPS),
        }
    }

    pub(super) fn devices(&self) -> usize {
        self.kinds.iter().map(|kind| kind.devices.len()).sum()
    }

    /// Speed of all devices together.
    pub(super) fn speed(&self) -> f64 {
        self.kinds
            .iter()
            .map(|kind| kind.speed * kind.devices.len() as f64)
            .sum()
    }

    /// These models on every device, whether they fit or not.
    pub(super) fn everywhere(&self, models: ModelSet) -> Vec<Group> {
        let mut groups = self.kinds.clone();
        for group in &mut groups {
            group.hosted = models;
        }
        groups
    }

    fn largest(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.memory_bytes).max().unwrap_or(0)
    }
}

/// Number of replicas of a model.
pub(super) fn replicas(groups: &[Group], model: usize) -> usize {
    let hosts = groups.iter().filter(|group| group.hosted.contains(model));
    hosts.map(|group| group.devices.len()).sum()
}

/// Adds one replica of a model, on a device with room that hosts the least. `None` if no device has room.
pub(super) fn add_replica(groups: &[Group], models: &Models, model: usize) -> Option<Vec<Group>> {
    let fits = |group: &Group| models.memory_of(group.hosted.with(model)) <= group.memory_bytes;
    let with_room = groups.iter().enumerate().filter(|(_, group)| fits(group));
    let (index, _) = with_room.min_by_key(|(_, group)| {
        let hosted = models.memory_of(group.hosted);
        (group.hosted.iter().count(), hosted)
    })?;
    let mut groups = groups.to_vec();
    let group = groups.get_mut(index)?;
    let host = Group {
        hosted: group.hosted.with(model),
        devices: vec![group.devices.pop()?],
        ..*group
    };
    groups.retain(|group| !group.devices.is_empty());
    join(&mut groups, host);
    Some(groups)
}

/// Places the models that the needs contain, with at least the demanded number of replicas of each.
pub(super) fn place(
    fleet: &Fleet,
    models: &Models,
    needs: &[Need<'_>],
    at_least: &BTreeMap<usize, usize>,
) -> Result<Vec<Group>, Unplaced> {
    let groups = fleet.everywhere(wanted(needs));
    let mut pruning = Pruning {
        models,
        needs,
        at_least,
        bounds: bounds(models, needs, &groups),
        groups,
    };
    if let Some(unplaced) = pruning.overloaded() {
        return Err(unplaced);
    }
    let mut pruned = false;
    while pruning.overallocated() {
        pruning.step(fleet.step).ok_or_else(|| pruning.stuck(fleet))?;
        pruned = true;
    }
    if pruned {
        pruning.put_back();
        pruning.rearrange();
    }
    match pruning.overloaded() {
        Some(unplaced) => Err(unplaced),
        None => Ok(pruning.groups),
    }
}

fn bounds(models: &Models, needs: &[Need<'_>], groups: &[Group]) -> Vec<HallBounds> {
    let bounds = |need: &Need<'_>| HallBounds::new(need.cascade.demands(models, need.qps), groups);
    needs.iter().map(bounds).collect()
}

struct Pruning<'a> {
    models: &'a Models,
    needs: &'a [Need<'a>],
    at_least: &'a BTreeMap<usize, usize>,
    groups: Vec<Group>,
    /// Bounds of each need.
    bounds: Vec<HallBounds>,
}

impl Pruning<'_> {
    /// The need that the placement falls shortest of, if there is any.
    fn overloaded(&self) -> Option<Unplaced> {
        let loads = self
            .needs
            .iter()
            .zip(&self.bounds)
            .map(|(need, bounds)| (need, bounds.load()));
        let (need, load) = loads
            .filter(|(_, load)| load.utilisation > 1.0)
            .max_by(|(_, a), (_, b)| a.utilisation.total_cmp(&b.utilisation))?;
        Some(Unplaced {
            range: need.range,
            model: bottleneck(self.models, need.cascade, load.binding),
            kind: ViolationKind::Utilisation {
                utilisation: load.utilisation,
            },
        })
    }

    fn excess(&self, group: &Group) -> u64 {
        self.models
            .memory_of(group.hosted)
            .saturating_sub(group.memory_bytes)
    }

    fn overallocated(&self) -> bool {
        self.groups.iter().any(|group| self.excess(group) > 0)
    }

    /// Prunes the replicas of highest utility, on `step` devices of a group or as many less as it must be. If none has any, it
    /// prunes the one that costs least nonetheless: rearranging may repair that. `None` if all are last replicas.
    fn step(&mut self, step: usize) -> Option<()> {
        let mut step = step;
        loop {
            if let Some((group, model)) = self.best(step, 0.0) {
                self.prune(group, model, step);
                return Some(());
            }
            if step == 1 {
                break;
            }
            step /= 2;
        }
        let (group, model) = self.best(1, f64::NEG_INFINITY)?;
        self.prune(group, model, 1);
        Some(())
    }

    /// The replica of highest utility above a bound: its group and its model.
    fn best(&self, step: usize, above: f64) -> Option<(usize, usize)> {
        let mut best = None;
        let mut highest = above;
        for (index, group) in self.groups.iter().enumerate() {
            let excess = self.excess(group);
            for model in group.hosted.iter().filter(|_| excess > 0) {
                let utility = self.utility(group, model, excess, step);
                if utility > highest {
                    highest = utility;
                    best = Some((index, model));
                }
            }
        }
        best
    }

    /// Below 0 where a range could no longer be carried, infinitely so for a last replica.
    fn utility(&self, group: &Group, model: usize, excess: u64, step: usize) -> f64 {
        let pruned = step.min(group.devices.len());
        if replicas(&self.groups, model) - pruned < self.least(model) {
            return f64::NEG_INFINITY;
        }
        let speed = group.speed * pruned as f64;
        let after = |bounds: &HallBounds| bounds.utilisation_without(group.hosted, model, speed);
        let users = self.bounds.iter().filter(|bounds| bounds.asks_for(model));
        let utilisation = users.map(after).fold(0.0, f64::max);
        excess.min(self.models.memory_bytes(model)) as f64 * (1.0 - utilisation)
    }

    /// Returns the number of replicas that a model needs.
    fn least(&self, model: usize) -> usize {
        self.at_least.get(&model).copied().unwrap_or(1).max(1)
    }

    fn prune(&mut self, index: usize, model: usize, step: usize) {
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        let hosted = group.hosted;
        let kept = group.devices.len().saturating_sub(step);
        let moved = Group {
            hosted: hosted.without(model),
            devices: group.devices.split_off(kept),
            ..*group
        };
        let speed = moved.speed * moved.devices.len() as f64;
        for bounds in &mut self.bounds {
            bounds.prune(hosted, model, speed);
        }
        self.groups.retain(|group| !group.devices.is_empty());
        join(&mut self.groups, moved);
    }

    /// Adds the needed models that fit, largest first: a replica more never makes a device busier.
    fn put_back(&mut self) {
        let mut order: Vec<usize> = wanted(self.needs).iter().collect();
        order.sort_by_key(|model| std::cmp::Reverse(self.models.memory_bytes(*model)));
        for mut group in std::mem::take(&mut self.groups) {
            for model in &order {
                let more = group.hosted.with(*model);
                if self.models.memory_of(more) <= group.memory_bytes {
                    group.hosted = more;
                }
            }
            join(&mut self.groups, group);
        }
    }

    fn rearrange(&mut self) {
        let wanted = wanted(self.needs);
        let holds = |groups: &[Group]| {
            wanted
                .iter()
                .all(|model| replicas(groups, model) >= self.least(model))
        };
        let utilisation = |groups: &[Group]| {
            let busy = bounds(self.models, self.needs, groups);
            busy.iter()
                .map(|bounds| bounds.load().utilisation)
                .fold(0.0, f64::max)
        };
        let groups = rearrange(self.groups.clone(), wanted, self.models, holds, utilisation);
        self.bounds = bounds(self.models, self.needs, &groups);
        self.groups = groups;
    }

    /// The reason that the placement does not fit: some device is too small for models that have no other replica to spare. The largest of
    /// them is named, and the first range that uses it.
    fn stuck(&self, fleet: &Fleet) -> Unplaced {
        let crowded = self.groups.iter().find(|group| self.excess(group) > 0);
        let hosted = crowded.map_or_else(|| wanted(self.needs), |group| group.hosted);
        let largest = hosted
            .iter()
            .max_by_key(|model| self.models.memory_bytes(*model))
            .unwrap_or(0);
        let user = self
            .needs
            .iter()
            .find(|need| need.cascade.models().contains(largest));
        Unplaced {
            range: user.map_or(0, |need| need.range),
            model: largest,
            kind: ViolationKind::Memory {
                needed_bytes: self.models.memory_of(wanted(self.needs)),
                device_bytes: fleet.largest(),
            },
        }
    }
}

/// The models that some range uses.
fn wanted(needs: &[Need<'_>]) -> ModelSet {
    needs
        .iter()
        .fold(ModelSet::default(), |set, need| set.union(need.cascade.models()))
}

/// Returns the binding model with the most work.
pub(super) fn bottleneck(models: &Models, cascade: &Cascade, binding: ModelSet) -> usize {
    let demands = cascade.demands(models, 1.0);
    let bound = demands.iter().filter(|demand| binding.contains(demand.model));
    let most = bound.max_by(|a, b| a.work.total_cmp(&b.work)).or(demands.last());
    most.map_or(0, |demand| demand.model)
}

#[cfg(test)]
mod tests;
