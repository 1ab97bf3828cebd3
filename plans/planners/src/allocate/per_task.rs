//! Proteus as a peer (§6.1): accuracy scaling of every task for itself.

use super::instances::instances;
use super::scale::Scaler;
use super::scaled::Scaled;
use super::ways::Ways;
use super::{AllocateError, Allocation, Allocator, Instances, Planned, Scaling};
use crate::balance::Balancer;
use kaskade_policy::pipeline::{PathAccuracy, Pipeline, Task, Tree};

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
}

impl App {
    /// The share of a demand that so many workers can serve at all.
    fn served(&self, demand: f64, workers: u32) -> f64 {
        let needed = self.scaler.least_load().unwrap_or(f64::INFINITY) * demand;
        (f64::from(workers) / needed).min(1.0)
    }

    /// By how much accuracy one worker more would raise the sum over all of its requests, per second.
    fn gain(&self, demand: f64, workers: u32) -> f64 {
        let worth = |workers: u32| demand * self.scaler.worth_at_most(f64::from(workers) / demand);
        worth(workers + 1) - worth(workers)
    }
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
            let all = Ways::new(&alone, &only, |_, _| true)?;
            Ok(App {
                scaler: Box::new(Scaler::new(all)),
                requests: arriving(pipeline, tree, place),
            })
        });
        let apps = apps.collect::<Result<Vec<App>, AllocateError>>()?;
        Ok(Self { apps })
    }

    /// What arrives at every task when so many requests/s come to the door, with the most accurate variants upstream.
    fn arriving(&self, demand_qps: f64) -> Vec<f64> {
        self.apps.iter().map(|app| app.requests * demand_qps).collect()
    }

    /// Workers of every app, at least one each: first so that all demands are served, then where one more gains most accuracy over
    /// all requests. Accuracy by workers is concave but for rounding, so this is as good as any split.
    fn split(&self, demands: &[f64], workers: u32) -> Vec<u32> {
        let mut shares = vec![1_u32; self.apps.len()];
        for _ in self.apps.len()..workers as usize {
            let each = || self.apps.iter().zip(demands).zip(&shares).enumerate();
            let served = each().map(|(place, ((app, demand), share))| (place, app.served(*demand, *share)));
            let shortest = served.reduce(|best, next| if next.1 < best.1 { next } else { best });
            let gains = each().map(|(place, ((app, demand), share))| (place, app.gain(*demand, *share)));
            let best = gains.reduce(|best, next| if next.1 > best.1 { next } else { best });
            let next = shortest.filter(|(_, served)| *served < 1.0).or(best);
            if let Some(share) = next.and_then(|(place, _)| shares.get_mut(place)) {
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
    /// Allocates `workers` where so many requests/s arrive at each task, in the pipeline's order: what a system knows that counts at
    /// every task and sees no pipeline. Other policies than [`PerTask`](super::AllocationPolicy::PerTask) go by the root's.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_tasks(&self, arriving_qps: &[f64], workers: u32) -> Result<Allocation, AllocateError> {
        let tree = Tree::of(&self.pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        let root = tree.order.first().and_then(|root| arriving_qps.get(*root));
        let demand_qps = root.copied().unwrap_or(f64::NAN);
        let Planned::PerTask(planned) = &self.planned else {
            return self.allocate(demand_qps, workers);
        };
        self.check(demand_qps, workers)?;
        self.per_task(planned, demand_qps, arriving_qps, workers)
    }

    /// Every task for itself, on all workers, with the most accurate variants upstream.
    pub(super) fn per_task_of(
        &self,
        planned: &PerTask,
        demand_qps: f64,
        workers: u32,
    ) -> Result<Allocation, AllocateError> {
        self.per_task(planned, demand_qps, &planned.arriving(demand_qps), workers)
    }

    fn per_task(
        &self,
        planned: &PerTask,
        demand_qps: f64,
        arriving_qps: &[f64],
        workers: u32,
    ) -> Result<Allocation, AllocateError> {
        let tasks = self.pipeline.tasks.len();
        let at_least = |qps: &f64| qps.max(f64::MIN_POSITIVE);
        let demands: Vec<f64> = arriving_qps.iter().map(at_least).collect();
        let shares = planned.split(&demands, workers);
        let mut all = Vec::new();
        let mut served = 1.0_f64;
        let apps = planned.apps.iter().zip(&demands).zip(shares);
        for (((app, demand), share), task) in apps.zip(&self.pipeline.tasks) {
            let scaled = app.scaler.served(*demand, share, &self.options);
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
