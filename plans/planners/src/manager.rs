//! Loki's Resource Manager and Load Balancer over time (§4.2, §5.1): the demand to plan for, the times of planning, and the routing in
//! between.
//!
//! A [`Manager`] receives the arrivals, the branching of the variants and their run times. When the demand requires it, or the run
//! times do ([`crate::demand`]), it allocates again; otherwise it renews the routing tables at every period for the demand of the moment,
//! which loads nothing. The allocator is [exchangeable](crate::allocate::Allocate): other systems are managed likewise.
//! An allocator that plans task by task receives the arrivals at every task, since such a system observes nothing else.
//!
//! It is a [`Controller`], so that the simulator plans as a service would.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::allocate::{
    Allocate, AllocateError, AllocateOptions, Allocation, Allocator, EmitError, PlanFor, Scaling, Slot,
    StandbyOptions, allocate_with_standby,
};
use crate::balance::Balancer;
use crate::demand::{
    DemandEstimator, DemandOptions, FactorEstimator, FactorOptions, RunTimeEstimator, RunTimeOptions,
};
use kaskade_policy::demand::RunCounts;
use kaskade_policy::pipeline::{Pipeline, TaskTree};
use kaskade_policy::plan::{Dropping, Plan};
use kaskade_simulator::{Controller, Observation};

/// Configuration of a manager.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The app that plans are made for.
    pub app: String,
    /// The workers.
    pub slots: Vec<Slot>,
    /// Policy for late requests.
    pub dropping: Dropping,
    /// The allocator.
    pub allocate: AllocateOptions,
    /// When it is allocated, and for which demand.
    pub demand: DemandOptions,
    /// It is planned for this many times the demand, at least 1. 1 is the paper's rule, and sufficient for evenly spaced arrivals. With
    /// Poisson arrivals, queues grow if workers are planned to be always busy; 1.3 keeps them short.
    pub headroom: f64,
    /// Capacity kept ready for a rise of the demand. An allocator that plans task by task keeps none ready.
    pub standby: StandbyOptions,
    /// How observed multiplicative factors take the place of profiled ones.
    pub factors: FactorOptions,
    /// How measured run times take the place of profiled ones.
    pub run_times: RunTimeOptions,
}

/// A plan cannot be made. The plan in force stays.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ManagerError {
    /// There is no allocation.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The allocation is no plan.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// Plans a pipeline again and again while it is served.
#[derive(Debug)]
pub struct Manager {
    options: ManagerOptions,
    allocator: Box<dyn Allocate>,
    /// The pipeline, with the learned factors and run times.
    pipeline: Pipeline,
    /// Estimator of the arrivals of each task; the root's arrivals are the demand.
    arriving: Vec<DemandEstimator>,
    root: usize,
    factors: FactorEstimator,
    run_times: RunTimeEstimator,
    /// For each variant, requests served, and requests to child tasks, since the start.
    totals: BTreeMap<String, (u64, BTreeMap<String, u64>)>,
    allocation: Option<Allocation>,
    /// Capacity of the allocation, requests/s at the root; infinite if the arrivals at the root do not determine it.
    capacity_qps: f64,
    running: Option<Plan>,
    allocations: u64,
    error: Option<ManagerError>,
}

impl Manager {
    /// Creates a manager without a plan that starts at `now` (microseconds).
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound, too large, or too slow for its objective.
    pub fn new(pipeline: Pipeline, options: ManagerOptions, now: u64) -> Result<Self, AllocateError> {
        let allocator = Allocator::new(pipeline.clone(), options.allocate)?;
        Self::with(Box::new(allocator), pipeline, options, now)
    }

    /// Creates a manager with another allocator, which was made for this pipeline.
    ///
    /// # Errors
    /// An [`AllocateError`] if the pipeline is unsound.
    pub fn with(
        allocator: Box<dyn Allocate>,
        pipeline: Pipeline,
        options: ManagerOptions,
        now: u64,
    ) -> Result<Self, AllocateError> {
        let tree = TaskTree::new(&pipeline).map_err(|invalid| AllocateError::Pipeline(Box::new(invalid)))?;
        Ok(Self {
            arriving: vec![DemandEstimator::new(options.demand, now); pipeline.tasks.len()],
            root: tree.order.first().copied().unwrap_or(0),
            factors: FactorEstimator::new(options.factors),
            run_times: RunTimeEstimator::new(&pipeline, options.run_times),
            totals: BTreeMap::new(),
            allocation: None,
            capacity_qps: f64::INFINITY,
            running: None,
            allocations: 0,
            error: None,
            pipeline,
            allocator,
            options,
        })
    }

