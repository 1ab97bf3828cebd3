//! The allocator (Loki §4): which variants serve a pipeline, on how many workers each, in batches of which size.
//!
//! First *hardware scaling*: the fewest workers that serve the demand with the most accurate variant of every task. Where the
//! cluster is too small for that, *accuracy scaling*: the least loss of accuracy at which it is not (eq. 12). Where it is too small
//! for anything, as much of the demand as can be served, said so.
//!
//! The paper hands its program to Gurobi and takes half a second ([`exact_accuracy`](Allocator::exact_accuracy) states that program,
//! for checking). Here an [`Allocator`] lists the `ways` through the pipeline once per profile. For a demand it then takes a
//! bound from their `hull`, a few hundred of their `columns`, rounds (`round`) to whole workers, and only if that
//! leaves a gap worth the time asks a solver about those columns (`flow`). So there is always an answer and a proven gap.

mod batches;
mod columns;
mod emit;
mod fewest;
mod flow;
mod hull;
mod instances;
mod paper;
mod per_task;
mod round;
mod scale;
mod ways;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::lp::{LpError, Solver};
use kaskade_policy::invalid::Invalid;
use kaskade_policy::pipeline::{Pipeline, Tree};

pub use emit::{EmitError, PlanFor, Slot};
use per_task::PerTask;
use scale::Scaler;
use ways::Ways;

/// Who decides, for comparison (§6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AllocationPolicy {
    /// Hardware scaling, then accuracy scaling over the whole pipeline.
    #[default]
    Loki,
    /// InferLine: it knows the pipeline and scales hardware, but "requires the clients to specify a single model variant to use
    /// for each task". They specify the most accurate. When the cluster is exhausted it serves what it can.
    #[serde(alias = "inferline")]
    HardwareOnly,
    /// Proteus: it scales accuracy and not hardware, and "handles each task in the pipeline independently". Every task is an app
    /// of its own; what that means is said at [`Allocator::new`].
    #[serde(alias = "proteus")]
    PerTask,
}

/// How to allocate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AllocateOptions {
    /// Who decides.
    pub policy: AllocationPolicy,
    /// Who solves what rounding leaves open.
    pub solver: Solver,
    /// Relative gap to the bound below which an answer is good enough.
    pub gap: f64,
    /// Columns that are considered.
    pub columns: usize,
    /// Nodes that the embedded solver looks at: a limit that is the same on every machine.
    pub nodes: u64,
    /// Longest time for the solver, milliseconds: a net below the limit on nodes.
    pub solver_ms: u64,
}

impl Default for AllocateOptions {
    fn default() -> Self {
        Self {
            policy: AllocationPolicy::Loki,
            solver: Solver::Embedded,
            gap: 1e-3,
            columns: 120,
            nodes: 60,
            solver_ms: 300,
        }
    }
}

impl AllocateOptions {
    fn time(&self) -> Duration {
        Duration::from_millis(self.solver_ms)
    }
}

/// Which variants serve a pipeline, and how.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Allocation {
    /// Who decided.
    pub policy: AllocationPolicy,
    /// How the demand is met.
    pub scaling: Scaling,
    /// Demand that was asked for, requests/s at the root.
    pub demand_qps: f64,
    /// Demand that is served: all of it, or under overload what the cluster can serve, requests/s at the root.
    pub served_qps: f64,
    /// Workers in the cluster, `S`.
    pub workers: u32,
    /// Workers in use.
    pub used: u32,
    /// Expected system accuracy of what is served, in [0, 1]: the mean over the sinks of each sink's paths (§4.1).
    pub accuracy: f64,
    /// What the accuracy cannot exceed with these workers and the variants that the policy allows, proven. Under hardware scaling, the
    /// accuracy of the most accurate variants.
    pub bound: f64,
    /// The instances, by task and then by accuracy, the best first. A variant has batches of one size only.
    pub instances: Vec<Instances>,
    /// The shares of the paths that were planned with, by sink; empty where a policy plans without paths.
    pub paths: Vec<PathShare>,
    /// Why the chosen solver did not help; the rounded answer stands.
    #[serde(skip)]
    pub solver_fault: Option<LpError>,
}

impl Allocation {
    /// Relative distance of the accuracy to what it cannot exceed.
    pub fn gap(&self) -> f64 {
        if self.bound > 0.0 {
            (1.0 - self.accuracy / self.bound).max(0.0)
        } else {
            0.0
        }
    }
}

/// How a demand is met.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Scaling {
    /// With the most accurate variants on the fewest workers (eq. 11).
    Hardware,
    /// With less accuracy on the workers there are (eq. 12).
    Accuracy,
    /// Not all of it: the cluster is too small even at the least accuracy that helps.
    Overload,
}

