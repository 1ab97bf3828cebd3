//! Temperature scaling, fitted by negative log likelihood (HybridServe §IV-A, equation 1), and the calibration error.
//!
//! In `b = 1 / T` the negative log likelihood of a softmax is convex: its slope is the mean over samples of the expected
//! score under the model minus the score of the truth, and grows with `b`. So the one minimum is where the slope crosses
//! zero, and a bracketed Newton iteration always finds it.
//!
//! A set without a mistake would be most likely at `T = 0`, where every confidence rounds to 1 and thresholds have nothing
//! left to separate. A penalty `b - 1 - ln b`, with the weight of about one sample and convex too, keeps the temperature off that end;
//! on a set with mistakes its effect is negligible.
//!
//! Where several answers can be right, such as spans with the same text, only the probability of being right has a likelihood
//! (`success`).

mod success;

use kaskade_policy::confidence::score::{
    Scores, check, check_distribution, check_tokens, log_probability, logit, mismatch,
};
use kaskade_policy::confidence::{Calibration, ConfidenceError, Estimator};
use kaskade_policy::profile::BeforeAfter;

/// One validation sample: the model's output, and the truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Labelled<'a> {
    /// The model's output.
    pub scores: Scores<'a>,
    /// The truth.
    pub label: Label<'a>,
}

/// The truth of a validation sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Label<'a> {
    /// The right class, for class scores.
    Class(usize),
    /// The right positions, for span scores.
    Span {
        /// Position of the start.
        start: usize,
        /// Position of the end.
        end: usize,
    },
    /// The right token for every row of token scores.
    Tokens(&'a [usize]),
    /// Whether the answer was right: for given confidences, and where several answers can be right.
    Correct(bool),
}

/// A fitted temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TemperatureFit {
    /// The temperature, positive.
    pub temperature: f64,
    /// Mean negative log likelihood of the truth at `T = 1` and at the fitted temperature, nats per choice.
    pub nll: BeforeAfter,
}

/// A calibrated estimator and the effect of the calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    /// The estimator with its temperature.
    pub calibration: Calibration,
    /// Expected calibration error of the probability of being right, before and after.
    pub ece: BeforeAfter,
    /// Mean negative log likelihood before and after; absent for a given confidence.
    pub nll: Option<BeforeAfter>,
    /// The confidence of every sample, calibrated, in the set's order.
    pub confidences: Vec<f64>,
    /// Whether every sample was answered rightly. The temperature has no part in it.
    pub correct: Vec<bool>,
}

/// Bins of the calibration error, as in the literature on temperature scaling.
const BINS: usize = 15;

