//! A discrete-event simulator of plans, profiles and traces (CascadeServe appendix C).

mod config;
mod histogram;
mod observer;
mod report;

pub use config::{Change, Power, ReplicaEvent, SimConfig, SimError};
pub use histogram::{LatencyHistogram, LatencySummary};
pub use observer::{Answered, Bucket, Observer, Run, Tick, Timeline};
pub use report::{DeviceReport, Report, SHIFTS_KEPT, Shift, VariantReport};

use crate::{plan::Plan, profile::Profile};

/// A plan, a profile and a configuration, compiled: names are numbers, and the way of every validation sample is known.
#[derive(Debug, Clone)]
pub struct Simulator {}

impl Simulator {
    /// Compiles a plan.
    ///
    /// # Errors
    /// A [`SimError`] that names what does not fit.
    pub fn new(plan: &Plan, _profile: &Profile, _config: &SimConfig) -> Result<Self, SimError> {
        plan.validate()?;
        Ok(Self {})
    }

    /// Simulates the service from an idle start until every request has its outcome. `arrivals` are the times of the
    /// requests, microseconds, ascending. Every run begins anew.
    pub fn run(&mut self, arrivals: impl Iterator<Item = u64>, _observer: &mut impl Observer) -> Report {
        Report {
            requests: arrivals.count() as u64,
            answered: 0,
            right: 0,
            expired: 0,
            refused: 0,
            failed: 0,
            lost: 0,
            latency: LatencyHistogram::default(),
            variants: Vec::new(),
            devices: Vec::new(),
            shifts: 0,
            shift_log: Vec::new(),
            max_in_flight: 0,
            max_places: 0,
            max_queue: 0,
            duration_us: 0,
            energy_j: None,
            events: 0,
        }
    }
}
