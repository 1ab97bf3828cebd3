//! The profile: the measurements of every variant. Planners read nothing else about a model.

pub mod hop;
mod quantiles;
mod scored;
mod validate;

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::confidence::{Calibration, Estimator};
use crate::invalid::{self, FileError};
use crate::remote::price::CostSource;
use crate::text_metrics::TextComparison;
pub use hop::{HopAtRate, HopTime};
pub use quantiles::LatencyQuantiles;
pub use scored::StageConfidences;

/// Version of the profile format that this build writes and reads.
pub const PROFILE_VERSION: u32 = 1;

/// Device and source of the joules of a profile that was not measured.
const NOT_MEASURED: &str = "not measured";

/// Measurements of a family on one device, over one validation set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Format version, now 1.
    pub version: u32,
    /// The app the family serves.
    pub app: String,
    /// Device it was measured on, for people: `cpu (2 cores)`, `cuda:0 NVIDIA H200`.
    pub device: String,
    /// Source of the joules.
    pub energy_source: String,
    /// Estimator of the samples' confidences.
    pub estimator: Estimator,
    /// Number of validation samples; every variant has exactly this many.
    pub samples: usize,
    /// The variant whose answers count as right, or the command of the program that judged; absent for labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Comparison of texts; absent if texts must be the same, or answers are no texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<TextComparison>,
    /// Time of a message between two actors; absent if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hop: Option<HopTime>,
    /// Time from the end of a batch to the start of the next while requests wait, seconds (median); absent if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turnaround_s: Option<f64>,
    /// Bytes of each validation sample's inputs; absent if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_bytes: Vec<u32>,
    /// Number of validation samples whose inputs are those of an earlier one; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<usize>,
    /// Share of the processors' time that other processes used during the measurement, in [0, 1]: times of a busy host are too long. Absent if
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_load: Option<f64>,
    /// The family, smallest to largest.
    pub variants: Vec<VariantProfile>,
}

impl Profile {
    /// A profile of these variants whose other figures were not measured; its samples are those of the first variant.
    pub fn new(app: impl Into<String>, estimator: Estimator, variants: Vec<VariantProfile>) -> Self {
        let samples = variants.first().map_or(0, |first| first.validation.correct.len());
        Self {
            version: PROFILE_VERSION,
            app: app.into(),
            device: NOT_MEASURED.to_owned(),
            energy_source: NOT_MEASURED.to_owned(),
            estimator,
            samples,
            judge: None,
            texts: None,
            hop: None,
            turnaround_s: None,
            input_bytes: Vec::new(),
            repeats: None,
            other_load: None,
            variants,
        }
    }

    /// Reads a profile and checks it.
    ///
    /// # Errors
    /// A [`FileError`] if the text is not JSON, has other fields than a profile, or describes an unsound one.
    pub fn from_json(text: &str) -> Result<Self, FileError> {
        let profile: Self = invalid::read(text, "profile (`kaskade profile` writes one)", PROFILE_VERSION)?;
        profile.validate()?;
        Ok(profile)
    }

    /// Checks a profile and writes it. Not indented: its columns have thousands of entries.
    ///
    /// # Errors
    /// [`FileError::Invalid`] if the profile is unsound.
    pub fn to_json(&self) -> Result<String, FileError> {
        self.validate()?;
        Ok(serde_json::to_string(self)? + "\n")
    }

    /// Returns the fingerprint of the checkpoint that was measured as this variant, if it has one.
    pub fn checkpoint(&self, variant: &str) -> Option<&str> {
        let measured = self.variants.iter().find(|measured| measured.name == variant)?;
        measured.checkpoint.as_deref()
    }

    /// The time between two batches, microseconds; 0 if it was not measured.
    pub fn turnaround_us(&self) -> u64 {
        (self.turnaround_s.unwrap_or_default() * 1e6).round() as u64
    }

    /// The JSON schema of a profile file, as committed in `docs/profile.schema.json`.
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}

/// Measurements of one variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VariantProfile {
    /// Name, unique in the family.
    pub name: String,
    /// Number of weights.
    pub parameters: u64,
    /// Fingerprint of the measured checkpoint and the type of its weights; absent if it has no files here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Number of layers by which it can be split: the most partitions, 1 for a model that is served whole only. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<NonZeroU32>,
    /// Cost by batch size, ascending, at least one.
    pub costs: Vec<BatchCost>,
    /// Cost of a request in money. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<Money>,
    /// How the outputs of the variant become a confidence.
    pub calibration: Calibration,
    /// Expected calibration error before and after the fit, in [0, 1].
    pub ece: BeforeAfter,
    /// Answers of the variant on the validation set, in the set's order.
    pub validation: Validation,
}

impl VariantProfile {
    /// A variant of one weight, without a cost in money and without calibration errors.
    pub fn new(
        name: impl Into<String>,
        calibration: Calibration,
        costs: Vec<BatchCost>,
        validation: Validation,
    ) -> Self {
        Self {
            name: name.into(),
            parameters: 1,
            checkpoint: None,
            layers: None,
            costs,
            money: None,
            calibration,
            ece: BeforeAfter::default(),
            validation,
        }
    }
}

/// Cost of a request in money, in one currency for the whole family.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Money {
    /// Mean over the validation set.
    pub per_request: f64,
    /// Source of the cost.
    pub source: CostSource,
}

/// A figure before and after a step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BeforeAfter {
    /// Figure before the step.
    pub before: f64,
    /// Figure after the step.
    pub after: f64,
}

/// Cost of one batch. Absent figures are unknown, not zero.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCost {
    /// Requests in the batch.
    pub batch: u32,
    /// Latency of the batch, seconds (median).
    pub latency_s: f64,
    /// Quantiles of the latency; absent if too few batches were run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<LatencyQuantiles>,
    /// Energy of the batch, joules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_j: Option<f64>,
    /// Active memory, bytes (`w_i(b)`, HybridServe §V).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Share of the device kept busy while it runs, in [0, 1] (`u_i(b)`, HybridServe §V).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation: Option<f64>,
}

impl BatchCost {
    /// A batch of which only the latency is known.
    pub const fn new(batch: u32, latency_s: f64) -> Self {
        Self {
            batch,
            latency_s,
            quantiles: None,
            energy_j: None,
            memory_bytes: None,
            utilisation: None,
        }
    }
}

/// Answers on the validation set, as columns of equal length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Predicted class (or 0 where the task has none).
    pub predictions: Vec<u32>,
    /// Calibrated confidence, in [0, 1].
    pub confidences: Vec<f64>,
    /// Whether the answer was right.
    pub correct: Vec<bool>,
    /// First minus second probability at the calibrated temperature, in [0, 1]; absent for answers that are no classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub margins: Vec<f64>,
    /// Entropy of the classes at the calibrated temperature over the largest possible, in [0, 1]; absent like the margins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entropies: Vec<f64>,
    /// Whether its answer counts as the largest variant's by the profile's `texts`; absent without that.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agrees: Vec<bool>,
}

impl Validation {
    /// Answers without the optional columns.
    pub const fn new(predictions: Vec<u32>, confidences: Vec<f64>, correct: Vec<bool>) -> Self {
        Self {
            predictions,
            confidences,
            correct,
            margins: Vec::new(),
            entropies: Vec::new(),
            agrees: Vec::new(),
        }
    }
}
