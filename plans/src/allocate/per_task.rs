//! Proteus as a peer (§6.1): accuracy scaling of every task for itself.

use super::fewest::fewest;
use super::instances::instances;
use super::scale::{Scaled, Scaler};
use super::ways::Ways;
use super::{AllocateError, Allocation, Allocator, Instances, Planned, Scaling};
use crate::balance::Balancer;
use crate::pipeline::{PathAccuracy, Pipeline, Task, Tree};

/// A pipeline as so many apps of one task.
#[derive(Debug, Clone)]
pub(super) struct PerTask {
    /// By task.
    apps: Vec<App>,
}

#[derive(Debug, Clone)]
struct App {
    scaler: Box<Scaler>,
    /// Requests that arrive for one at the door, with the most accurate variants upstream.
    requests: f64,
    /// Workers that the most accurate variant keeps busy for one request/s at the door.
    work: f64,
}

impl PerTask {
    pub(super) fn new(pipeline: &Pipeline, tree: &Tree) -> Result<Self, AllocateError> {
        let depth = tree
            .sinks
            .iter()
            .map(|sink| tree.trail(*sink).len())
            .max()
            .unwrap_or(1) as u64;
        let slice_us = pipeline.slo_us.saturating_sub(depth * pipeline.hop_us) / depth;
        let apps = pipeline.tasks.iter().enumerate().map(|(place, task)| {
            let alone = alone(pipeline, task, slice_us);
            let only = Tree::of(&alone).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
            let most = task.most_accurate().map(|(variant, _)| variant);
            let best = Ways::new(&alone, &only, |_, variant| Some(variant) == most);
            let all = Ways::new(&alone, &only, |_, _| true)?;
            let requests = arriving(pipeline, tree, place);
            let one = fewest(best.as_ref().unwrap_or(&all), 1.0);
            Ok(App {
                work: requests * one.map_or(0.0, |(column, _)| column.load()),
                scaler: Box::new(Scaler::new(all)),
                requests,
            })
        });
        let apps = apps.collect::<Result<Vec<App>, AllocateError>>()?;
        Ok(Self { apps })
    }

    /// Workers of every app: one each, and the rest in proportion to the work.
    fn split(&self, workers: u32) -> Vec<u32> {
        let mut shares = vec![1_u32; self.apps.len()];
        for _ in self.apps.len()..workers as usize {
            let per_worker = |(place, share): (usize, &u32)| {
                let work = self.apps.get(place).map_or(0.0, |app| app.work);
                (place, work / f64::from(*share))
            };
            let shortest = shares.iter().enumerate().map(per_worker);
            let shortest = shortest.reduce(|best, next| if next.1 > best.1 { next } else { best });
            if let Some(share) = shortest.and_then(|(place, _)| shares.get_mut(place)) {
                *share += 1;
            }
        }
        shares
    }
}

/// A task as a pipeline of its own.
fn alone(pipeline: &Pipeline, task: &Task, slo_us: u64) -> Pipeline {
    let mut task = task.clone();
    task.children.clear();
    for variant in &mut task.variants {
        variant.branch_ratios.clear();
    }
    Pipeline {
        name: pipeline.name.clone(),
        slo_us,
        hop_us: 0,
        batches: pipeline.batches.clone(),
        tasks: vec![task],
        path_accuracy: PathAccuracy::Product,
    }
}

/// Requests that reach a task for one at the door, with the most accurate variants upstream.
fn arriving(pipeline: &Pipeline, tree: &Tree, task: usize) -> f64 {
    let trail = tree.trail(task);
    let steps = trail.windows(2).filter_map(|step| {
        let [from, to] = step else { return None };
        let (_, variant) = pipeline.tasks.get(*from)?.most_accurate()?;
        Some(variant.multiplicity(&pipeline.tasks.get(*to)?.name))
    });
    steps.product()
}

impl Allocator {
    /// Every task for itself, on all workers.
    pub(super) fn per_task(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        let tasks = self.pipeline.tasks.len();
        let Planned::PerTask(planned) = &self.planned else {
            return Err(AllocateError::TooFewWorkers { tasks, workers });
        };
        let mut all = Vec::new();
        let mut served = 1.0_f64;
        for ((app, share), task) in planned
            .apps
            .iter()
            .zip(planned.split(workers))
            .zip(&self.pipeline.tasks)
        {
            let demand = (demand_qps * app.requests).max(f64::MIN_POSITIVE);
            let scaled = app.scaler.served(demand, share, &self.options);
            let scaled = scaled.ok_or(AllocateError::TooFewWorkers { tasks, workers })?;
            served = served.min(scaled.demand / demand);
            all.extend(spread(task, &app.scaler.ways, &scaled, share));
        }
        let balanced = Balancer::new(&self.pipeline, &all).balance(demand_qps);
        let scaling = if served < 1.0 {
            Scaling::Overload
        } else {
            Scaling::Accuracy
        };
        Ok(Allocation {
            policy: self.options.policy,
            scaling,
            demand_qps,
            served_qps: demand_qps * served.min(1.0),
            workers,
            used: all.iter().map(|instances| instances.count).sum(),
            accuracy: balanced.accuracy,
            // Nothing is proven of a pipeline by looking at its tasks.
            bound: 1.0,
            instances: all,
            paths: Vec::new(),
            solver_fault: None,
        })
    }
}

/// The instances of one task, the workers that are left over given to the most accurate.
fn spread(task: &Task, ways: &Ways, scaled: &Scaled, share: u32) -> Vec<Instances> {
    let mut instances = instances(std::slice::from_ref(task), ways, scaled);
    let used: u32 = instances.iter().map(|instances| instances.count).sum();
    if let Some(first) = instances.first_mut() {
        first.count += share.saturating_sub(used);
    }
    instances
}
