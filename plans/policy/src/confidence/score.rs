//! Computes a confidence from scores. This runs once per reply, so it makes two passes over the scores and allocates nothing (except for
//! `top_k` beyond `INLINE_K`).

use super::{Calibration, ConfidenceError, Estimator};

/// The largest `k` for which the strongest scores are kept on the stack.
const INLINE_K: usize = 64;

/// Tolerance of the sum of a distribution around 1. Half-precision models round every class, so the tolerance is wide.
const SUM_SLACK: f64 = 2e-2;

/// A model's output for one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scores<'a> {
    /// Unnormalised scores, one per class.
    Logits(&'a [f32]),
    /// A distribution over the classes.
    Probabilities(&'a [f32]),
    /// Unnormalised scores of every position as the answer's start and as its end.
    Span {
        /// Start scores, one per position.
        start: &'a [f32],
        /// End scores, one per position.
        end: &'a [f32],
    },
    /// Unnormalised scores of the vocabulary for every generated token, `[tokens, vocabulary]` row by row.
    Tokens {
        /// `tokens * vocabulary` scores.
        logits: &'a [f32],
        /// Scores per token.
        vocabulary: usize,
    },
    /// The model's own confidence.
    Given(f64),
}

impl Scores<'_> {
    /// The name of the kind of scores, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Logits(_) => "class logits",
            Self::Probabilities(_) => "class probabilities",
            Self::Span { .. } => "span logits",
            Self::Tokens { .. } => "token logits",
            Self::Given(_) => "a given confidence",
        }
    }
}

impl Calibration {
    /// The confidence in [0, 1] that a reply with these scores is right (HybridServe §IV-A).
    ///
    /// It orders replies and is compared with thresholds; it is no probability (the squared estimators are not meant to
    /// be). [`Calibration::probability`] is.
    ///
    /// # Errors
    /// A [`ConfidenceError`] if the scores are empty, NaN, infinite, ragged, or not what the estimator reads: such a reply
    /// has no confidence at all, and in particular not a high one.
    pub fn confidence(&self, scores: &Scores<'_>) -> Result<f64, ConfidenceError> {
        let softmax = Softmax::new(self.temperature)?;
        match (self.estimator, scores) {
            (Estimator::MaxSquared, Scores::Logits(z)) => Ok(softmax.top_two(z, logit, 2)?.first.powi(2)),
            (Estimator::MaxSquared, Scores::Probabilities(p)) => {
                check_distribution(p)?;
                Ok(softmax.top_two(p, log_probability, 2)?.first.powi(2))
            }
            (Estimator::Margin, Scores::Logits(z)) => Ok(softmax.top_two(z, logit, 2)?.margin()),
            (Estimator::Margin, Scores::Probabilities(p)) => {
                check_distribution(p)?;
                Ok(softmax.top_two(p, log_probability, 2)?.margin())
            }
            (Estimator::TopK { k }, Scores::Logits(z)) => Ok(softmax.top_k(z, k)?.powi(2)),
            (Estimator::TopK { k }, Scores::Tokens { logits, vocabulary }) => over_tokens(
                logits,
                *vocabulary,
                |row| Ok(softmax.top_k(row, k)?.powi(2)),
                f64::min,
            ),
            (Estimator::Span, Scores::Span { start, end }) => {
                check_span(start, end)?;
                let start = softmax.top_two(start, logit, 1)?.first.powi(2);
                let end = softmax.top_two(end, logit, 1)?.first.powi(2);
                Ok(start.min(end))
            }
            (Estimator::Given, Scores::Given(value)) => check_given(*value),
            (estimator, scores) => Err(mismatch(estimator, scores)),
        }
    }

