//! Messages about gears, load and plans.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::lists::at_most;
use super::{FanOuts, MAX_GEARS, Message, Runs};

/// Sets the current gear.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GearShift {
    /// The plan of the gear; a shift for another epoch is ignored.
    pub epoch: u64,
    /// Index of the gear in that plan.
    pub gear: u32,
}

impl Message for GearShift {
    const NAME: &'static str = "GearShift";
}

/// An ingress's arrival count, published every tick (CascadeServe §5). It is a running total, so a lost message is
/// harmless.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoadCount {
    /// The ingress.
    pub ingress: String,
    /// Requests received since its start, accepted or not.
    pub arrivals: u64,
}

impl Message for LoadCount {
    const NAME: &'static str = "LoadCount";
}

/// A gear shift with its reason, for people and dashboards.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ShiftReport {
    /// Epoch of the running plan.
    pub epoch: u64,
    /// The previous gear.
    pub from: u32,
    /// The new gear.
    pub to: u32,
    /// Measured load, requests/s.
    pub qps: f64,
    /// Number of requests queued for the first stage.
    pub first_queue: u64,
}

impl Message for ShiftReport {
    const NAME: &'static str = "ShiftReport";
}

/// Notice that the load has drifted from the plan (CascadeServe appendix C.2).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LoadDriftNotice {
    /// Epoch of the running plan.
    pub epoch: u64,
    /// Total variation distance between the measured and the planned distribution of load, in [0, 1].
    pub distance: f64,
    /// Measured share of time in the load range of each gear.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// Load of the busiest second of the last minutes, requests/s ([`kaskade_policy::load_drift::LoadDrift::peak_qps`]).
    pub peak_qps: f64,
}

impl Message for LoadDriftNotice {
    const NAME: &'static str = "LoadDriftNotice";
}

/// Requests a new plan from the planner.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PlanRequest {
    /// The reason, for the log.
    #[serde(default)]
    pub reason: String,
    /// Highest load to plan for, requests/s; `None` uses the planner's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_qps: Option<f64>,
    /// Measured share of time in the load range of each running gear; empty uses the planner's prior.
    #[serde(default, deserialize_with = "at_most::<_, _, MAX_GEARS>")]
    pub measured: Vec<f64>,
    /// Fan-outs by worker and variant since the worker started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fan_outs: BTreeMap<String, BTreeMap<String, FanOuts>>,
    /// Batches by worker and variant since the worker started.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub runs: BTreeMap<String, BTreeMap<String, Runs>>,
    /// Observation of the load for a planner that decides by itself when to plan; `None` for a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Observation>,
}

/// The load as observed by a planner.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Observation {
    /// Time on the planner's clock, microseconds.
    pub at_us: u64,
    /// Requests received by the ingresses since the planner subscribed.
    pub arrivals: u64,
    /// The live workers; empty before the first heartbeat.
    #[serde(default)]
    pub workers: Vec<String>,
}

impl Message for PlanRequest {
    const NAME: &'static str = "PlanRequest";
}

/// Outcome of a planning run. The running plan changes only with `Adopted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum PlanReport {
    /// The new plan was adopted.
    Adopted {
        /// Epoch of the new plan.
        epoch: u64,
    },
    /// The new plan equals the running one.
    Unchanged {
        /// The running epoch.
        epoch: u64,
    },
    /// No plan was found, or the one found is invalid.
    Refused {
        /// The reason.
        reason: String,
    },
    /// The planner panicked.
    Crashed,
    /// The planning function exceeded its time limit.
    TimedOut {
        /// The limit, milliseconds.
        limit_ms: u64,
    },
    /// Another plan was written first.
    Stale {
        /// The newest epoch.
        newest: Option<u64>,
    },
    /// The planner is already planning.
    Busy,
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adopted { epoch } => write!(f, "a new plan is running, epoch {epoch}"),
            Self::Unchanged { epoch } => write!(f, "the running plan, epoch {epoch}, is still the best one"),
            Self::Refused { reason } => write!(f, "no new plan: {reason}"),
            Self::Crashed => f.write_str("no new plan: the planner crashed; its log says where"),
            Self::TimedOut { limit_ms } => write!(
                f,
                "no new plan: not done within {limit_ms} ms; raise `planner.timeout` or plan fewer ranges"
            ),
            Self::Stale { newest: Some(epoch) } => {
                write!(f, "no new plan: another one was stored first, epoch {epoch}")
            }
            Self::Stale { newest: None } => f.write_str("no new plan: another one was stored first"),
            Self::Busy => {
                f.write_str("no new plan: the planner is busy with another request; ask again later")
            }
        }
    }
}

impl Message for PlanReport {
    const NAME: &'static str = "PlanReport";
}

/// Announces a new plan in the plan store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PlanNotice {
    /// Epoch of the plan.
    pub epoch: u64,
}

impl Message for PlanNotice {
    const NAME: &'static str = "PlanNotice";
}
