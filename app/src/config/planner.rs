//! The gear planner that runs while an app serves.

use std::num::NonZeroU32;
use std::path::PathBuf;

use kaskade_planners::demand::RunTimeOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, HumanDuration};

/// Gear planner that runs beside the ingress and answers `kaskade.<app>.replan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct GearPlannerConfig {
    /// Profile to plan from, relative to this file.
    pub profile: PathBuf,
    /// Memory of the device of workers that state none [default: `"16GB"`].
    #[serde(default = "sixteen_gigabytes")]
    pub memory: ByteSize,
    /// Time of a message between two actors [default: drawn from the quantiles of the profile; 100us if it has none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop_latency: Option<HumanDuration>,
    /// Number of load ranges, of equal width; each gets a gear.
    #[serde(default = "sixteen")]
    pub ranges: NonZeroU32,
    /// Time limit for one plan; the plan of a planner that takes longer is discarded.
    #[serde(default = "timeout")]
    pub timeout: HumanDuration,
    /// Whether to plan when the load drifts.
    #[serde(default)]
    pub replan_on_load_drift: bool,
    /// How run times reported by workers replace the profiled ones.
    #[serde(default)]
    pub run_times: RunTimeOptions,
    /// Period of planning [default: never].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<HumanDuration>,
}

fn sixteen_gigabytes() -> ByteSize {
    ByteSize::gigabytes(16)
}

fn sixteen() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(15)
}

fn timeout() -> HumanDuration {
    HumanDuration::from_millis(60_000)
}
