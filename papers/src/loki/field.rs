//! A pipeline and a load: all systems manage the same one on the same workers and are simulated on the same arrivals.

use anyhow::ensure;
use kaskade_planners::allocate::{AllocateOptions, Scaling, Slot, StandbyOptions};
use kaskade_planners::demand::{DemandOptions, FactorOptions, RunTimeOptions};
use kaskade_planners::manager::{Manager, ManagerOptions};
use kaskade_policy::pipeline::Pipeline;
use kaskade_policy::plan::{Dropping, Plan};
use kaskade_policy::profile::Profile;
use kaskade_simulator::trace::{ArrivalProcess, Trace};
use kaskade_simulator::{Bucket, Controller, Loading, Observation, Report, SimConfig, Simulator, Timeline};

use crate::peers::pipelines::PipelinePeer;

/// Period of the demand estimate, microseconds.
pub(super) const CONTROL_INTERVAL_US: u64 = 200_000;

/// Loading time of a model, microseconds.
pub(super) const LOADING_US: u64 = 1_000_000;

/// Headroom of all systems' plans, as a multiple of the demand.
pub(super) const HEADROOM: f64 = 1.3;

/// Buckets of a course.
const BUCKETS: usize = 120;

/// A pipeline and a load.
#[derive(Debug, Clone)]
pub(super) struct Field {
    /// The pipeline.
    pub(super) pipeline: Pipeline,
    /// Latencies of the pipeline, as the simulator reads them.
    pub(super) profile: Profile,
    /// The load, requests/s at the root.
    pub(super) trace: Trace,
    /// Workers of the cluster.
    pub(super) workers: u32,
    /// Seed of arrivals and draws.
    pub(super) seed: u64,
}

/// The system that manages a pipeline, with its options.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Contestant {
    /// The allocator.
    pub(super) policy: PipelinePeer,
    /// Policy for late requests.
    pub(super) dropping: Dropping,
    /// Headroom of plans, as a multiple of the demand.
    pub(super) headroom: f64,
    /// Whether a request whose objective has passed leaves the queues.
    pub(super) expires: bool,
    /// Whether it forecasts a rise of the demand and keeps capacity ready for it.
    pub(super) provides: bool,
}

impl Contestant {
    /// Loki, as the paper has it.
    pub(super) const LOKI: Self = Self {
        policy: PipelinePeer::Loki,
        dropping: Dropping::Rerouting,
        headroom: HEADROOM,
        expires: true,
        provides: false,
    };

    /// Loki that only drops before the last task what can no longer be in time.
    pub(super) const PATIENT: Self = Self {
        dropping: Dropping::LastTask,
        ..Self::LOKI
    };

    /// Kaskade's default: dropping by slack, with a forecast and standby capacity.
    pub(super) const DEFAULT: Self = Self {
        dropping: Dropping::Slack,
        provides: true,
        ..Self::LOKI
    };

    /// `InferLine`.
    pub(super) const INFERLINE: Self = Self {
        policy: PipelinePeer::InferLine,
        dropping: Dropping::None,
        ..Self::LOKI
    };

    /// Proteus.
    pub(super) const PROTEUS: Self = Self {
        policy: PipelinePeer::Proteus,
        dropping: Dropping::None,
        ..Self::LOKI
    };

    fn demand(self) -> DemandOptions {
        if self.provides {
            DemandOptions::default()
        } else {
            DemandOptions::PAPER
        }
    }

    /// Returns the contestant's name in tables and plots.
    pub(super) fn name(&self) -> &'static str {
        match self.policy {
            PipelinePeer::Loki if self.dropping == Dropping::LastTask => "Loki, last-task dropping",
            PipelinePeer::Loki if self.provides => "Kaskade's default",
            PipelinePeer::Loki => "Loki",
            PipelinePeer::InferLine => "InferLine",
            PipelinePeer::Proteus => "Proteus",
        }
    }
}

/// The results of a load.
#[derive(Debug, Clone)]
pub(super) struct Run {
    /// The system that managed it.
    pub(super) contestant: Contestant,
    /// The whole.
    pub(super) report: Report,
    /// Course of the run, by bucket of time.
    pub(super) course: Vec<Bucket>,
    /// When it was allocated, microseconds, and how the demand was met from then on.
    pub(super) scalings: Vec<(u64, Scaling)>,
}

impl Run {
    /// Share of requests that missed their objective.
    pub(super) fn violations(&self) -> f64 {
        self.report.slo_violation_ratio().unwrap_or(f64::NAN)
    }

    /// Mean accuracy over the requests that were answered.
    pub(super) fn accuracy(&self) -> f64 {
        self.report.path_accuracy().unwrap_or(f64::NAN)
    }