    /// Makes the first plan, for this many requests/s at the root and the headroom, at `now` (microseconds).
    ///
    /// # Errors
    /// A [`ManagerError`] if there is no plan.
    pub fn first_plan(&mut self, demand_qps: f64, now: u64) -> Result<Plan, ManagerError> {
        let headroom = self.options.headroom;
        let allocation = self.allocation_for(demand_qps * headroom, self.workers())?;
        let plan = allocation.plan(&self.pipeline, self.plan_for())?;
        for (task, estimator) in self.arriving.iter_mut().enumerate() {
            let arriving = allocation.instances.iter();
            let arriving = arriving.filter(|own| self.pipeline.task(&own.task) == Some(task));
            let loads: f64 = arriving.map(|own| own.load_qps / headroom).sum();
            estimator.planned(if task == self.root { demand_qps } else { loads }, now);
        }
        self.take(allocation);
        self.running = Some(plan.clone());
        Ok(plan)
    }

    /// Notes `arrivals` at the root since the last call, at `now` (microseconds).
    pub fn observe(&mut self, arrivals: u64, now: u64) {
        for (task, estimator) in self.arriving.iter_mut().enumerate() {
            estimator.observe(if task == self.root { arrivals } else { 0 }, now);
        }
    }

    /// Records that a variant, since the last report, served `served` requests and made the given number of requests to each child task.
    /// Counts that are reported child by child go in one call.
    pub fn record(&mut self, variant: &str, served: u64, made: &BTreeMap<String, u64>, now: u64) {
        let totals = self.totals.entry(variant.to_owned()).or_default();
        totals.0 += served;
        for (child, made) in made {
            *totals.1.entry(child.clone()).or_default() += made;
            let task = self.pipeline.task(child);
            if let Some(estimator) = task.and_then(|task| self.arriving.get_mut(task)) {
                estimator.observe(*made, now);
            }
        }
        self.factors.record(variant, variant, totals.0, &totals.1);
    }

    /// Notes what a variant has run since the last report.
    pub fn record_runs(&mut self, variant: &str, ran: RunCounts) {
        self.run_times.record(variant, ran);
    }

    /// Returns another plan at `now` (microseconds), if there should be one: a new allocation when one is due, and otherwise new routing
    /// tables where the demand moved them.
    pub fn next_plan(&mut self, now: u64) -> Option<Plan> {
        let made = if self.is_due(now) || self.allocation.is_none() {
            self.allocate(now)
        } else {
            self.balance()
        };
        let plan = made.unwrap_or_else(|error| {
            self.error = Some(error);
            None
        })?;
        self.running = Some(plan.clone());
        Some(plan)
    }

    /// Takes the running plan as the one that the next is made from: another process may have made it.
    pub fn follow(&mut self, running: Option<&Plan>) {
        if let Some(running) = running.filter(|running| self.running.as_ref() != Some(running)) {
            self.running = Some(running.clone());
        }
    }

    /// Takes other workers for those that there are. If they are others than before, the next plan is a new allocation: what was placed on a
    /// dead worker goes elsewhere at once.
    pub fn set_slots(&mut self, slots: Vec<Slot>) {
        if self.options.slots != slots {
            self.options.slots = slots;
            self.allocation = None;
        }
    }

    /// Returns the reason of the last failed attempt, once.
    pub fn take_error(&mut self) -> Option<ManagerError> {
        self.error.take()
    }

    /// The estimated demand at the root, requests/s.
    pub fn demand_qps(&self) -> f64 {
        let root = self.arriving.get(self.root);
        root.map_or(0.0, DemandEstimator::estimate_qps)
    }

    /// The allocation in force.
    pub fn allocation(&self) -> Option<&Allocation> {
        self.allocation.as_ref()
    }

    /// How often it was allocated.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Why the last attempt that failed did.
    pub fn error(&self) -> Option<&ManagerError> {
        self.error.as_ref()
    }

    fn workers(&self) -> u32 {
        u32::try_from(self.options.slots.len()).unwrap_or(u32::MAX)
    }

