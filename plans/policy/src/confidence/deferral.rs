//! Scores by which a stage decides whether to escalate, in place of its calibrated confidence.
//!
//! A planner chooses and fits a [`DeferralScore`] per stage; the plan carries it as data, and the router evaluates it once per reply
//! in well under a microsecond. The value is in [0, 1] and compared with the stage's bands like a confidence: a small one escalates.

use std::collections::BTreeSet;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::{Invalid, Path, Problem};

/// Confidences are cut off this close to 0 and 1 before their log odds are taken, so that these stay finite.
const EDGE: f64 = 1e-6;

/// A fitted score of one stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DeferralScore {
    /// The probability of being right by Platt scaling: `sigmoid(intercept + slope * logit(confidence))`.
    Platt {
        /// Slope.
        slope: f64,
        /// Intercept.
        intercept: f64,
    },
    /// The probability of being right by isotonic regression: between two knots on the line between them, outside them the nearest one's.
    Isotonic {
        /// Knots by rising confidence.
        knots: Vec<Knot>,
    },
    /// The probability of being right by logistic regression over several features.
    Logistic {
        /// Log odds of being right.
        right: Linear,
    },
    /// The benefit of keeping the answer, `(1 + P(harm) - P(rescue)) / 2`. A rescue is a wrong answer that the later stage corrects, a harm a
    /// right one that it spoils.
    Benefit {
        /// Log odds that escalation corrects a wrong answer.
        rescue: Linear,
        /// Log odds that escalation spoils a right answer.
        harm: Linear,
    },
}

/// A point of an isotonic regression.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Knot {
    /// Calibrated confidence, in [0, 1].
    pub confidence: f64,
    /// Probability of being right, in [0, 1].
    pub right: f64,
}

/// Log odds that are linear in features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Linear {
    /// The log odds where every feature has its mean.
    pub intercept: f64,
    /// Terms, one per feature.
    pub terms: Vec<Term>,
}

/// `weight * (feature - mean)`; 0 where a result lacks the feature.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// The feature.
    pub feature: Feature,
    /// Weight of the feature.
    pub weight: f64,
    /// Mean of the feature on the samples that the score was fitted on.
    pub mean: f64,
}

/// Input of a score.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Feature {
    /// Log odds of the stage's calibrated confidence.
    Confidence,
    /// First minus second probability of the stage, in [0, 1].
    Margin,
    /// Entropy of the stage's distribution as a share of the largest possible, in [0, 1].
    Entropy,
    /// `ln(1 + bytes)` of the request's inputs.
    Length,
    /// 1 if the stage answers with this class, else 0.
    Answer(u32),
    /// Log odds of the calibrated confidence of an earlier stage.
    EarlierConfidence(String),
    /// 1 if an earlier stage gave the same answer, else 0.
    Agrees(String),
    /// Log odds of the calibrated confidence of an earlier stage: as they are if it gave the same answer, negative if another.
    Support(String),
}

impl Feature {
    /// The earlier stage that it reads; `None` for a feature of the stage itself.
    pub fn earlier_variant(&self) -> Option<&str> {
        match self {
            Self::EarlierConfidence(stage) | Self::Agrees(stage) | Self::Support(stage) => Some(stage),
            Self::Confidence | Self::Margin | Self::Entropy | Self::Length | Self::Answer(_) => None,
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Confidence => f.write_str("confidence"),
            Self::Margin => f.write_str("margin"),
            Self::Entropy => f.write_str("entropy"),
            Self::Length => f.write_str("length"),
            Self::Answer(class) => write!(f, "answer {class}"),
            Self::EarlierConfidence(stage) => write!(f, "confidence of {stage}"),
            Self::Agrees(stage) => write!(f, "agreement with {stage}"),
            Self::Support(stage) => write!(f, "support by {stage}"),
        }
    }
}

/// The answer of a stage that a request has passed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScoredSample {
    /// Calibrated confidence of the answer, in [0, 1].
    pub confidence: f64,
    /// A number for its answer, the same for the same answer: the class, or [`number_of_text`].
    pub answer: u32,
}

/// The result of a stage, as a score reads it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evidence {
    /// Calibrated confidence and answer.
    pub judged: ScoredSample,
    /// Margin and entropy; absent for outputs that are no class scores.
    pub spread: Option<ClassSpread>,
    /// Bytes of the request's inputs; absent if unknown.
    pub input_bytes: Option<usize>,
}

