//! Proteus as a peer (§6.1): accuracy scaling of every task independently.

use kaskade_planners::allocate::{
    Allocate, AllocateError, AllocateOptions, AllocateTasks, Allocation, AllocationPolicy, Allocator, Scaling,
};
use kaskade_planners::balance::{Balancer, Instances};
use kaskade_policy::pipeline::{PathAccuracy, Pipeline, Task, TaskTree};

/// Proteus: it scales accuracy and not hardware, and "handles each task in the pipeline independently".
///
/// It interprets the paper's set-up of Proteus (§6.1) as follows, since the paper states only that each task
/// is scaled independently, unaware of the others. Every task is a separate app. It gets an equal slice of the objective:
/// the objective without messages, divided by the tasks of the longest path. The workers are split as Proteus splits a
/// cluster among apps: so that all demands are served, and then for the highest mean accuracy over the requests of all apps, whatever
/// the importance of their requests to each other. Its demand is what arrives there: counted
/// ([`AllocateTasks`]), or with the most accurate variants upstream if it was not counted, because Proteus does not see how other
/// variants would multiply it. All workers are always in use.
#[derive(Debug, Clone)]
pub struct PerTask {
    pipeline: Pipeline,
    options: AllocateOptions,
    root: usize,
    /// Apps, one per task.
    apps: Vec<App>,
}

#[derive(Debug, Clone)]
struct App {
    allocator: Allocator,
    /// Requests that arrive for one at the root, with the most accurate variants upstream.
    requests: f64,
}

impl App {
    /// The share of a demand that a number of workers can serve.
    fn served(&self, demand: f64, workers: u32) -> f64 {
        let needed = self.allocator.min_load().unwrap_or(f64::INFINITY) * demand;
        (f64::from(workers) / needed).min(1.0)
    }

    /// Gain of accuracy by one more worker, summed over the requests of a second.
    fn gain(&self, demand: f64, workers: u32) -> f64 {
        let worth = |workers: u32| demand * self.allocator.max_accuracy(f64::from(workers) / demand);
        worth(workers + 1) - worth(workers)
    }
}

impl PerTask {
    /// Prepares a pipeline. The policy among the options is ignored.
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound, too large, or too slow for its objective.
    pub fn new(pipeline: Pipeline, options: AllocateOptions) -> Result<Self, AllocateError> {
        let unsound = |invalid| AllocateError::Pipeline(Box::new(invalid));
        pipeline.validate().map_err(unsound)?;
        let tree = TaskTree::new(&pipeline).map_err(unsound)?;
        let depth = tree
            .sinks
            .iter()
            .map(|sink| tree.trail(*sink).len())
            .max()
            .unwrap_or(1) as u64;
        let slice_us = pipeline.slo_us.saturating_sub(depth * pipeline.hop_us) / depth;
        let alone_options = AllocateOptions {
            policy: AllocationPolicy::Loki,
            ..options
        };
        let apps = pipeline.tasks.iter().enumerate().map(|(place, task)| {
            Ok(App {
                allocator: Allocator::new(alone(&pipeline, task, slice_us), alone_options)?,
                requests: arriving(&pipeline, &tree, place),
            })
        });
        let apps = apps.collect::<Result<Vec<App>, AllocateError>>()?;
        Ok(Self {
            root: tree.order.first().copied().unwrap_or(0),
            pipeline,
            options,
            apps,
        })
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

    fn check(&self, demand_qps: f64, workers: u32) -> Result<(), AllocateError> {
        if !(demand_qps.is_finite() && demand_qps > 0.0) {
            return Err(AllocateError::Demand(demand_qps));
        }
        let tasks = self.apps.len();
        if (workers as usize) < tasks {
            return Err(AllocateError::TooFewWorkers { tasks, workers });
        }
        Ok(())
    }

    fn per_task(
        &self,
        demand_qps: f64,
        arriving_qps: &[f64],
        workers: u32,
    ) -> Result<Allocation, AllocateError> {
        self.check(demand_qps, workers)?;
        let at_least = |qps: &f64| qps.max(f64::MIN_POSITIVE);
        let demands: Vec<f64> = arriving_qps.iter().map(at_least).collect();
        let shares = self.split(&demands, workers);
        let mut all = Vec::new();
        let mut served = 1.0_f64;
        for ((app, demand), share) in self.apps.iter().zip(&demands).zip(shares) {
            let scaled = app.allocator.scale_accuracy(*demand, share)?;
            served = served.min(scaled.served_qps / demand);
            all.extend(spread(scaled.instances, share));
        }
        let balanced = Balancer::new(&self.pipeline, &all).balance(demand_qps);
        let scaling = if served < 1.0 {
            Scaling::Overload
        } else {
            Scaling::Accuracy
        };
        Ok(Allocation {
            policy: "proteus",
            scaling,
            demand_qps,
            served_qps: demand_qps * served.min(1.0),
            workers,
            used: all.iter().map(|instances| instances.count).sum(),
            accuracy: balanced.accuracy,
            // Results of single tasks prove no bound of the pipeline.
            bound: 1.0,
            instances: all,
            paths: Vec::new(),
            solver_error: None,
        })
    }
}

impl Allocate for PerTask {
    fn update(&mut self, pipeline: Pipeline) -> Result<(), AllocateError> {
        if pipeline != self.pipeline {
            *self = Self::new(pipeline, self.options)?;
        }
        Ok(())
    }

    /// Every task independently, on all workers, with the most accurate variants upstream.
    fn allocate(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        let arriving = self.apps.iter().map(|app| app.requests * demand_qps);
        self.per_task(demand_qps, &arriving.collect::<Vec<_>>(), workers)
    }

    fn by_task(&self) -> Option<&dyn AllocateTasks> {
        Some(self)
    }
}

impl AllocateTasks for PerTask {
    fn allocate_tasks(&self, arriving_qps: &[f64], workers: u32) -> Result<Allocation, AllocateError> {
        let demand_qps = arriving_qps.get(self.root).copied().unwrap_or(f64::NAN);
        self.per_task(demand_qps, arriving_qps, workers)
    }
}

/// A task as a separate pipeline.
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

/// Requests that reach a task per request at the root, with the most accurate variants upstream.
fn arriving(pipeline: &Pipeline, tree: &TaskTree, task: usize) -> f64 {
    let trail = tree.trail(task);
    let steps = trail.windows(2).filter_map(|step| {
        let [from, to] = step else { return None };
        let (_, variant) = pipeline.tasks.get(*from)?.most_accurate()?;
        Some(variant.multiplicity(&pipeline.tasks.get(*to)?.name))
    });
    steps.product()
}

/// The instances of one task, the workers that are left over given to the most accurate.
fn spread(mut instances: Vec<Instances>, share: u32) -> Vec<Instances> {
    let used: u32 = instances.iter().map(|instances| instances.count).sum();
    if let Some(first) = instances.first_mut() {
        first.count += share.saturating_sub(used);
    }
    instances
}

#[cfg(test)]
// An example of kaskade-planners includes this file by its path.
#[path = "proteus/tests.rs"]
mod tests;
