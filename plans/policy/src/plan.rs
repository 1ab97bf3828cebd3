//! The plan: placement of replicas, gears with their wiring, and batching.
//!
//! A plan is a file (JSON, versioned). The actors use the same types at run time, so no translation lies between the planner's
//! decision and serving.

mod builder;
mod certificate;
mod certified;
mod validate;
mod wiring;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::confidence::Calibration;
use crate::invalid::{self, FileError};

pub use crate::partition::Partition;
pub use crate::rerouting::Dropping;
pub use builder::{CascadeBuilder, Deferral, SOLE_WORKER, StageBuilder};
pub use certificate::{Certificate, Guarantee};
pub use certified::{CertifiedCascade, CertifiedList, ExpectedStage, MAX_CERTIFIED};
pub use wiring::{Band, Batching, Child, Edge, Exit, Profiled, Stage, Target, Wiring};

/// Version of the plan format that this build writes and reads.
pub const PLAN_VERSION: u32 = 1;

/// Placement, gears and calibrations of one app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Format version, now 1.
    pub version: u32,
    /// The app this plan serves.
    pub app: String,
    /// Planner and objective, for people: `cascade/ap seed=0`.
    pub made_by: String,
    /// The variants that the stages name, with their calibrations.
    pub variants: Vec<PlannedVariant>,
    /// Every replica and where it runs.
    pub placement: Vec<Replica>,
    /// How the replicas of one device share the device [default: `concurrent`].
    #[serde(default, skip_serializing_if = "Sharing::is_default")]
    pub sharing: Sharing,
    /// Treatment of late requests of a pipeline: which are dropped early or rerouted [default: `none`].
    #[serde(default, skip_serializing_if = "Dropping::is_none")]
    pub dropping: Dropping,
    /// Objective that the gears were planned for; absent if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo: Option<Slo>,
    /// Proven bound on the cascade's accuracy; absent if none was proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// The cascades that were certified together, for moving between them while serving; absent without a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certified: Option<CertifiedList>,
    /// Gears in ascending order of load; a static plan has one.
    pub gears: Vec<Gear>,
}

impl Plan {
    /// Reads a plan and checks it.
    ///
    /// # Errors
    /// A [`FileError`] if the text is not JSON, has other fields than a plan, or describes an unsound one.
    pub fn from_json(text: &str) -> Result<Self, FileError> {
        let plan: Self = invalid::read(text, "plan (`kaskade plan` writes one)", PLAN_VERSION)?;
        plan.validate()?;
        Ok(plan)
    }

    /// Checks a plan and writes it, indented and in a fixed order of fields, so that two plans can be compared line by line.
    ///
    /// # Errors
    /// [`FileError::Invalid`] if the plan is unsound: JSON has no NaN, and a file that cannot be read again is worse than none.
    pub fn to_json(&self) -> Result<String, FileError> {
        self.validate()?;
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Returns how many requests the replicas of the entry stage run at once with full batches, in the gear where these are most. Of an ensemble,
    /// the member that runs fewest counts, because a request waits for all.
    pub fn runs_at_once(&self) -> usize {
        let of_stage = |gear: &Gear, edge: &Edge| {
            let stage = gear.wiring.stages.iter().find(|stage| stage.name == edge.stage)?;
            let replicas = self.placement.iter().filter(|replica| stage.is_run_by(replica));
            Some(replicas.count() * stage.batching.max_batch as usize)
        };
        let of_gear = |gear: &Gear| {
            gear.wiring
                .members()
                .filter_map(|edge| of_stage(gear, edge))
                .min()
        };
        self.gears.iter().filter_map(of_gear).max().unwrap_or(0)
    }

    /// The JSON schema of a plan file, as committed in `docs/plan.schema.json`.
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}

/// A variant of the family, as served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedVariant {
    /// Name, unique in the plan.
    pub name: String,
    /// How the outputs of the variant become a confidence. Needed by every stage that exits by `bands` with more than one band.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
}

/// A running copy of a variant, or of one partition of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Replica {
    /// Unique in the plan; one NATS subject token.
    pub id: String,
    /// The variant it runs.
    pub variant: String,
    /// The worker that hosts it.
    pub worker: String,
    /// Device on that worker: `cpu`, `cuda:0`, ...
    pub device: String,
    /// The partition it holds; absent for the whole model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    /// Fingerprint of the checkpoint that was profiled; a worker refuses to load another one. Absent: it loads any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
}

impl Replica {
    /// A replica of a whole model.
    pub fn whole(
        id: impl Into<String>,
        variant: impl Into<String>,
        worker: impl Into<String>,
        device: impl Into<String>,
    ) -> Self {
        Self {
            id: id.into(),
            variant: variant.into(),
            worker: worker.into(),
            device: device.into(),
            partition: None,
            checkpoint: None,
        }
    }

    /// The replica with the fingerprint of the checkpoint that it must hold.
    #[must_use]
    pub fn with_checkpoint(self, checkpoint: Option<&str>) -> Self {
        Self {
            checkpoint: checkpoint.map(str::to_owned),
            ..self
        }
    }
}

/// Way in which the replicas of one device share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Every replica starts its batches independently; the device schedules them (HybridServe §V).
    #[default]
    Concurrent,
    /// One batch at a time on every device, in the order in which they fell due (CascadeServe appendix C).
    Exclusive,
}

impl Sharing {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A service-level objective (CascadeServe §3): one side is bounded, the other optimised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "on", rename_all = "snake_case", deny_unknown_fields)]
pub enum Slo {
    /// The 95th percentile of latency, microseconds; accuracy is maximised.
    Latency {
        /// Upper bound of the 95th percentile, microseconds.
        p95_us: u64,
    },
    /// The share of right answers, weighed by how common each load is; latency is minimised.
    Accuracy {
        /// Lower bound, in [0, 1].
        at_least: f64,
    },
}

/// A setting of the service, valid for a range of load (CascadeServe §3).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gear {
    /// Name for people and metrics, unique in the plan.
    pub name: String,
    /// The load it is meant for.
    pub load: LoadRange,
    /// The planner's estimates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Expected>,
    /// Edges between stages.
    pub wiring: Wiring,
}

impl Gear {
    /// The batching of a variant's replicas in this gear: that of its first stage. `None` if no stage runs the variant.
    pub fn batching(&self, variant: &str) -> Option<Batching> {
        let mut stages = self.wiring.stages.iter();
        stages
            .find(|stage| stage.variant == variant)
            .map(|stage| stage.batching)
    }
}

/// A planner's estimates of a gear at the upper end of its load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Share of time that the load is thought to spend in this range, in [0, 1]; the gears' shares sum to 1.
    pub time_share: f64,
    /// Share of right answers, in [0, 1].
    pub accuracy: f64,
    /// 95th percentile of latency, microseconds, simulated.
    pub p95_us: u64,
    /// Highest utilisation of any device, in [0, 1].
    pub utilisation: f64,
}

/// Half-open range of offered load, requests per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadRange {
    /// Inclusive lower end, requests/s.
    pub from_qps: f64,
    /// Exclusive upper end, requests/s; absent means unbounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_qps: Option<f64>,
}

impl LoadRange {
    /// The range that covers every load.
    pub const ALL: Self = Self {
        from_qps: 0.0,
        to_qps: None,
    };
}