    /// The probability that the prediction is right, as the model sees it: this, and not the confidence, is what
    /// temperature scaling calibrates and what the calibration error is measured of.
    ///
    /// The largest softmax for classes; the product over start and end, or over the tokens, where several choices must all
    /// be right; the value itself where the model gives one.
    ///
    /// # Errors
    /// As [`Calibration::confidence`].
    pub fn probability(&self, scores: &Scores<'_>) -> Result<f64, ConfidenceError> {
        let softmax = Softmax::new(self.temperature)?;
        match (self.estimator, scores) {
            (Estimator::MaxSquared | Estimator::Margin | Estimator::TopK { .. }, Scores::Logits(z)) => {
                Ok(softmax.top_two(z, logit, 2)?.first)
            }
            (Estimator::MaxSquared | Estimator::Margin, Scores::Probabilities(p)) => {
                check_distribution(p)?;
                Ok(softmax.top_two(p, log_probability, 2)?.first)
            }
            (Estimator::TopK { .. }, Scores::Tokens { logits, vocabulary }) => {
                let row = |row: &[f32]| Ok(softmax.top_two(row, logit, 2)?.first);
                over_tokens(logits, *vocabulary, row, |a, b| a * b)
            }
            (Estimator::Span, Scores::Span { start, end }) => {
                check_span(start, end)?;
                Ok(softmax.top_two(start, logit, 1)?.first * softmax.top_two(end, logit, 1)?.first)
            }
            (Estimator::Given, Scores::Given(value)) => check_given(*value),
            (estimator, scores) => Err(mismatch(estimator, scores)),
        }
    }
}

/// An untransformed logit.
pub fn logit(z: f32) -> f64 {
    f64::from(z)
}

/// The logit of a probability. Softmax of it is the probability again; zero gets the floor of the type, so that it stays
/// (next to) zero under every temperature without becoming infinite.
pub fn log_probability(p: f32) -> f64 {
    f64::from(p.max(f32::MIN_POSITIVE)).ln()
}

/// The two largest probabilities.
struct Top {
    first: f64,
    second: f64,
}

impl Top {
    fn margin(&self) -> f64 {
        (self.first - self.second).max(0.0)
    }
}

/// A softmax with a checked temperature.
#[derive(Clone, Copy)]
struct Softmax {
    temperature: f64,
}

impl Softmax {
    fn new(temperature: f64) -> Result<Self, ConfidenceError> {
        if temperature.is_finite() && temperature > 0.0 {
            Ok(Self { temperature })
        } else {
            Err(ConfidenceError::BadTemperature { temperature })
        }
    }

    /// `exp((z - max) / T)`, in [0, 1] whatever the scores.
    fn weight(self, z: f64, max: f64) -> f64 {
        ((z - max) / self.temperature).exp()
    }

    fn top_two(
        self,
        scores: &[f32],
        logit: impl Fn(f32) -> f64,
        least: usize,
    ) -> Result<Top, ConfidenceError> {
        check(scores, least)?;
        let mut first = f64::NEG_INFINITY;
        let mut second = f64::NEG_INFINITY;
        for &score in scores {
            let z = logit(score);
            if z > first {
                second = first;
                first = z;
            } else if z > second {
                second = z;
            }
        }
        let total: f64 = scores.iter().map(|&score| self.weight(logit(score), first)).sum();
        Ok(Top {
            first: 1.0 / total,
            second: self.weight(second, first) / total,
        })
    }

    /// The largest probability once only the `k` strongest scores take part: over a whole vocabulary the strongest token
    /// drowns in tens of thousands of weak ones.
    fn top_k(self, scores: &[f32], k: u32) -> Result<f64, ConfidenceError> {
        if k < 2 {
            return Err(ConfidenceError::BadK { k });
        }
        check(scores, 2)?;
        let k = k as usize;
        if k >= scores.len() {
            return self.top_of(scores);
        }
        if k <= INLINE_K {
            let mut kept = [f32::NEG_INFINITY; INLINE_K];
            let (kept, _) = kept.split_at_mut(k);
            keep_strongest(kept, scores);
            self.top_of(kept)
        } else {
            let mut sorted = scores.to_vec();
            let (strongest, _, _) = sorted.select_nth_unstable_by(k, |a, b| b.total_cmp(a));
            self.top_of(strongest)
        }
    }

