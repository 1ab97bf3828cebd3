//! From flows to instances.

use super::flow;
use super::paths::Paths;
use super::scaled::{Scaled, needs};
use crate::balance::Instances;
use kaskade_policy::pipeline::Task;

/// By task in the order of `tasks`, which are those of the paths, the most accurate first.
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