/// Fits the temperature of an estimator on a validation set and reports the calibration error before and after.
///
/// # Errors
/// A [`ConfidenceError`] naming the sample, if one is unusable or the set is empty.
pub fn calibrate(estimator: Estimator, samples: &[Labelled<'_>]) -> Result<Calibrated, ConfidenceError> {
    calibrate_on(estimator, samples, samples)
}

/// Fits the temperature of an estimator on some samples and applies it to all of a validation set. A cascade can be certified on the
/// samples that the fit did not use ([`crate::certify::split_samples`]).
///
/// # Errors
/// A [`ConfidenceError`] naming the sample, if one is unusable or a set is empty.
pub fn calibrate_on(
    estimator: Estimator,
    fitted: &[Labelled<'_>],
    samples: &[Labelled<'_>],
) -> Result<Calibrated, ConfidenceError> {
    let before = Calibration::uncalibrated(estimator);
    // The whole set first, so that an error names a sample by its place in it.
    let correct = each(samples, is_correct)?;
    let error_of = |calibration: Calibration| {
        let probabilities = each(samples, |sample| calibration.probability(&sample.scores))?;
        expected_calibration_error(&probabilities, &correct, BINS)
    };
    let ece_before = error_of(before)?;
    let fit = match estimator {
        Estimator::Given => None,
        _ if all_judged(fitted) => Some(success::fit(estimator, fitted)?),
        _ => Some(fit_temperature(fitted)?),
    };
    let after = Calibration {
        estimator,
        temperature: fit.map_or(1.0, |fit| fit.temperature),
    };
    Ok(Calibrated {
        calibration: after,
        ece: BeforeAfter {
            before: ece_before,
            after: error_of(after)?,
        },
        nll: fit.map(|fit| fit.nll),
        confidences: each(samples, |sample| after.confidence(&sample.scores))?,
        correct,
    })
}

/// Whether of no sample more is known than whether it was answered rightly.
fn all_judged(samples: &[Labelled<'_>]) -> bool {
    samples
        .iter()
        .all(|sample| matches!(sample.label, Label::Correct(_)))
}

/// Fits one temperature to all choices of a validation set: the class; start and end; or every token, over the whole
/// vocabulary.
///
/// # Errors
/// A [`ConfidenceError`] naming the sample, if one is unusable or the set is empty.
pub(crate) fn fit_temperature(samples: &[Labelled<'_>]) -> Result<TemperatureFit, ConfidenceError> {
    let choices = choices(samples)?;
    if choices.is_empty() {
        return Err(ConfidenceError::Empty);
    }
    let nll = |temperature: f64| {
        let total: f64 = choices
            .iter()
            .map(|choice| choice.at(1.0 / temperature).nll)
            .sum();
        total / choices.len() as f64
    };
    let temperature = 1.0 / likeliest(&choices);
    Ok(TemperatureFit {
        temperature,
        nll: BeforeAfter {
            before: nll(1.0),
            after: nll(temperature),
        },
    })
}

/// Expected calibration error over equal bins of [0, 1]: the mean distance between the stated probability of being right
/// and the share of right answers, weighted by the bins' sizes.
///
/// # Errors
/// [`ConfidenceError::BadColumns`] if the columns differ in length or are empty, or there is no bin;
/// [`ConfidenceError::GivenOutOfRange`] if a probability is not in [0, 1].
pub fn expected_calibration_error(
    probabilities: &[f64],
    correct: &[bool],
    bins: usize,
) -> Result<f64, ConfidenceError> {
    if probabilities.len() != correct.len() || probabilities.is_empty() || bins == 0 {
        return Err(ConfidenceError::BadColumns {
            probabilities: probabilities.len(),
            correct: correct.len(),
            bins,
        });
    }
    // The weight of a bin cancels its size: what is left is the sum of stated minus right, per bin.
    let mut gaps = vec![0.0; bins];
    for (&value, &right) in probabilities.iter().zip(correct) {
        if !(0.0..=1.0).contains(&value) {
            return Err(ConfidenceError::GivenOutOfRange { value });
        }
        let bin = ((value * bins as f64) as usize).min(bins - 1);
        if let Some(gap) = gaps.get_mut(bin) {
            *gap += value - f64::from(u8::from(right));
        }
    }
    let total: f64 = gaps.iter().map(|gap: &f64| gap.abs()).sum();
    Ok(total / probabilities.len() as f64)
}

/// A softmax over some scores, of which one is the truth's.
struct Choice<'a> {
    scores: &'a [f32],
    logit: fn(f32) -> f64,
    truth: f64,
    max: f64,
}

/// The negative log likelihood of a choice at some `b`, with its first two derivatives.
struct Loss {
    nll: f64,
    slope: f64,
    curvature: f64,
}

impl<'a> Choice<'a> {
    fn new(scores: &'a [f32], logit: fn(f32) -> f64, truth: usize) -> Result<Self, ConfidenceError> {
        check(scores, 1)?;
        let truth = scores.get(truth).ok_or(ConfidenceError::BadLabel {
            sample: 0,
            reason: "the label is beyond the last score",
        })?;
        Ok(Self {
            scores,
            logit,
            truth: logit(*truth),
            max: scores
                .iter()
                .map(|score| logit(*score))
                .fold(f64::NEG_INFINITY, f64::max),
        })
    }

    fn at(&self, b: f64) -> Loss {
        let (mut total, mut first, mut second) = (0.0, 0.0, 0.0);
        for &score in self.scores {
            let below = (self.logit)(score) - self.max;
            let weight = (b * below).exp();
            total += weight;
            first += weight * below;
            second += weight * below * below;
        }
        let mean = first / total;
        let truth = self.truth - self.max;
        Loss {
            nll: total.ln() - b * truth,
            slope: mean - truth,
            curvature: (second / total - mean * mean).max(0.0),
        }
    }
}

/// The `b = 1 / T` where the penalised likelihood is largest.
fn likeliest(choices: &[Choice<'_>]) -> f64 {
    const RANGE: (f64, f64) = (1e-4, 1e4);
    const STEPS: u32 = 100;
    let derivatives = |b: f64| {
        let penalty = (1.0 - 1.0 / b, 1.0 / (b * b));
        choices
            .iter()
            .map(|choice| choice.at(b))
            .fold(penalty, |sum, loss| (sum.0 + loss.slope, sum.1 + loss.curvature))
    };
    let (mut low, mut high) = RANGE;
    let mut b = 1.0;
    for _ in 0..STEPS {
        let (slope, curvature) = derivatives(b);
        if slope > 0.0 {
            high = b;
        } else {
            low = b;
        }
        let newton = b - slope / curvature;
        // Outside the bracket Newton's step is useless; the middle in log T halves the decades that are left.
        let next = if newton > low && newton < high {
            newton
        } else {
            (low * high).sqrt()
        };
        if (next / b - 1.0).abs() < 1e-10 {
            return next;
        }
        b = next;
    }
    b
}

fn choices<'a>(samples: &[Labelled<'a>]) -> Result<Vec<Choice<'a>>, ConfidenceError> {
    let mut choices = Vec::with_capacity(samples.len());
    for (sample, labelled) in samples.iter().enumerate() {
        add_choices(*labelled, &mut choices).map_err(|cause| at(sample, cause))?;
    }
    Ok(choices)
}

fn add_choices<'a>(sample: Labelled<'a>, choices: &mut Vec<Choice<'a>>) -> Result<(), ConfidenceError> {
    match (sample.scores, sample.label) {
        (Scores::Logits(z), Label::Class(class)) => choices.push(Choice::new(z, logit, class)?),
        (Scores::Probabilities(p), Label::Class(class)) => {
            check_distribution(p)?;
            choices.push(Choice::new(p, log_probability, class)?);
        }
        (
            Scores::Span { start, end },
            Label::Span {
                start: first,
                end: last,
            },
        ) => {
            choices.push(Choice::new(start, logit, first)?);
            choices.push(Choice::new(end, logit, last)?);
        }
        (Scores::Tokens { logits, vocabulary }, Label::Tokens(tokens)) => {
            for (row, token) in rows(logits, vocabulary, tokens)? {
                choices.push(Choice::new(row, logit, token)?);
            }
        }
        _ => return Err(wrong_label(&sample)),
    }
    Ok(())
}

/// Token scores row by row, each with its token.
fn rows<'a>(
    logits: &'a [f32],
    vocabulary: usize,
    tokens: &[usize],
) -> Result<impl Iterator<Item = (&'a [f32], usize)>, ConfidenceError> {
    check_tokens(logits, vocabulary)?;
    if logits.len() / vocabulary != tokens.len() {
        return Err(ConfidenceError::BadLabel {
            sample: 0,
            reason: "there are more or fewer label tokens than rows of scores",
        });
    }
    Ok(logits.chunks_exact(vocabulary).zip(tokens.iter().copied()))
}

