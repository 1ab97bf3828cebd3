//! A discrete-event simulator of plans, profiles and traces (CascadeServe appendix C).
//!
//! It calls the policies that the actors call: batching, routing, shares and backups, gear choice, resends, admission. What it
//! adds is what the actors find in the world: time, devices, the broker, failures. Request number `n` carries validation
//! sample `n mod samples`, and takes the way that this sample's recorded confidence takes.
//!
//! What is taken for true:
//! - A batch takes what the profile measured for its size ([`kaskade_policy::fit::batch_latency_s`]); a partition takes its part of
//!   that. Replicas that share a device [concurrently](kaskade_policy::plan::Sharing::Concurrent) do not slow each other down, unless
//!   [`SimConfig::contention`] says so.
//! - A request joins a queue one hop after it was sent on, and its replica is chosen there and then. All hops between stages
//!   take equally long.
//! - An edge without shares leads to any living replica of the stage's variant with equal chance, as the broker's queue group
//!   does. That the actors prefer a near replica ([`kaskade_policy::routing::prefer_local`]) is not simulated: who is near is not
//!   part of a plan.
//! - A replica that fails takes its queue and its batch with it. Until the failure is noticed, the broker refuses what the
//!   shares send there; what was lost is sent again afterwards, from the entry, as [`kaskade_policy::ledger`] allows.
//! - Every request of the trace needs its place only while it is in flight.
//!
//! A pipeline is a gear whose stages name tasks (Loki). What holds for it beyond that:
//! - A result makes a whole number of requests for each child, whose mean is the plan's multiplicity or whose distribution was
//!   measured ([`SimConfig::copies`]); children are drawn independently of each other.
//! - The replica of the next task is chosen when a result is sent on, as [`kaskade_policy::rerouting`] needs it; everywhere else when
//!   the hop ends.
//! - Branches end one by one, as [`Report::branches`] counts them. A request is answered if all of its branches are;
//!   otherwise it has the outcome of the branch that was lost first, and it ends with the last one.
//! - Accuracy is that of the ways which the answered branches took, not of samples: profiled end to end, or the product of what
//!   the stages state.
//!
//! A [`Controller`] may plan again while requests are in flight ([`Simulator::run_controlled`]); it says what holds then. That
//! loading takes no time of the device is the simulator's assumption: the copy to the device runs beside the batches.

mod batches;
mod branches;
mod compile;
mod config;
mod contention;
mod control;
mod controller;
mod copies;
mod engine;
mod epochs;
mod events;
mod fleet;
mod flights;
mod forward;
mod histogram;
mod names;
mod observer;
mod outcomes;
mod replan;
mod report;
mod run_times;
mod timeline;
pub mod trace;
mod world;

pub use config::{Change, Loading, MeasuredCopies, Power, ReplicaEvent, SimConfig, SimError, Spare};
pub use controller::{Controller, Factor, Look, ReplicaLook, VariantRuns};
pub use histogram::{LatencyHistogram, LatencySummary};
pub use observer::{Answered, Loss, Lost, Observer, Run, Sink, Tick};
pub use report::{
    BranchReport, DeviceReport, PLANS_KEPT, PathReport, PlanChange, Report, SHIFTS_KEPT, Shift, VariantReport,
};
pub use timeline::{Bucket, Timeline};

use std::collections::BTreeMap;
use std::sync::Arc;

use compile::Compiled;
use control::Happening;
use engine::Engine;
use replan::Replanning;
use world::World;

use kaskade_policy::plan::Plan;
use kaskade_policy::profile::Profile;
use kaskade_policy::shifting::Shifter;

/// A plan, a profile and a configuration, compiled: names are numbers, and the way of every validation sample is known.
#[derive(Debug, Clone)]
pub struct Simulator {
    plan: Arc<Compiled>,
    world: World,
    shifter: Shifter,
    config: SimConfig,
    timeline: Vec<Happening>,
    down: Vec<u32>,
}

impl Simulator {
    /// Compiles a plan.
    ///
    /// # Errors
    /// A [`SimError`] that names the first thing that does not fit.
    pub fn new(plan: &Plan, profile: &Profile, config: &SimConfig) -> Result<Self, SimError> {
        config.check(plan.gears.len())?;
        let mut world = World::default();
        let compiled = Compiled::new(plan, profile, config, &mut world)?;
        let ids = world.replicas.iter().map(|replica| replica.id.as_str());
        let ids: BTreeMap<&str, u32> = ids.zip(0..).collect();
        let find = |field: &'static str, id: &String| {
            ids.get(id.as_str())
                .copied()
                .ok_or_else(|| SimError::NoSuchReplica {
                    field,
                    replica: id.clone(),
                })
        };
        let happening = |event: &config::ReplicaEvent| {
            Ok(Happening {
                at: event.at_us,
                replica: find("timeline", &event.replica)?,
                change: event.change,
            })
        };
        let mut timeline = config
            .timeline
            .iter()
            .map(happening)
            .collect::<Result<Vec<_>, SimError>>()?;
        timeline.sort_by_key(|happening| happening.at);
        let down = config.initially_down.iter();
        let down = down
            .map(|id| find("initially_down", id))
            .collect::<Result<_, _>>()?;
        let mut shifter = Shifter::new(&plan.gears, config.shift.unwrap_or_default());
        shifter.set_gear(config.start_gear);
        Ok(Self {
            shifter,
            config: config.clone(),
            timeline,
            down,
            plan: Arc::new(compiled),
            world,
        })
    }

    /// Simulates the service from an idle start until every request has its outcome. `arrivals` are the times at which
    /// clients send their requests, microseconds, ascending; one that goes back in time is taken for simultaneous with the one
    /// before it. Every run begins anew and gives the same report.
    pub fn run(&self, arrivals: impl Iterator<Item = u64>, observer: &mut impl Observer) -> Report {
        Engine::new(self, None, observer).run(arrivals)
    }

    /// The same, with a controller that plans again while the service runs. `profile` is the one that the simulator was made
    /// with: new plans are compiled against it.
    pub fn run_controlled(
        &self,
        arrivals: impl Iterator<Item = u64>,
        observer: &mut impl Observer,
        profile: &Profile,
        controller: &mut dyn Controller,
    ) -> Report {
        let replanning = Replanning::new(profile, controller);
        Engine::new(self, Some(replanning), observer).run(arrivals)
    }

    /// The names of the variants, as observers number them.
    pub fn variants(&self) -> &[String] {
        &self.world.variants.list
    }
}

#[cfg(test)]
mod tests;