    fn plan_for(&self) -> PlanFor<'_> {
        PlanFor {
            app: &self.options.app,
            slots: &self.options.slots,
            previous: self.running.as_ref(),
            dropping: self.options.dropping,
        }
    }

    fn plans_per_task(&self) -> bool {
        self.allocator.by_task().is_some()
    }

    /// Whether the demand requires an allocation: that at the root, or that of any app if every task is one. So do run times that have
    /// changed: budgets by others are wrong for every request.
    fn is_due(&mut self, now: u64) -> bool {
        let (per_task, root) = (self.plans_per_task(), self.root);
        let settled = self.arriving.get(root).is_some_and(|root| root.has_settled(now));
        let mut due = settled && self.run_times.has_changed();
        let hurries = self
            .arriving
            .get(root)
            .is_some_and(|root| root.can_replan_now(now));
        due |= hurries && self.beyond_capacity().is_some();
        for (task, estimator) in self.arriving.iter_mut().enumerate() {
            due |= estimator.due(now).is_some() && (per_task || task == root);
        }
        due
    }

    fn allocate(&mut self, now: u64) -> Result<Option<Plan>, ManagerError> {
        let estimate = self.demand_qps();
        let demand = self.beyond_capacity().unwrap_or(0.0).max(estimate);
        // Noted before anything can fail: what cannot be planned for now is tried again when it is due.
        for (task, estimator) in self.arriving.iter_mut().enumerate() {
            let planned = if task == self.root {
                demand
            } else {
                estimator.estimate_qps()
            };
            estimator.planned(planned, now);
        }
        self.learn()?;
        let (workers, headroom) = (self.workers(), self.options.headroom);
        let allocation = if let Some(allocator) = self.allocator.by_task() {
            let arriving = self.arriving.iter();
            let arriving = arriving.map(|estimator| estimator.estimate_qps() * headroom);
            allocator.allocate_tasks(&arriving.collect::<Vec<_>>(), workers)?
        } else {
            self.allocation_for(demand * headroom, workers)?
        };
        let plan = allocation.plan(&self.pipeline, self.plan_for())?;
        self.take(allocation);
        Ok(self.unless_same(plan))
    }

    fn take(&mut self, allocation: Allocation) {
        self.allocations += 1;
        self.capacity_qps = if self.plans_per_task() || allocation.scaling == Scaling::Overload {
            f64::INFINITY
        } else {
            Balancer::new(&self.pipeline, &allocation.instances).capacity_qps()
        };
        self.allocation = Some(allocation);
    }

    /// Returns the present arrivals at the root, requests/s, if they exceed the capacity of the allocation in force.
    fn beyond_capacity(&self) -> Option<f64> {
        let present_qps = self.arriving.get(self.root)?.present_qps();
        (present_qps > self.capacity_qps).then_some(present_qps)
    }

    fn allocation_for(&self, demand_qps: f64, workers: u32) -> Result<Allocation, AllocateError> {
        if self.plans_per_task() {
            return self.allocator.allocate(demand_qps, workers);
        }
        let (allocator, standby) = (self.allocator.as_ref(), self.options.standby);
        allocate_with_standby(allocator, &self.pipeline, (demand_qps, workers), standby)
    }

    /// Plans with the workers' reports from now on, if that makes a pipeline that can be planned.
    fn learn(&mut self) -> Result<(), AllocateError> {
        let mut learned = self.pipeline.clone();
        let slower = self.run_times.apply(&mut learned);
        // Factors are what a system without a view of the pipeline cannot know, and of no use to it.
        if (!self.plans_per_task() && self.factors.apply(&mut learned)) || slower {
            self.allocator.update(learned.clone())?;
            self.pipeline = learned;
        }
        Ok(())
    }

    /// The routing tables for the demand of the moment.
    fn balance(&self) -> Result<Option<Plan>, ManagerError> {
        let Some(allocation) = &self.allocation else {
            return Ok(None);
        };
        // With the same room as was planned with: the most accurate workers would be full otherwise, and their queues grow.
        let present = self.arriving.get(self.root);
        let demand = present.map_or(0.0, DemandEstimator::present_qps) * self.options.headroom;
        let balanced = allocation.balance(&self.pipeline, demand);
        let plan = allocation.plan_balanced(&self.pipeline, &balanced, self.plan_for())?;
        Ok(self.unless_same(plan))
    }

    fn unless_same(&self, plan: Plan) -> Option<Plan> {
        (self.running.as_ref() != Some(&plan)).then_some(plan)
    }
}

impl Controller for Manager {
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan> {
        self.observe(observation.arrivals, observation.at_us);
        // Factors come child by child, those of a variant together.
        let mut reported: BTreeMap<&str, (u64, BTreeMap<String, u64>)> = BTreeMap::new();
        for factor in &observation.factors {
            let reported = reported.entry(factor.variant).or_default();
            reported.0 = reported.0.max(factor.served);
            reported.1.insert(factor.child.to_owned(), factor.made);
        }
        for (variant, (served, made)) in &reported {
            self.record(variant, *served, made, observation.at_us);
        }
        for run in &observation.runs {
            self.record_runs(run.variant, run.ran);
        }
        self.next_plan(observation.at_us)
    }
}

#[cfg(test)]
mod tests;