/// The instances of one variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Instances {
    /// Its task.
    pub task: String,
    /// Its name.
    pub variant: String,
    /// Most requests in a batch, `y(i, k)`.
    pub batch: u32,
    /// Workers that run it, `x(i, k)`.
    pub count: u32,
    /// Profiled time of such a batch, microseconds, `l(i, k)`.
    pub latency_us: f64,
    /// What one of them serves, requests/s, `q(i, k, y)`.
    pub qps: f64,
    /// What all of them are planned to serve, requests/s.
    pub load_qps: f64,
}

impl Instances {
    /// What all of them can serve, requests/s.
    pub fn capacity_qps(&self) -> f64 {
        f64::from(self.count) * self.qps
    }
}

/// The share of the requests that take one path to a sink, `c(p)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathShare {
    /// Variants, the root's first.
    pub variants: Vec<String>,
    /// Share, in (0, 1]; those of the paths to one sink sum to 1.
    pub share: f64,
}

/// Why there is no allocation. Whoever holds an older plan keeps it.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AllocateError {
    /// The pipeline is unsound.
    #[error("the pipeline cannot be planned for: {0}")]
    Pipeline(Box<Invalid>),
    /// Even the fastest batches are too slow.
    #[error(
        "the objective of {:.1} ms cannot be met: even the fastest batches of {} take {:.1} ms with as long in queues, and messages; \
         use an objective of at least {:.1} ms, or a faster variant",
        *.slo_us as f64 / 1e3, .path.join(" -> "), *.needed_us as f64 / 1e3, *.needed_us as f64 / 1e3
    )]
    Slo {
        /// The fastest variants of the tightest path, the root's first.
        path: Vec<String>,
        /// The objective, microseconds.
        slo_us: u64,
        /// What this path needs, microseconds.
        needed_us: u64,
    },
    /// The pipeline is too large.
    #[error(
        "the pipeline has more than {most} ways to choose variants and batch sizes; allow fewer batch sizes or variants"
    )]
    TooMany {
        /// What can be looked at.
        most: usize,
    },
    /// Not every task can have a worker.
    #[error("{workers} worker(s) cannot serve {tasks} tasks; use at least one for each")]
    TooFewWorkers {
        /// Tasks that need one.
        tasks: usize,
        /// Workers there are.
        workers: u32,
    },
    /// The demand is not a positive number.
    #[error("a demand of {0} requests/s cannot be planned for; it must be positive and finite")]
    Demand(f64),
    /// The solver failed where nothing else gives an answer.
    #[error(transparent)]
    Lp(#[from] LpError),
}

/// Allocates workers to a pipeline, again and again.
#[derive(Debug, Clone)]
pub struct Allocator {
    pipeline: Pipeline,
    options: AllocateOptions,
    planned: Planned,
}

/// What was prepared of the pipeline.
#[derive(Debug, Clone)]
enum Planned {
    Whole {
        /// The ways of the most accurate variants; none if they are too slow for the objective.
        best: Option<Box<Scaler>>,
        /// All ways; none where accuracy is not scaled.
        all: Option<Box<Scaler>>,
    },
    PerTask(PerTask),
}

