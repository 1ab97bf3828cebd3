//! A discrete-event simulator of plans, profiles and traces (CascadeServe appendix C).
//!
//! It calls the policies that the actors call: batching, routing, shares and backups, gear choice, resends, admission. What it
//! adds is what the actors find in the world: time, devices, the broker, failures. Request number `n` carries validation
//! sample `n mod samples`, and takes the way that this sample's recorded confidence takes.
//!
//! What is taken for true:
//! - A batch takes what the profile measured for its size ([`crate::fit::batch_latency_s`]); a partition takes its part of
//!   that. Replicas that share a device [concurrently](crate::plan::Sharing::Concurrent) do not slow each other down.
//! - A request joins a queue one hop after it was sent on, and its replica is chosen there and then. All hops between stages
//!   take equally long.
//! - An edge without shares leads to any living replica of the stage's variant with equal chance, as the broker's queue group
//!   does. That the actors prefer a near replica ([`crate::routing::prefer_local`]) is not simulated: who is near is not
//!   part of a plan.
//! - A replica that fails takes its queue and its batch with it. Until the failure is noticed, the broker refuses what the
//!   shares send there; what was lost is sent again afterwards, from the entry, as [`crate::ledger`] allows.
//! - Every request of the trace needs its place only while it is in flight.

mod batches;
mod compile;
mod config;
mod control;
mod engine;
mod events;
mod fleet;
mod flights;
mod histogram;
mod names;
mod observer;
mod report;
mod run_times;

pub use config::{Change, Power, ReplicaEvent, SimConfig, SimError};
pub use histogram::{LatencyHistogram, LatencySummary};
pub use observer::{Answered, Bucket, Observer, Run, Tick, Timeline};
pub use report::{DeviceReport, Report, SHIFTS_KEPT, Shift, VariantReport};

use std::collections::BTreeMap;

use compile::Compiled;
use control::{Control, Happening};
use engine::Engine;

use crate::plan::{Plan, Sharing};
use crate::profile::Profile;
use crate::shifting::Shifter;

/// A plan, a profile and a configuration, compiled: names are numbers, and the way of every validation sample is known.
#[derive(Debug, Clone)]
pub struct Simulator {
    plan: Compiled,
    shifter: Shifter,
    sharing: Sharing,
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
        let compiled = Compiled::new(plan, profile, config)?;
        let ids = compiled.replicas.iter().map(|replica| replica.id.as_str());
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
            sharing: plan.sharing,
            config: config.clone(),
            timeline,
            down,
            plan: compiled,
        })
    }

    /// Simulates the service from an idle start until every request has its outcome. `arrivals` are the times at which
    /// clients send their requests, microseconds, ascending; one that goes back in time is taken for simultaneous with the one
    /// before it. Every run begins anew and gives the same report.
    pub fn run(&self, arrivals: impl Iterator<Item = u64>, observer: &mut impl Observer) -> Report {
        let control = Control::new(self.shifter.clone(), &self.config, &self.timeline);
        let engine = Engine::new(
            &self.plan,
            &self.config,
            self.sharing,
            &self.down,
            control,
            observer,
        );
        engine.run(arrivals)
    }

    /// The names of the variants, as observers number them.
    pub fn variants(&self) -> &[String] {
        &self.plan.variants
    }
}

#[cfg(test)]
mod tests;
