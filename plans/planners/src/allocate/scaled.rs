//! Flows that fit into the workers, and the whole workers that they need.

use std::collections::BTreeMap;

use super::flow::{self, Flow};
use super::paths::Paths;
use super::round::whole;
use crate::balance::Instances;
use crate::lp::LpError;
use kaskade_policy::pipeline::Task;

/// Flows that fit into the workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scaled {
    /// Requests/s at the root.
    pub(super) demand: f64,
    pub(super) flows: Vec<Flow>,
    pub(super) accuracy: f64,
    pub(super) bound: f64,
    pub(super) error: Option<LpError>,
}

/// Whole workers by configuration; whatever is used at all has one.
pub(super) fn needs(paths: &Paths, flows: &[Flow], demand: f64) -> BTreeMap<usize, f64> {
    let loads = flow::loads(paths, flows).into_iter();
    loads
        .filter(|(_, load)| *load > 0.0)
        .map(|(config, load)| (config, whole(load * demand).max(1.0)))
        .collect()
}

/// Returns the instances that serve the flows: by task in the order of `tasks`, which are those of the paths, the most accurate first.
pub(super) fn instances(tasks: &[Task], paths: &Paths, scaled: &Scaled) -> Vec<Instances> {
    let loads = flow::loads(paths, &scaled.flows);
    let mut instances: Vec<((usize, f64), Instances)> = needs(paths, &scaled.flows, scaled.demand)
        .into_iter()
        .filter_map(|(config, count)| {
            let load = loads.get(&config)? * scaled.demand;
            let config = paths.configs.get(config)?;
            let task = tasks.get(config.task)?;
            let variant = task.variants.get(config.variant)?;
            let own = Instances {
                task: task.name.clone(),
                variant: variant.name.clone(),
                batch: config.batch,
                count: count as u32,
                latency_us: config.us,
                qps: config.qps,
                load_qps: load * config.qps,
            };
            Some(((config.task, -variant.accuracy), own))
        })
        .collect();
    instances.sort_by(|(one, _), (other, _)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    instances.into_iter().map(|(_, instances)| instances).collect()
}