/// Whether the strongest scores are the truth's. A tie goes to the first, as in `argmax`.
fn is_correct(sample: &Labelled<'_>) -> Result<bool, ConfidenceError> {
    match (sample.scores, sample.label) {
        (Scores::Logits(z) | Scores::Probabilities(z), Label::Class(class)) => Ok(argmax(z) == Some(class)),
        (
            Scores::Span { start, end },
            Label::Span {
                start: first,
                end: last,
            },
        ) => Ok(argmax(start) == Some(first) && argmax(end) == Some(last)),
        (Scores::Tokens { logits, vocabulary }, Label::Tokens(tokens)) => {
            Ok(rows(logits, vocabulary, tokens)?.all(|(row, token)| argmax(row) == Some(token)))
        }
        (_, Label::Correct(right)) => Ok(right),
        _ => Err(wrong_label(sample)),
    }
}

fn argmax(scores: &[f32]) -> Option<usize> {
    let stronger = |best: (usize, f32), (place, score): (usize, &f32)| {
        if *score > best.1 { (place, *score) } else { best }
    };
    let mut scores = scores.iter().enumerate();
    let first = scores.next().map(|(place, score)| (place, *score))?;
    Some(scores.fold(first, stronger).0)
}

fn wrong_label(sample: &Labelled<'_>) -> ConfidenceError {
    match (sample.scores, sample.label) {
        (Scores::Given(_), Label::Correct(_)) => mismatch(Estimator::Given, &sample.scores),
        _ => ConfidenceError::BadLabel {
            sample: 0,
            reason: "the label is of another kind than the scores",
        },
    }
}

fn each<T>(
    samples: &[Labelled<'_>],
    of: impl Fn(&Labelled<'_>) -> Result<T, ConfidenceError>,
) -> Result<Vec<T>, ConfidenceError> {
    samples
        .iter()
        .enumerate()
        .map(|(sample, labelled)| of(labelled).map_err(|cause| at(sample, cause)))
        .collect()
}

fn at(sample: usize, cause: ConfidenceError) -> ConfidenceError {
    match cause {
        ConfidenceError::BadLabel { reason, .. } => ConfidenceError::BadLabel { sample, reason },
        cause => ConfidenceError::BadSample {
            sample,
            cause: Box::new(cause),
        },
    }
}

#[cfg(test)]
mod tests;
