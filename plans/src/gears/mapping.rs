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
//! one grows and falls with what it says). The last replica of a needed model, or one without which a range cannot be carried,
//! has no utility. What was pruned too much, because something larger went later, is put back.
//!
//! A thousand devices with eight models are some seven thousand prunings out of thousands of candidates each. Three things
//! make that a fraction of a second. Devices that host the same are one group, and one candidate. Ranges with the same
//! cascade differ only in load, so the highest speaks for all. And what pruning does to `u` is read off the balancer's cuts,
//! which change by a subtraction, instead of solving a program. Of a fleet above 64 devices, a 64th is pruned at a time, and
//! less only where that would be too much; up to 64 it is one replica at a time, as in the paper.

use std::collections::BTreeMap;

use super::balance::{Cuts, Group};
use super::fault::FaultKind;
use super::models::{ModelSet, Models};
use super::options::DeviceSpec;
use super::search::Cascade;

/// A cascade at the highest load that it serves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need<'a> {
    pub(super) cascade: &'a Cascade,
    /// The range whose load that is.
    pub(super) range: usize,
    /// Its upper end, requests/s.
    pub(super) qps: f64,
}

/// Why the needs cannot be placed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Unplaced {
    pub(super) range: usize,
    pub(super) model: usize,
    pub(super) kind: FaultKind,
}

/// The devices, and how many prunings they are worth.
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

/// Places the models that the needs ask for, with at least the demanded number of replicas of each.
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
        cuts: cuts(models, needs, &groups),
        groups,
    };
    if let Some((need, model, utilisation)) = pruning.overloaded() {
        return Err(Unplaced {
            range: need.range,
            model,
            kind: FaultKind::Utilisation { utilisation },
        });
    }
    while pruning.overallocated() {
        pruning.step(fleet.step).ok_or_else(|| pruning.stuck(fleet))?;
    }
    pruning.put_back();
    Ok(pruning.groups)
}

fn cuts(models: &Models, needs: &[Need<'_>], groups: &[Group]) -> Vec<Cuts> {
    let cuts = |need: &Need<'_>| Cuts::new(need.cascade.demands(models, need.qps), groups);
    needs.iter().map(cuts).collect()
}

struct Pruning<'a> {
    models: &'a Models,
    needs: &'a [Need<'a>],
    at_least: &'a BTreeMap<usize, usize>,
    groups: Vec<Group>,
    /// By need.
    cuts: Vec<Cuts>,
}

impl<'a> Pruning<'a> {
    /// The need that the placement cannot carry by far, its bottleneck and its utilisation.
    fn overloaded(&self) -> Option<(Need<'a>, usize, f64)> {
        let loads = self
            .needs
            .iter()
            .zip(&self.cuts)
            .map(|(need, cuts)| (*need, cuts.load()));
        let (need, load) = loads
            .filter(|(_, load)| load.utilisation > 1.0)
            .max_by(|(_, a), (_, b)| a.utilisation.total_cmp(&b.utilisation))?;
        Some((
            need,
            bottleneck(self.models, need.cascade, load.binding),
            load.utilisation,
        ))
    }

    fn excess(&self, group: &Group) -> u64 {
        self.models
            .memory_of(group.hosted)
            .saturating_sub(group.memory_bytes)
    }

    fn overallocated(&self) -> bool {
        self.groups.iter().any(|group| self.excess(group) > 0)
    }

    /// Prunes the replicas of highest utility, on `step` devices of a group or as many less as it must be. `None` if none has
    /// any.
    fn step(&mut self, step: usize) -> Option<()> {
        let mut step = step;
        loop {
            if let Some((group, model)) = self.best(step) {
                self.prune(group, model, step);
                return Some(());
            }
            step = (step > 1).then_some(step / 2)?;
        }
    }

    fn best(&self, step: usize) -> Option<(usize, usize)> {
        let mut best = None;
        let mut highest = 0.0;
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

    fn utility(&self, group: &Group, model: usize, excess: u64, step: usize) -> f64 {
        let pruned = step.min(group.devices.len());
        let left = replicas(&self.groups, model) - pruned;
        if left < self.at_least.get(&model).copied().unwrap_or(1).max(1) {
            return f64::NEG_INFINITY;
        }
        let speed = group.speed * pruned as f64;
        let after = |cuts: &Cuts| cuts.utilisation_without(group.hosted, model, speed);
        let users = self.cuts.iter().filter(|cuts| cuts.asks_for(model));
        let utilisation = users.map(after).fold(0.0, f64::max);
        if utilisation > 1.0 {
            return f64::NEG_INFINITY;
        }
        excess.min(self.models.memory_bytes(model)) as f64 * (1.0 - utilisation)
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
        for cuts in &mut self.cuts {
            cuts.prune(hosted, model, speed);
        }
        self.groups.retain(|group| !group.devices.is_empty());
        self.join(moved);
    }

    /// Adds a group to its like.
    fn join(&mut self, moved: Group) {
        let like = |group: &&mut Group| {
            group.hosted == moved.hosted
                && group.memory_bytes == moved.memory_bytes
                && group.speed.to_bits() == moved.speed.to_bits()
        };
        match self.groups.iter_mut().find(like) {
            Some(group) => {
                group.devices.extend(moved.devices);
                group.devices.sort_unstable();
            }
            None => self.groups.push(moved),
        }
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
            self.join(group);
        }
    }

    /// What keeps the placement from fitting. If some device is too small because of models that have no other replica, the
    /// largest of them, whichever range uses it; else the model that binds the need nearest to its limit.
    fn stuck(&self, fleet: &Fleet) -> Unplaced {
        let wanted = wanted(self.needs);
        let kind = FaultKind::Memory {
            needed_bytes: self.models.memory_of(wanted),
            device_bytes: fleet.largest(),
        };
        let last_ones = |group: &&Group| {
            let last = |model| replicas(&self.groups, model) <= group.devices.len().min(1);
            self.excess(group) > 0 && group.hosted.iter().all(last)
        };
        if let Some(group) = self.groups.iter().find(last_ones) {
            let largest = group
                .hosted
                .iter()
                .max_by_key(|model| self.models.memory_bytes(*model))
                .unwrap_or(0);
            let user = self
                .needs
                .iter()
                .find(|need| need.cascade.models().contains(largest));
            return Unplaced {
                range: user.map_or(0, |need| need.range),
                model: largest,
                kind,
            };
        }
        let loads = self
            .needs
            .iter()
            .zip(&self.cuts)
            .map(|(need, cuts)| (need, cuts.load()));
        let busiest = loads.max_by(|(_, a), (_, b)| a.utilisation.total_cmp(&b.utilisation));
        Unplaced {
            range: busiest.map_or(0, |(need, _)| need.range),
            model: busiest.map_or(0, |(need, load)| {
                bottleneck(self.models, need.cascade, load.binding)
            }),
            kind,
        }
    }
}

/// The models that some range uses.
fn wanted(needs: &[Need<'_>]) -> ModelSet {
    needs
        .iter()
        .fold(ModelSet::default(), |set, need| set.union(need.cascade.models()))
}

/// Of the models that bind, the one that asks for most.
pub(super) fn bottleneck(models: &Models, cascade: &Cascade, binding: ModelSet) -> usize {
    let demands = cascade.demands(models, 1.0);
    let bound = demands.iter().filter(|demand| binding.contains(demand.model));
    let most = bound.max_by(|a, b| a.work.total_cmp(&b.work)).or(demands.last());
    most.map_or(0, |demand| demand.model)
}

#[cfg(test)]
#[path = "mapping_tests.rs"]
mod tests;
