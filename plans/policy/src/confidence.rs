//! Confidence scores and their calibration (HybridServe §IV-A, CascadeServe §3).
//!
//! | module | holds |
//! |---|---|
//! | [`score`](self) | [`Scores`] to a confidence, once per reply |
//! | [`deferral`] | fitted scores that decide on escalation in place of the confidence |

pub mod deferral;
pub mod score;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::invalid::{Invalid, Path};

pub use score::Scores;

/// Function that computes a confidence from scores.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Estimator {
    /// `max(softmax(z / T)^2)` over the classes (HybridServe §IV-A, classification).
    MaxSquared,
    /// The same over the `k` strongest tokens, then the minimum over the answer's tokens (generation).
    TopK {
        /// Number of scores kept per token.
        k: u32,
    },
    /// The smaller of the start's and the end's confidence (extractive question answering).
    Span,
    /// First minus second probability (CascadeServe's certainty).
    Margin,
    /// The model's own output named `confidence`, a scalar in [0, 1].
    Given,
}

impl Estimator {
    /// The name that the plan file uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MaxSquared => "max_squared",
            Self::TopK { .. } => "top_k",
            Self::Span => "span",
            Self::Margin => "margin",
            Self::Given => "given",
        }
    }
}

/// An estimator and its fitted temperature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Function that computes a confidence from scores.
    pub estimator: Estimator,
    /// Temperature `T > 0` that the scores are divided by; 1 leaves them as they are.
    pub temperature: f64,
}

impl Calibration {
    /// The estimator without a fit: temperature 1.
    pub const fn uncalibrated(estimator: Estimator) -> Self {
        Self {
            estimator,
            temperature: 1.0,
        }
    }

    /// Checks the ranges of its figures.
    ///
    /// # Errors
    /// An [`Invalid`] with the path of the figure.
    pub(crate) fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        path.field("temperature").positive(self.temperature)?;
        match self.estimator {
            Estimator::TopK { k } => {
                let estimator = path.field("estimator");
                estimator.field("k").within(f64::from(k), k >= 2, "at least 2")
            }
            _ => Ok(()),
        }
    }
}

/// Why scores have no confidence.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ConfidenceError {
    /// There are no scores.
    #[error("the model gave no scores; a reply without scores has no confidence")]
    Empty,
    /// A single class is certain of itself whatever the input.
    #[error("one class only: softmax of a single score is always 1; give the scores of both classes")]
    OneClass,
    /// A score is NaN or infinite.
    #[error(
        "score {index} is {value}; NaN and infinite scores carry no confidence, check the model and its input"
    )]
    NotFinite {
        /// Position of the score.
        index: usize,
        /// The score.
        value: f32,
    },
    /// The token scores are not a whole number of vocabularies.
    #[error("{length} token scores do not divide into rows of {vocabulary}")]
    Ragged {
        /// Number of scores.
        length: usize,
        /// Scores per token.
        vocabulary: usize,
    },
    /// The probabilities are negative or do not sum to 1.
    #[error(
        "the probabilities sum to {sum} with the least at {least}; give a distribution, or call them logits"
    )]
    NotADistribution {
        /// Sum of the probabilities.
        sum: f64,
        /// Smallest probability.
        least: f64,
    },
    /// The model's own confidence is outside [0, 1].
    #[error("the model's own confidence is {value}, outside [0, 1]")]
    GivenOutOfRange {
        /// The confidence.
        value: f64,
    },
    /// The estimator does not read this kind of scores.
    #[error(
        "the estimator `{estimator}` does not read {scores}; name the estimator that fits the model's output"
    )]
    Mismatch {
        /// The estimator's name.
        estimator: &'static str,
        /// The kind of scores.
        scores: &'static str,
    },
    /// The temperature is not a positive number.
    #[error("temperature {temperature} is not a positive number; calibrate the variant again")]
    BadTemperature {
        /// The temperature.
        temperature: f64,
    },
    /// `top_k` with `k` below 2.
    #[error("top_k keeps {k} scores; fewer than 2 are always certain")]
    BadK {
        /// Number of scores kept.
        k: u32,
    },
    /// A label does not fit the scores.
    #[error("sample {sample}: {reason}")]
    BadLabel {
        /// Position of the sample.
        sample: usize,
        /// The error.
        reason: &'static str,
    },
    /// A validation sample has no confidence.
    #[error("sample {sample}: {cause}")]
    BadSample {
        /// Position of the sample.
        sample: usize,
        /// Why.
        cause: Box<ConfidenceError>,
    },
    /// Columns that must be of equal length are not, or there are no bins.
    #[error(
        "calibration error of {probabilities} probabilities, {correct} answers and {bins} bins is undefined"
    )]
    BadColumns {
        /// Number of probabilities.
        probabilities: usize,
        /// Number of right-or-wrong flags.
        correct: usize,
        /// Number of bins.
        bins: usize,
    },
}