/// Statistics of a distribution over classes, at the calibrated temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassSpread {
    /// First minus second probability, in [0, 1].
    pub margin: f64,
    /// Entropy over `ln` of the number of classes, in [0, 1].
    pub entropy: f64,
}

impl ClassSpread {
    /// Computes the spread of class logits divided by a temperature; `None` for fewer than two logits or one that is not finite.
    pub fn from_logits(logits: &[f32], temperature: f64) -> Option<Self> {
        if logits.len() < 2 || !logits.iter().all(|logit| logit.is_finite()) || temperature <= 0.0 {
            return None;
        }
        let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut total, mut weighted, mut first, mut second) = (0.0, 0.0, 0.0_f64, 0.0_f64);
        for logit in logits {
            let below = f64::from(*logit - top) / temperature;
            let weight = below.exp();
            total += weight;
            weighted += weight * below;
            if weight > first {
                (first, second) = (weight, first);
            } else {
                second = second.max(weight);
            }
        }
        let entropy = (total.ln() - weighted / total) / (logits.len() as f64).ln();
        Some(Self {
            margin: (first - second) / total,
            entropy: entropy.clamp(0.0, 1.0),
        })
    }
}

/// Returns the number of a text as an answer: its FNV-1a hash.
pub fn number_of_text(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// Log odds of a probability, finite.
pub fn log_odds(probability: f64) -> f64 {
    let inside = probability.clamp(EDGE, 1.0 - EDGE);
    (inside / (1.0 - inside)).ln()
}

/// The probability of log odds.
pub fn sigmoid(log_odds: f64) -> f64 {
    1.0 / (1.0 + (-log_odds).exp())
}

/// Returns a feature's value, or `None` if the result lacks it. `earlier` finds the answer of a stage that the request has passed.
pub fn value(
    feature: &Feature,
    evidence: &Evidence,
    earlier: impl Fn(&str) -> Option<ScoredSample>,
) -> Option<f64> {
    let indicator = |holds: bool| f64::from(u8::from(holds));
    let same = |other: ScoredSample| other.answer == evidence.judged.answer;
    match feature {
        Feature::Confidence => Some(log_odds(evidence.judged.confidence)),
        Feature::Margin => evidence.spread.map(|spread| spread.margin),
        Feature::Entropy => evidence.spread.map(|spread| spread.entropy),
        Feature::Length => evidence.input_bytes.map(|bytes| (bytes as f64).ln_1p()),
        Feature::Answer(class) => Some(indicator(evidence.judged.answer == *class)),
        Feature::EarlierConfidence(stage) => earlier(stage).map(|other| log_odds(other.confidence)),
        Feature::Agrees(stage) => earlier(stage).map(|other| indicator(same(other))),
        Feature::Support(stage) => earlier(stage).map(|other| {
            let odds = log_odds(other.confidence);
            if same(other) { odds } else { -odds }
        }),
    }
}

impl Linear {
    /// `first` is the place of the first term among those of the score.
    fn log_odds(&self, first: usize, value: impl Fn(usize, &Term) -> Option<f64>) -> f64 {
        (first..)
            .zip(&self.terms)
            .fold(self.intercept, |sum, (place, term)| {
                let value = value(place, term);
                sum + value.map_or(0.0, |value| term.weight * (value - term.mean))
            })
    }

    fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        path.field("intercept").finite(self.intercept)?;
        let terms = path.field("terms");
        let mut seen = BTreeSet::new();
        for (index, term) in self.terms.iter().enumerate() {
            let path = terms.index(index);
            path.field("weight").finite(term.weight)?;
            path.field("mean").finite(term.mean)?;
            if let Some(stage) = term.feature.earlier_variant() {
                path.field("feature").name(stage)?;
            }
            if !seen.insert(&term.feature) {
                return path.field("feature").fail(Problem::Twice {
                    name: format!("{:?}", term.feature),
                });
            }
        }
        Ok(())
    }
}