    fn top_of(self, scores: &[f32]) -> Result<f64, ConfidenceError> {
        Ok(self.top_two(scores, logit, 2)?.first)
    }
}

/// Fills `kept` (descending) with the strongest of `scores`, by insertion: most scores fail the first comparison.
fn keep_strongest(kept: &mut [f32], scores: &[f32]) {
    for &score in scores {
        if kept.last().is_some_and(|weakest| score > *weakest) {
            let place = kept.partition_point(|other| *other >= score);
            if let Some(tail) = kept.get_mut(place..) {
                tail.rotate_right(1);
                if let Some(slot) = tail.first_mut() {
                    *slot = score;
                }
            }
        }
    }
}

fn over_tokens(
    logits: &[f32],
    vocabulary: usize,
    row: impl Fn(&[f32]) -> Result<f64, ConfidenceError>,
    fold: impl Fn(f64, f64) -> f64,
) -> Result<f64, ConfidenceError> {
    check_tokens(logits, vocabulary)?;
    logits
        .chunks_exact(vocabulary)
        .try_fold(1.0, |so_far, token| Ok(fold(so_far, row(token)?)))
}

/// Checks that logits are whole rows over the vocabulary.
///
/// # Errors
/// A [`ConfidenceError`] that names what is wrong.
pub fn check_tokens(logits: &[f32], vocabulary: usize) -> Result<(), ConfidenceError> {
    if logits.is_empty() {
        return Err(ConfidenceError::Empty);
    }
    if vocabulary == 0 || !logits.len().is_multiple_of(vocabulary) {
        return Err(ConfidenceError::Ragged {
            length: logits.len(),
            vocabulary,
        });
    }
    Ok(())
}

fn check_span(start: &[f32], end: &[f32]) -> Result<(), ConfidenceError> {
    if start.len() == end.len() {
        Ok(())
    } else {
        Err(ConfidenceError::Ragged {
            length: end.len(),
            vocabulary: start.len(),
        })
    }
}

/// Checks that there are at least `least` scores, all finite.
///
/// # Errors
/// A [`ConfidenceError`] that names what is wrong.
pub fn check(scores: &[f32], least: usize) -> Result<(), ConfidenceError> {
    if scores.is_empty() {
        return Err(ConfidenceError::Empty);
    }
    if scores.len() < least {
        return Err(ConfidenceError::OneClass);
    }
    match scores.iter().position(|z| !z.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ConfidenceError::NotFinite {
            index,
            value: scores.get(index).copied().unwrap_or(f32::NAN),
        }),
    }
}

/// Checks that probabilities are not negative and sum to 1.
///
/// # Errors
/// A [`ConfidenceError`] that names what is wrong.
pub fn check_distribution(probabilities: &[f32]) -> Result<(), ConfidenceError> {
    check(probabilities, 2)?;
    let sum: f64 = probabilities.iter().copied().map(f64::from).sum();
    let least = probabilities.iter().copied().fold(f32::INFINITY, f32::min);
    if least < 0.0 || (sum - 1.0).abs() > SUM_SLACK {
        return Err(ConfidenceError::NotADistribution {
            sum,
            least: f64::from(least),
        });
    }
    Ok(())
}

fn check_given(value: f64) -> Result<f64, ConfidenceError> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(ConfidenceError::GivenOutOfRange { value })
    }
}

/// The error of an estimator that cannot read such scores.
pub fn mismatch(estimator: Estimator, scores: &Scores<'_>) -> ConfidenceError {
    ConfidenceError::Mismatch {
        estimator: estimator.name(),
        scores: scores.kind(),
    }
}

#[cfg(test)]
mod tests;
