//! From flows to instances, and to the allocation that is handed out.

use std::collections::BTreeMap;

use super::flow::{self, Flow};
use super::round::whole;
use super::scale::Scaled;
use super::ways::Ways;
use super::{Allocation, Allocator, Instances, PathShare, Scaling};
use kaskade_policy::pipeline::Task;

/// Whole workers by configuration; whatever is used at all has one.
pub(super) fn needs(ways: &Ways, flows: &[Flow], demand: f64) -> BTreeMap<usize, f64> {
    let loads = flow::loads(ways, flows).into_iter();
    loads
        .filter(|(_, load)| *load > 0.0)
        .map(|(config, load)| (config, whole(load * demand).max(1.0)))
        .collect()
}

/// By task in the order of `tasks`, which are those that the ways speak of, the most accurate first.
pub(super) fn instances(tasks: &[Task], ways: &Ways, scaled: &Scaled) -> Vec<Instances> {
    let loads = flow::loads(ways, &scaled.flows);
    let mut instances: Vec<((usize, f64), Instances)> = needs(ways, &scaled.flows, scaled.demand)
        .into_iter()
        .filter_map(|(config, count)| {
            let load = loads.get(&config)? * scaled.demand;
            let config = ways.configs.get(config)?;
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

impl Allocator {
    /// An allocation in words.
    pub(super) fn stated(
        &self,
        ways: &Ways,
        scaling: Scaling,
        demand_qps: f64,
        workers: u32,
        scaled: Scaled,
    ) -> Allocation {
        let instances = instances(&self.pipeline.tasks, ways, &scaled);
        Allocation {
            policy: self.options.policy,
            scaling,
            demand_qps,
            served_qps: scaled.demand,
            workers,
            used: instances.iter().map(|instances| instances.count).sum(),
            accuracy: scaled.worth,
            bound: scaled.bound.max(scaled.worth),
            instances,
            paths: self.paths(ways, &scaled.flows),
            solver_fault: scaled.fault,
        }
    }

    fn paths(&self, ways: &Ways, flows: &[Flow]) -> Vec<PathShare> {
        // Ways that differ in batch sizes only are one path.
        let mut shares: BTreeMap<Vec<(usize, usize)>, f64> = BTreeMap::new();
        for flow in flows {
            *shares.entry(ways.variants(flow.sink, flow.way)).or_default() += flow.share;
        }
        let name = |(task, variant): &(usize, usize)| {
            let variant = self.pipeline.tasks.get(*task)?.variants.get(*variant)?;
            Some(variant.name.clone())
        };
        let path = |(places, share): (Vec<(usize, usize)>, f64)| PathShare {
            variants: places.iter().filter_map(name).collect(),
            share,
        };
        shares.into_iter().map(path).collect()
    }
}
