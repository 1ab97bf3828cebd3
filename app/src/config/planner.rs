//! Who makes other plans while an app serves.

use std::num::NonZeroU32;
use std::path::PathBuf;

use kaskade_planners::gears::Ablation;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Size, Span};

/// The planner that runs beside the doors, and answers `kaskade.<app>.replan`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PlannerRule {
    /// The profile that it plans from, relative to this file.
    pub profile: PathBuf,
    /// How it plans.
    #[serde(default)]
    pub policy: GearPolicy,
    /// Memory of each worker's device.
    #[serde(default = "sixteen_gigabytes")]
    pub memory: Size,
    /// Time of a message between two actors.
    #[serde(default = "hop")]
    pub hop: Span,
    /// Ranges of equal width that the loads are cut into.
    #[serde(default = "sixteen")]
    pub ranges: NonZeroU32,
    /// How long it may take before it is given up.
    #[serde(default = "limit")]
    pub limit: Span,
    /// Whether a drift of the load makes a new plan without anybody asking.
    #[serde(default)]
    pub on_drift: bool,
    /// How often a new plan is made without a request for one [default: never].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
}

/// What the gear planner may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GearPolicy {
    /// Cascades that change with the load (CascadeServe).
    #[default]
    Gears,
    /// One cascade for every load.
    NoSwitching,
    /// Single models, switched by load.
    NoCascade,
}

impl From<GearPolicy> for Ablation {
    fn from(policy: GearPolicy) -> Self {
        match policy {
            GearPolicy::Gears => Self::Full,
            GearPolicy::NoSwitching => Self::NoSwitching,
            GearPolicy::NoCascade => Self::NoCascade,
        }
    }
}

fn sixteen_gigabytes() -> Size {
    Size::gigabytes(16)
}

fn hop() -> Span {
    Span::from_micros(100)
}

fn sixteen() -> NonZeroU32 {
    NonZeroU32::MIN.saturating_add(15)
}

fn limit() -> Span {
    Span::from_millis(60_000)
}
