//! Load balancing (CascadeServe §4.4): which replica serves how much, so that the busiest device is as little busy as can be.
//!
//! The paper solves a linear program for whether a bound `u` on the utilisation can be met, repeatedly for smaller `u`. With `u` as a
//! variable one program is enough:
//!
//! ```text
//! minimise u,  sum of q_r over the replicas of m = QPS_m,  sum of t_r q_r over the replicas on d <= u
//! ```
//!
//! Devices of equal speed that host the same models are interchangeable, so they share one column: a thousand devices are a
//! handful of groups.
//!
//! Since a device's speed scales all its models alike, the least `u` is also known without a solver. It is the largest, over all
//! sets of models, of the work of the set divided by the speed of all devices that host any of it (Hall's condition; the
//! program's dual). That takes microseconds, names the binding models, and gives the effect of losing a replica, so
//! the placement evaluates it thousands of times; the program is solved only for the final shares.
//!
//! Many shares reach the same `u`, and some leave half of the devices idle. So the models that bind are balanced first, over the
//! devices that host them, and the rest over the rest in the same way.

use super::model_set::ModelSet;
use crate::lp::{LpError, Program, Relation, Variable};

/// Work of a model: `QPS_m t_m`, seconds of device time at speed 1 per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    pub(super) model: usize,
    pub(super) work: f64,
}

/// Interchangeable devices: of one kind, with the same models.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Speed relative to the device that was profiled.
    pub speed: f64,
    /// Memory of each for replicas, bytes.
    pub memory_bytes: u64,
    /// The models that each hosts.
    pub hosted: ModelSet,
    /// Indices of the devices, ascending.
    pub devices: Vec<usize>,
}

impl Group {
    fn capacity(&self) -> f64 {
        self.speed * self.devices.len() as f64
    }
}

/// Utilisation of a placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    /// The least possible utilisation of the busiest device; infinite where a model has no replica.
    pub(super) utilisation: f64,
    /// The models that determine it.
    pub(super) binding: ModelSet,
}

/// The condition that bounds the utilisation, for every set of demanded models: at most a few, see `max_stages`.
#[derive(Debug, Clone)]
pub(super) struct HallBounds {
    demands: Vec<Demand>,
    /// Work of each set of demands (one bit per demand).
    work: Vec<f64>,
    /// Total speed of the devices that host any of each set of demands.
    capacity: Vec<f64>,
}

impl HallBounds {
    pub(super) fn new(demands: Vec<Demand>, groups: &[Group]) -> Self {
        let sets = 1_usize << demands.len();
        let mut work = vec![0.0; sets];
        let mut capacity = vec![0.0; sets];
        for (set, work) in work.iter_mut().enumerate() {
            let chosen = demands
                .iter()
                .enumerate()
                .filter(|(place, _)| set >> place & 1 == 1);
            *work = chosen.map(|(_, demand)| demand.work).sum();
        }
        for group in groups {
            let hosted = local(&demands, group.hosted);
            for (set, capacity) in capacity.iter_mut().enumerate() {
                if set & hosted != 0 {
                    *capacity += group.capacity();
                }
            }
        }
        Self {
            demands,
            work,
            capacity,
        }
    }

    pub(super) fn asks_for(&self, model: usize) -> bool {
        self.demands.iter().any(|demand| demand.model == model)
    }

    /// Returns the utilisation of the placement. If several sets bind, the largest: it is their union.
    pub(super) fn load(&self) -> Load {
        let utilisation = self.highest(|_| 0.0);
        let binds = |set: &usize| {
            let (work, capacity) = self.cut(*set);
            work > 0.0 && ratio(work, capacity) >= utilisation * (1.0 - 1e-9)
        };
        let binding = (1..self.work.len())
            .filter(binds)
            .max_by_key(|set| set.count_ones())
            .unwrap_or(0);
        let chosen = self.demands.iter().enumerate();
        Load {
            utilisation,
            binding: chosen
                .filter(|(place, _)| binding >> place & 1 == 1)
                .map(|(_, demand)| demand.model)
                .collect(),
        }
    }

    /// The utilisation if devices of this much speed, which host `hosted`, lost `model`.
    pub(super) fn utilisation_without(&self, hosted: ModelSet, model: usize, speed: f64) -> f64 {
        let (all, only) = (
            local(&self.demands, hosted),
            local(&self.demands, ModelSet::default().with(model)),
        );
        self.highest(|set| {
            if set & all == only && only != 0 {
                speed
            } else {
                0.0
            }
        })
    }

    /// Takes `model` off devices of this much speed, which host `hosted`.
    pub(super) fn prune(&mut self, hosted: ModelSet, model: usize, speed: f64) {
        let (all, only) = (
            local(&self.demands, hosted),
            local(&self.demands, ModelSet::default().with(model)),
        );
        for (set, capacity) in self.capacity.iter_mut().enumerate() {
            if only != 0 && set & all == only {
                *capacity -= speed;
            }
        }
    }

    fn highest(&self, lost: impl Fn(usize) -> f64) -> f64 {
        (1..self.work.len())
            .map(|set| {
                let (work, capacity) = self.cut(set);
                ratio(work, capacity - lost(set))
            })
            .fold(0.0, f64::max)
    }