impl DeferralScore {
    /// The name that the plan file uses.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Platt { .. } => "platt",
            Self::Isotonic { .. } => "isotonic",
            Self::Logistic { .. } => "logistic",
            Self::Benefit { .. } => "benefit",
        }
    }

    /// Evaluates the score, in [0, 1]. `earlier` finds the answer of a stage that the request has passed, by the stage's name; a
    /// missing one counts as average.
    pub fn evaluate(&self, evidence: &Evidence, earlier: impl Fn(&str) -> Option<ScoredSample>) -> f64 {
        self.evaluate_terms(evidence.judged.confidence, |_, term| {
            value(&term.feature, evidence, &earlier)
        })
    }

    /// Evaluates the score from the values of its features, in [0, 1]. `value` gets the place of a term in [`terms`](Self::terms), and the term.
    pub fn evaluate_terms(&self, confidence: f64, value: impl Fn(usize, &Term) -> Option<f64>) -> f64 {
        let score = match self {
            Self::Platt { slope, intercept } => sigmoid(intercept + slope * log_odds(confidence)),
            Self::Isotonic { knots } => interpolate(knots, confidence),
            Self::Logistic { right } => sigmoid(right.log_odds(0, value)),
            Self::Benefit { rescue, harm } => {
                let kept = sigmoid(harm.log_odds(rescue.terms.len(), &value));
                f64::midpoint(1.0, kept - sigmoid(rescue.log_odds(0, value)))
            }
        };
        score.clamp(0.0, 1.0)
    }

    /// The features that it reads, in order; a feature that both parts of a benefit read comes twice.
    pub fn terms(&self) -> impl Iterator<Item = &Term> {
        let (first, second): (&[Term], &[Term]) = match self {
            Self::Platt { .. } | Self::Isotonic { .. } => (&[], &[]),
            Self::Logistic { right } => (&right.terms, &[]),
            Self::Benefit { rescue, harm } => (&rescue.terms, &harm.terms),
        };
        first.iter().chain(second)
    }

    /// The score with other names for the earlier stages that it reads.
    #[must_use]
    pub fn with_renamed_variants(mut self, renamed: impl Fn(&str) -> String) -> Self {
        let parts: [Option<&mut Linear>; 2] = match &mut self {
            Self::Platt { .. } | Self::Isotonic { .. } => [None, None],
            Self::Logistic { right } => [Some(right), None],
            Self::Benefit { rescue, harm } => [Some(rescue), Some(harm)],
        };
        for term in parts.into_iter().flatten().flat_map(|part| &mut part.terms) {
            if let Feature::EarlierConfidence(stage) | Feature::Agrees(stage) | Feature::Support(stage) =
                &mut term.feature
            {
                *stage = renamed(stage);
            }
        }
        self
    }

    /// Returns whether it reads the answers of earlier stages.
    pub fn reads_earlier(&self) -> bool {
        self.terms().any(|term| term.feature.earlier_variant().is_some())
    }

    /// Checks its figures.
    ///
    /// # Errors
    /// An [`Invalid`] with the path of the figure.
    pub(crate) fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        match self {
            Self::Platt { slope, intercept } => {
                path.field("slope").not_negative(*slope)?;
                path.field("intercept").finite(*intercept)
            }
            Self::Isotonic { knots } => {
                let path = path.field("knots");
                path.not_empty(knots)?;
                let mut before: Option<Knot> = None;
                for (index, knot) in knots.iter().enumerate() {
                    let path = path.index(index);
                    path.field("confidence").unit_interval(knot.confidence)?;
                    path.field("right").unit_interval(knot.right)?;
                    let rises = before
                        .is_none_or(|last| knot.confidence > last.confidence && knot.right >= last.right);
                    path.within(knot.confidence, rises, "a knot above the one before it")?;
                    before = Some(*knot);
                }
                Ok(())
            }
            Self::Logistic { right } => right.check(&path.field("right")),
            Self::Benefit { rescue, harm } => {
                rescue.check(&path.field("rescue"))?;
                harm.check(&path.field("harm"))
            }
        }
    }
}

fn interpolate(knots: &[Knot], confidence: f64) -> f64 {
    let above = knots.partition_point(|knot| knot.confidence <= confidence);
    let before = above.checked_sub(1).and_then(|place| knots.get(place));
    match (before, knots.get(above)) {
        (Some(low), Some(high)) => {
            let way = (confidence - low.confidence) / (high.confidence - low.confidence);
            low.right + way * (high.right - low.right)
        }
        (Some(only), None) | (None, Some(only)) => only.right,
        (None, None) => confidence,
    }
}

#[cfg(test)]
mod tests;
