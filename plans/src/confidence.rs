//! Confidence scores and their calibration (HybridServe §IV-A, CascadeServe §3).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How scores become a confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Estimator {
    /// `max(softmax(z / T)^2)` over the classes (HybridServe §IV-A, classification).
    MaxSquared,
    /// The same over the `k` strongest tokens, then the minimum over the answer's tokens (generation).
    TopK {
        /// How many scores are kept per token.
        k: u32,
    },
    /// The smaller of the start's and the end's confidence (extractive question answering).
    Span,
    /// First minus second probability (CascadeServe's certainty).
    Margin,
    /// The model's own output named `confidence`, a scalar in [0, 1].
    Given,
}

/// An estimator and its fitted temperature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// How scores become a confidence.
    pub estimator: Estimator,
    /// Temperature `T > 0` that the scores are divided by; 1 leaves them as they are.
    pub temperature: f64,
}