    fn cut(&self, set: usize) -> (f64, f64) {
        let at = |figures: &[f64]| figures.get(set).copied().unwrap_or(0.0);
        (at(&self.work), at(&self.capacity))
    }
}

/// Work over capacity; a capacity that remains from subtracting equal sums counts as 0.
fn ratio(work: f64, capacity: f64) -> f64 {
    match (work > 0.0, capacity > 1e-9) {
        (false, _) => 0.0,
        (true, true) => work / capacity,
        (true, false) => f64::INFINITY,
    }
}

/// A set of models as a set of demands.
fn local(demands: &[Demand], models: ModelSet) -> usize {
    let places = demands.iter().enumerate();
    places
        .filter(|(_, demand)| models.contains(demand.model))
        .fold(0, |set, (place, _)| set | 1 << place)
}

/// The shares of the demands over the groups.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Balance {
    /// Utilisation of the busiest device.
    pub(super) utilisation: f64,
    /// Shares of a model's requests that each device of a group gets: model, index of the group, share. No share is 0.
    pub(super) shares: Vec<(usize, usize, f64)>,
}

/// Shares below this are noise of the solver.
const NO_SHARE: f64 = 1e-9;

/// Balances the demands over the groups. The utilisation may exceed 1; the caller decides whether that is an error.
///
/// # Errors
/// [`LpError::Infeasible`] if a demanded model has no replica, another [`LpError`] if the solver failed.
pub(super) fn balance(demands: &[Demand], groups: &[Group]) -> Result<Balance, LpError> {
    let (mut left, idle): (Vec<Demand>, Vec<Demand>) = demands.iter().partition(|demand| demand.work > 0.0);
    let mut free: Vec<(usize, &Group)> = groups.iter().enumerate().collect();
    let mut balance = Balance::default();
    while !left.is_empty() {
        let open: Vec<Group> = free.iter().map(|(_, group)| (*group).clone()).collect();
        let load = HallBounds::new(left.clone(), &open).load();
        if load.utilisation.is_infinite() {
            return Err(LpError::Infeasible);
        }
        let (now, later): (Vec<Demand>, Vec<Demand>) = left
            .into_iter()
            .partition(|demand| load.binding.contains(demand.model));
        let wanted: ModelSet = now.iter().map(|demand| demand.model).collect();
        let hosts = |group: &Group| wanted.iter().any(|model| group.hosted.contains(model));
        let (taken, rest): (Vec<_>, Vec<_>) = free.into_iter().partition(|(_, group)| hosts(group));
        balance.shares.extend(solve(&now, &taken)?);
        balance.utilisation = balance.utilisation.max(load.utilisation);
        (left, free) = (later, rest);
    }
    for demand in idle {
        balance.shares.extend(everywhere(demand.model, groups)?);
    }
    Ok(balance)
}

/// A model without work weighs on nothing, and is spread over all its devices.
fn everywhere(model: usize, groups: &[Group]) -> Result<Vec<(usize, usize, f64)>, LpError> {
    let hosts = || {
        groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.hosted.contains(model))
    };
    let devices: usize = hosts().map(|(_, group)| group.devices.len()).sum();
    if devices == 0 {
        return Err(LpError::Infeasible);
    }
    Ok(hosts().map(|(at, _)| (model, at, 1.0 / devices as f64)).collect())
}

/// The linear program, in shares of a model's requests per group, so that its figures are near 1 whatever the units.
fn solve(demands: &[Demand], groups: &[(usize, &Group)]) -> Result<Vec<(usize, usize, f64)>, LpError> {
    let mut program = Program::new();
    let utilisation = program.variable(1.0);
    let total: f64 = demands.iter().map(|demand| demand.work).sum();
    let speed: f64 = groups.iter().map(|(_, group)| group.capacity()).sum();
    let columns: Vec<(usize, usize, Variable)> = demands
        .iter()
        .enumerate()
        .flat_map(|(place, demand)| {
            let hosts =
                move |(_, (_, group)): &(usize, &(usize, &Group))| group.hosted.contains(demand.model);
            groups
                .iter()
                .enumerate()
                .filter(hosts)
                .map(move |(group, _)| (place, group))
        })
        .map(|(place, group)| (place, group, program.variable(0.0)))
        .collect();
    for place in 0..demands.len() {
        let parts = columns.iter().filter(|(demand, ..)| *demand == place);
        program.constraint(parts.map(|(.., share)| (*share, 1.0)), Relation::Equal, 1.0);
    }
    for (place, (_, group)) in groups.iter().enumerate() {
        let work = |(demand, _, share): &(usize, usize, Variable)| {
            let work = demands.get(*demand).map_or(0.0, |demand| demand.work);
            (*share, if total > 0.0 { work / total } else { 0.0 })
        };
        let served = columns.iter().filter(|(_, at, _)| *at == place).map(work);
        let bound = (utilisation, -group.capacity() / speed);
        program.constraint(served.chain([bound]), Relation::AtMost, 0.0);
    }
    let solution = program.minimise()?;
    let share = |(demand, group, share): &(usize, usize, Variable)| {
        let ((index, group), demand) = (groups.get(*group)?, demands.get(*demand)?);
        let share = solution.value(*share);
        (share > NO_SHARE).then(|| (demand.model, *index, share / group.devices.len() as f64))
    };
    Ok(columns.iter().filter_map(share).collect())
}

#[cfg(test)]
mod tests;
