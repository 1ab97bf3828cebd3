//! The allocator (Loki §4): which variants serve a pipeline, on how many workers each, in batches of which size.
//!
//! First *hardware scaling*: the fewest workers that serve the demand with the most accurate variant of every task. Where the
//! cluster is too small for that, *accuracy scaling*: the least loss of accuracy at which it is not (eq. 12). Where it is too small
//! for any accuracy, as much of the demand as can be served, marked as overloaded.
//!
//! The paper hands its program to Gurobi and takes half a second ([`exact_accuracy`](crate::reference::exact_accuracy) states
//! that program, for checking). Here an [`Allocator`] lists the `paths` through the pipeline once per profile. For a demand it then takes a
//! bound from their `hull`, a few hundred of their `columns`, rounds (`round`) to whole workers, and only if that
//! leaves a gap above the tolerance asks a solver about those columns (`flow`). So there is always an allocation, with a proven gap.

mod allocation;
mod batches;
mod columns;
mod emit;
mod error;
pub(crate) mod exact_program;
mod fewest;
mod flow;
mod hull;
mod options;
mod paths;
mod round;
mod scale;
mod scaled;
mod standby;

use std::collections::BTreeMap;

use kaskade_policy::pipeline::{Pipeline, TaskTree};

pub use crate::balance::Instances;
pub use allocation::{Allocation, PathShare, Scaling};
pub use emit::{EmitError, PlanFor, Slot};
pub use error::AllocateError;
use flow::Flow;
pub use options::{AllocateOptions, AllocationPolicy};
use paths::Paths;
use scale::Scaler;
use scaled::{Scaled, instances};
pub use standby::StandbyOptions;
pub(crate) use standby::allocate_with_standby;

/// Allocates workers to a pipeline, repeatedly, for a [manager](crate::manager::Manager). [`Allocator`] is Loki's.
pub trait Allocate: std::fmt::Debug + Send {
    /// Takes another profile or other multiplicative factors of the pipeline. Does nothing if they are the same.
    ///
    /// # Errors
    /// An [`AllocateError`], after which the old ones stay in force.
    fn update(&mut self, pipeline: Pipeline) -> Result<(), AllocateError>;

    /// Allocates `workers` to a demand of this many requests/s at the root.
    ///
    /// # Errors
    /// An [`AllocateError`] if the demand is no demand, or the workers are fewer than the tasks.
    fn allocate(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError>;

    /// Itself, if it plans from the arrivals at each task and not from the demand at the root: then it does not use the pipeline between
    /// the tasks, and gets no multiplicative factors.
    fn by_task(&self) -> Option<&dyn AllocateTasks> {
        None
    }
}

/// Allocates workers by what arrives at each task of a pipeline.
pub trait AllocateTasks {
    /// Allocates `workers` where this many requests/s arrive at each task, in the pipeline's order.
    ///
    /// # Errors
    /// As [`Allocate::allocate`].
    fn allocate_tasks(&self, arriving_qps: &[f64], workers: u32) -> Result<Allocation, AllocateError>;
}

impl Allocate for Allocator {
    fn update(&mut self, pipeline: Pipeline) -> Result<(), AllocateError> {
        Self::update(self, pipeline)
    }