impl Allocator {
    /// Prepares a pipeline, which takes milliseconds; allocating then is fast.
    ///
    /// [`AllocationPolicy::PerTask`] reads the paper's set-up of Proteus (§6.1) as follows, since the paper says only that each task
    /// is scaled independently, unaware of the others. Every task is an app of its own. It gets an equal slice of the objective:
    /// the objective without messages, divided by the tasks of the longest path. The workers are split as Proteus splits a
    /// cluster among apps: so that all demands are served, and then for the highest mean accuracy over the requests of all apps, whatever
    /// a request of one is worth to those of another. Its demand is what arrives there: counted
    /// ([`allocate_tasks`](Self::allocate_tasks)), or with the most accurate variants upstream where nobody counted, because what other
    /// variants would multiply it by is the very thing that it does not see. All workers are always in use.
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound, too large, or too slow for its objective.
    pub fn new(pipeline: Pipeline, options: AllocateOptions) -> Result<Self, AllocateError> {
        pipeline
            .validate()
            .map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        let tree = Tree::of(&pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        let best = || {
            let most = |task: usize| Some(pipeline.tasks.get(task)?.most_accurate()?.0);
            let ways = Ways::new(&pipeline, &tree, |task, variant| most(task) == Some(variant))?;
            Ok(Box::new(Scaler::new(ways)))
        };
        let planned = match options.policy {
            AllocationPolicy::Loki => Planned::Whole {
                all: Some(Box::new(Scaler::new(Ways::new(&pipeline, &tree, |_, _| true)?))),
                best: match best() {
                    Ok(best) => Some(best),
                    Err(AllocateError::Slo { .. }) => None,
                    Err(error) => return Err(error),
                },
            },
            AllocationPolicy::HardwareOnly => Planned::Whole {
                all: None,
                best: Some(best()?),
            },
            AllocationPolicy::PerTask => Planned::PerTask(PerTask::new(&pipeline, &tree)?),
        };
        Ok(Self {
            pipeline,
            options,
            planned,
        })
    }

    /// The pipeline, as it was last given.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The options.
    pub fn options(&self) -> AllocateOptions {
        self.options
    }

    /// Takes another profile or other multiplicative factors of the pipeline. Does nothing if they are the same.
    ///
    /// # Errors
    /// An [`AllocateError`], after which the old ones stay in force.
    pub fn update(&mut self, pipeline: Pipeline) -> Result<(), AllocateError> {
        if pipeline != self.pipeline {
            *self = Self::new(pipeline, self.options)?;
        }
        Ok(())
    }

    /// Allocates `workers` to a demand of so many requests/s at the root.
    ///
    /// A demand beyond what the cluster can serve is no error: it is [`Scaling::Overload`], with what can be served.
    ///
    /// # Errors
    /// An [`AllocateError`] if the demand is no demand, or the workers are fewer than the tasks.
    pub fn allocate(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        self.check(demand_qps, workers)?;
        let (best, all) = match &self.planned {
            Planned::Whole { best, all } => (best, all),
            Planned::PerTask(planned) => return self.per_task_of(planned, demand_qps, workers),
        };
        let tasks = self.pipeline.tasks.len();
        let hardware = best
            .as_ref()
            .and_then(|best| Some((best, best.hardware(demand_qps, workers)?)));
        if let Some((best, scaled)) = hardware {
            return Ok(self.stated(&best.ways, Scaling::Hardware, demand_qps, workers, scaled));
        }
        let options = &self.options;
        let (scaler, found) = match (all, best) {
            (Some(all), _) => (all, all.served(demand_qps, workers, options)),
            // Without accuracy scaling, what the hardware cannot carry is overload.
            (None, Some(best)) => (best, best.most(demand_qps, workers, options)),
            (None, None) => return Err(AllocateError::TooFewWorkers { tasks, workers }),
        };
        let found = found.ok_or(AllocateError::TooFewWorkers { tasks, workers })?;
        let scaling = if found.demand < demand_qps {
            Scaling::Overload
        } else {
            Scaling::Accuracy
        };
        Ok(self.stated(&scaler.ways, scaling, demand_qps, workers, found))
    }

    /// Requests/s at the root that no allocation to so many workers exceeds, fractions of workers included, with the variants that the
    /// policy allows; proven. For [`AllocationPolicy::PerTask`], of which nothing is proven, infinite.
    pub fn most_qps(&self, workers: u32) -> f64 {
        let scaler = match &self.planned {
            Planned::Whole { best, all } => all.as_ref().or(best.as_ref()),
            Planned::PerTask(_) => None,
        };
        let least = scaler.and_then(|scaler| scaler.least_load());
        least.map_or(f64::INFINITY, |load| f64::from(workers) / load)
    }

    fn check(&self, demand_qps: f64, workers: u32) -> Result<(), AllocateError> {
        if !(demand_qps.is_finite() && demand_qps > 0.0) {
            return Err(AllocateError::Demand(demand_qps));
        }
        let tasks = self.pipeline.tasks.len();
        if (workers as usize) < tasks {
            return Err(AllocateError::TooFewWorkers { tasks, workers });
        }
        Ok(())
    }

    /// The optimum of the paper's own program (F1) for accuracy scaling, in [0, 1], by the solver of the options and without limits: for
    /// checking. The embedded one takes from milliseconds on small pipelines to hours on published ones, HiGHS seconds there.
    ///
    /// # Errors
    /// [`AllocateError::Lp`] if the workers cannot serve the demand.
    pub fn exact_accuracy(&self, demand_qps: f64, workers: u32) -> Result<f64, AllocateError> {
        let ways = self.all_ways()?;
        let solver = self.options.solver;
        Ok(paper::accuracy(
            &self.pipeline,
            &ways,
            demand_qps,
            workers,
            solver,
        )?)
    }

    /// The optimum of the configuration-path flow (F2) over all columns, in [0, 1], by the same solver. With `single`, every variant has batches of one
    /// size, and it equals [`exact_accuracy`](Self::exact_accuracy); without, it may exceed it a little.
    ///
    /// # Errors
    /// [`AllocateError::Lp`] if the workers cannot serve the demand.
    pub fn flow_accuracy(&self, demand_qps: f64, workers: u32, single: bool) -> Result<f64, AllocateError> {
        let ways = self.all_ways()?;
        Ok(scale::optimum(
            &ways,
            demand_qps,
            workers,
            single,
            self.options.solver,
        )?)
    }

    fn all_ways(&self) -> Result<Ways, AllocateError> {
        let tree = Tree::of(&self.pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        Ways::new(&self.pipeline, &tree, |_, _| true)
    }
}

#[cfg(test)]
#[path = "allocate/exact_tests.rs"]
mod exact_tests;
#[cfg(test)]
#[path = "allocate/tests.rs"]
mod tests;
