//! Standby capacity: workers that the demand does not need hold fast variants, so that a rise is served before anything is loaded.
//!
//! Loki's hardware scaling leaves such workers empty, and its accuracy scaling plans every worker for the demand of the moment. Either
//! way a burst waits until models are loaded. Here an allocation for the demand on fewer workers is completed by the one that serves most on
//! the rest. The balancer fills the planned workers first, so the fast variants cost no accuracy until the demand exceeds the plan; routing
//! tables and backups lead to them at once when it does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Allocate, AllocateError, Allocation, Scaling};
use crate::balance::{Balancer, Instances};
use kaskade_policy::pipeline::Pipeline;

/// More than any cluster serves, requests/s: the allocation for it serves as much as it can.
const ANY_DEMAND_QPS: f64 = 1e9;

/// Maximum number of allocations that are compared for one plan.
const STEPS: u32 = 12;

/// Capacity that is kept ready for a rise of the demand.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StandbyOptions {
    /// Multiple of the demand to serve without loading a model. 1 keeps nothing ready, as in the paper.
    pub surge_factor: f64,
    /// Accuracy to give up for that at most, as a share of what the demand alone allows, in [0, 1). Workers that the demand does not need
    /// are used in any case and cost no accuracy.
    pub max_accuracy_loss: f64,
}

impl StandbyOptions {
    /// Keeps no capacity ready, as in the paper.
    pub const NONE: Self = Self {
        surge_factor: 1.0,
        max_accuracy_loss: 0.0,
    };
}

impl Default for StandbyOptions {
    fn default() -> Self {
        Self {
            surge_factor: 2.5,
            max_accuracy_loss: 0.01,
        }
    }
}

/// Allocates `workers` to `demand_qps` requests/s, and keeps capacity ready for a rise.
///
/// # Errors
/// As [`Allocate::allocate`].
pub(crate) fn allocate_with_standby(
    allocator: &dyn Allocate,
    pipeline: &Pipeline,
    (demand_qps, workers): (f64, u32),
    options: StandbyOptions,
) -> Result<Allocation, AllocateError> {
    let best = allocator.allocate(demand_qps, workers)?;
    if options.surge_factor <= 1.0 || best.scaling == Scaling::Overload {
        return Ok(best);
    }
    let least_accuracy = best.accuracy * (1.0 - options.max_accuracy_loss);
    let wanted_qps = demand_qps * options.surge_factor;
    let tasks = pipeline.tasks.len() as u32;
    let step = (best.used / STEPS).max(1);
    let (mut base, mut ready, mut capacity_qps) = (best.clone(), best, 0.0);
    loop {
        let used = base.used;
        let completed = complete(allocator, pipeline, base, workers)?;
        let found_qps = Balancer::new(pipeline, &completed.instances).capacity_qps();
        if found_qps > capacity_qps {
            (ready, capacity_qps) = (completed, found_qps);
        }
        let fewer = used.saturating_sub(step);
        if capacity_qps >= wanted_qps || fewer < tasks {
            return Ok(ready);
        }
        base = allocator.allocate(demand_qps, fewer)?;
        if base.scaling == Scaling::Overload || base.accuracy < least_accuracy {
            return Ok(ready);
        }
    }
}

/// Fills the workers that an allocation leaves empty with what serves most.
fn complete(
    allocator: &dyn Allocate,
    pipeline: &Pipeline,
    mut allocation: Allocation,
    workers: u32,
) -> Result<Allocation, AllocateError> {
    let mut left = workers.saturating_sub(allocation.used);
    if left as usize >= pipeline.tasks.len() {
        let most = allocator.allocate(ANY_DEMAND_QPS, left)?;
        for instances in most.instances {
            left = left.saturating_sub(instances.count);
            add(&mut allocation.instances, instances);
        }
    }
    for _ in 0..left {
        let Some(place) = shortest(pipeline, &allocation.instances) else {
            break;
        };
        if let Some(instances) = allocation.instances.get_mut(place) {
            instances.count += 1;
        }
    }
    let place = |instances: &Instances| {
        let (task, variant) = pipeline.variant(&instances.variant)?;
        let accuracy = pipeline.tasks.get(task)?.variants.get(variant)?.accuracy;
        Some((task, accuracy))
    };
    allocation.instances.sort_by(|one, other| {
        let ((task, accuracy), (others, its)) =
            (place(one).unwrap_or_default(), place(other).unwrap_or_default());
        task.cmp(&others).then(its.total_cmp(&accuracy))
    });
    allocation.used = allocation.instances.iter().map(|own| own.count).sum();
    allocation.workers = workers;
    Ok(allocation)
}

/// Adds workers of a variant for which nothing is planned. One that is there keeps its batch size, because a stage has one.
fn add(instances: &mut Vec<Instances>, more: Instances) {
    let same = instances.iter_mut().find(|own| own.variant == more.variant);
    match same {
        Some(own) => own.count += more.count,
        None => instances.push(Instances {
            load_qps: 0.0,
            ..more
        }),
    }
}

/// The instances to which one more worker adds most capacity, the fastest of several.
fn shortest(pipeline: &Pipeline, instances: &[Instances]) -> Option<usize> {
    let with_one_more = |place: usize| {
        let mut instances = instances.to_vec();
        let own = instances.get_mut(place)?;
        own.count += 1;
        let qps = own.qps;
        Some((Balancer::new(pipeline, &instances).capacity_qps(), qps))
    };
    let found = (0..instances.len()).filter_map(|place| Some((place, with_one_more(place)?)));
    let best = found.reduce(|best, next| {
        let order = next.1.0.total_cmp(&best.1.0).then(next.1.1.total_cmp(&best.1.1));
        if order.is_gt() { next } else { best }
    });
    best.map(|(place, _)| place)
}

#[cfg(test)]
mod tests;