    /// Whether everything in a bucket ran the most accurate variants.
    pub(super) fn scales_hardware(&self, bucket: &Bucket, length_us: u64) -> bool {
        let begun = self.scalings.partition_point(|(at, _)| *at <= bucket.from_us);
        let end = bucket.from_us + length_us;
        let during = self.scalings.iter().skip(begun.saturating_sub(1));
        let mut during = during.take_while(|(at, _)| *at < end);
        during.all(|(_, scaling)| *scaling == Scaling::Hardware)
    }
}

impl Field {
    /// Length of the buckets of a course, microseconds.
    pub(super) fn bucket_us(&self) -> u64 {
        (self.trace.seconds() / BUCKETS).max(1) as u64 * 1_000_000
    }

    /// Returns the same field under another load.
    pub(super) fn under(&self, trace: Trace) -> Self {
        Self {
            trace,
            ..self.clone()
        }
    }

    /// Returns the same field with another objective, microseconds.
    pub(super) fn within(&self, slo_us: u64) -> Self {
        let mut field = self.clone();
        field.pipeline.slo_us = slo_us;
        field
    }

    fn manager(&self, contestant: Contestant) -> anyhow::Result<Manager> {
        let slot = |worker: u32| Slot {
            worker: format!("w{worker}"),
            device: "cuda:0".to_owned(),
        };
        let options = ManagerOptions {
            app: self.pipeline.name.clone(),
            slots: (0..self.workers).map(slot).collect(),
            dropping: contestant.dropping,
            allocate: AllocateOptions::default(),
            demand: contestant.demand(),
            standby: if contestant.provides {
                StandbyOptions::default()
            } else {
                StandbyOptions::NONE
            },
            headroom: contestant.headroom,
            factors: FactorOptions::default(),
            run_times: RunTimeOptions::default(),
        };
        let allocator = contestant.policy.allocator(&self.pipeline)?;
        Ok(Manager::with(allocator, self.pipeline.clone(), options, 0)?)
    }

    /// Lets a contestant manage the pipeline under the load.
    ///
    /// # Errors
    /// When the pipeline cannot be planned or a plan not be simulated.
    pub(super) fn play(&self, contestant: Contestant) -> anyhow::Result<Run> {
        let mut manager = self.manager(contestant)?;
        let first_qps = self.trace.rates().first().copied().unwrap_or(0.0);
        let first = manager.first_plan(first_qps.max(DemandOptions::default().min_rate), 0)?;
        let slo_us = self.pipeline.slo_us;
        let config = SimConfig {
            seed: self.seed,
            hop_us: self.pipeline.hop_us,
            slo_us: Some(slo_us),
            budget_us: contestant.expires.then_some(slo_us),
            control_interval_us: CONTROL_INTERVAL_US,
            loading: Loading {
                default_us: LOADING_US,
                ..Loading::default()
            },
            path_accuracies: self.pipeline.path_accuracies(),
            ..SimConfig::default()
        };
        let simulator = Simulator::new(&first, &self.profile, &config)?;
        let mut timeline = Timeline::new(self.bucket_us());
        let mut watched = Watched::new(manager);
        let arrivals = self.trace.arrivals(ArrivalProcess::Poisson, self.seed);
        let report = simulator.run_controlled(arrivals, &mut timeline, &self.profile, &mut watched);
        if let Some(error) = watched.manager.error() {
            return Err(error.clone().into());
        }
        let refused = report.refused_plans.first();
        ensure!(
            refused.is_none(),
            "a plan was refused: {}",
            refused.map_or("", String::as_str)
        );
        let mut course = timeline.finish();
        // Answers after the last arrival would be a bucket of their own.
        course.truncate((self.trace.seconds() as u64 * 1_000_000).div_ceil(self.bucket_us()) as usize);
        Ok(Run {
            contestant,
            report,
            course,
            scalings: watched.scalings,
        })
    }
}

/// A manager, and when it allocated how.
struct Watched {
    manager: Manager,
    scalings: Vec<(u64, Scaling)>,
    seen: u64,
}

impl Watched {
    fn new(manager: Manager) -> Self {
        let mut watched = Self {
            manager,
            scalings: Vec::new(),
            seen: 0,
        };
        watched.note(0);
        watched
    }

    fn note(&mut self, at_us: u64) {
        if self.manager.allocations() == self.seen {
            return;
        }
        self.seen = self.manager.allocations();
        if let Some(allocation) = self.manager.allocation() {
            self.scalings.push((at_us, allocation.scaling));
        }
    }
}

impl Controller for Watched {
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan> {
        let plan = self.manager.decide(observation);
        self.note(observation.at_us);
        plan
    }
}