    fn allocate(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        Self::allocate(self, demand_qps, workers)
    }
}

/// Allocates workers to a pipeline, again and again.
#[derive(Debug, Clone)]
pub struct Allocator {
    pipeline: Pipeline,
    options: AllocateOptions,
    /// The paths of the most accurate variants; none if they are too slow for the objective.
    best: Option<Box<Scaler>>,
    /// All paths; none where accuracy is not scaled.
    all: Option<Box<Scaler>>,
}

impl Allocator {
    /// Prepares a pipeline, which takes milliseconds; allocating then is fast.
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound, too large, or too slow for its objective.
    pub fn new(pipeline: Pipeline, options: AllocateOptions) -> Result<Self, AllocateError> {
        pipeline
            .validate()
            .map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        let tree = TaskTree::new(&pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        let best = || {
            let most = |task: usize| Some(pipeline.tasks.get(task)?.most_accurate()?.0);
            let paths = Paths::new(&pipeline, &tree, |task, variant| most(task) == Some(variant))?;
            Ok(Box::new(Scaler::new(paths)))
        };
        let (best, all) = match options.policy {
            AllocationPolicy::Loki => {
                let all = Box::new(Scaler::new(Paths::new(&pipeline, &tree, |_, _| true)?));
                match best() {
                    Ok(best) => (Some(best), Some(all)),
                    Err(AllocateError::Slo { .. }) => (None, Some(all)),
                    Err(error) => return Err(error),
                }
            }
            AllocationPolicy::HardwareOnly => (Some(best()?), None),
        };
        Ok(Self {
            pipeline,
            options,
            best,
            all,
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

    /// Allocates `workers` to a demand of this many requests/s at the root.
    ///
    /// A demand beyond what the cluster can serve is no error: it is [`Scaling::Overload`], with what can be served.
    ///
    /// # Errors
    /// An [`AllocateError`] if the demand is no demand, or the workers are fewer than the tasks.
    pub fn allocate(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        self.check(demand_qps, workers)?;
        let tasks = self.pipeline.tasks.len();
        let hardware = self
            .best
            .as_ref()
            .and_then(|best| Some((best, best.hardware(demand_qps, workers)?)));
        if let Some((best, scaled)) = hardware {
            return Ok(self.stated(&best.paths, Scaling::Hardware, demand_qps, workers, scaled));
        }
        let options = &self.options;
        let (scaler, found) = match (&self.all, &self.best) {
            (Some(all), _) => (all, all.served(demand_qps, workers, options)),
            // Without accuracy scaling, demand beyond the hardware's capacity is overload.
            (None, Some(best)) => (best, best.max_served(demand_qps, workers, options)),
            (None, None) => return Err(AllocateError::TooFewWorkers { tasks, workers }),
        };
        let found = found.ok_or(AllocateError::TooFewWorkers { tasks, workers })?;
        Ok(self.scaled(scaler, demand_qps, workers, found))
    }

    /// Allocates all of `workers` by accuracy scaling alone, even if fewer would suffice with the most accurate variants.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn scale_accuracy(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        self.check(demand_qps, workers)?;
        let tasks = self.pipeline.tasks.len();
        let few = AllocateError::TooFewWorkers { tasks, workers };
        let scaler = self.all.as_ref().or(self.best.as_ref());
        let Some(scaler) = scaler else { return Err(few) };
        let found = scaler.served(demand_qps, workers, &self.options).ok_or(few)?;
        Ok(self.scaled(scaler, demand_qps, workers, found))
    }

    fn scaled(&self, scaler: &Scaler, demand_qps: f64, workers: u32, found: Scaled) -> Allocation {
        let scaling = if found.demand < demand_qps {
            Scaling::Overload
        } else {
            Scaling::Accuracy
        };
        self.stated(&scaler.paths, scaling, demand_qps, workers, found)
    }

    /// Workers that a request/s at the root keeps busy at least, with the variants that the policy allows, fractions included; proven.
    pub fn min_load(&self) -> Option<f64> {
        let scaler = self.all.as_ref().or(self.best.as_ref());
        scaler.and_then(|scaler| scaler.min_load())
    }

    /// The best accuracy that this many workers per request/s could give, fractions of them included; 0 where they cannot serve it.
    pub fn max_accuracy(&self, load: f64) -> f64 {
        let scaler = self.all.as_ref().or(self.best.as_ref());
        scaler.map_or(0.0, |scaler| scaler.worth_at_most(load))
    }

    /// Requests/s at the root that no allocation to this many workers exceeds, fractions of workers included, with the variants that the
    /// policy allows; proven.
    pub fn max_qps(&self, workers: u32) -> f64 {
        self.min_load()
            .map_or(f64::INFINITY, |load| f64::from(workers) / load)
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
}

impl Allocator {
    /// An allocation in words.
    fn stated(
        &self,
        paths: &Paths,
        scaling: Scaling,
        demand_qps: f64,
        workers: u32,
        scaled: Scaled,
    ) -> Allocation {
        let instances = instances(&self.pipeline.tasks, paths, &scaled);
        Allocation {
            policy: self.options.policy.name(),
            scaling,
            demand_qps,
            served_qps: scaled.demand,
            workers,
            used: instances.iter().map(|instances| instances.count).sum(),
            accuracy: scaled.accuracy,
            bound: scaled.bound.max(scaled.accuracy),
            instances,
            paths: self.paths(paths, &scaled.flows),
            solver_error: scaled.error,
        }
    }

    fn paths(&self, paths: &Paths, flows: &[Flow]) -> Vec<PathShare> {
        // Paths that differ in batch sizes only are one path.
        let mut shares: BTreeMap<Vec<(usize, usize)>, f64> = BTreeMap::new();
        for flow in flows {
            *shares.entry(paths.variants(flow.sink, flow.path)).or_default() += flow.share;
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

#[cfg(test)]
mod exact_tests;
#[cfg(test)]
mod tests;
