//! Cascades whose accuracy is certified on samples that they were not chosen on.
//!
//! A frontier is a maximum over thousands of cascades on the same samples, so its points promise too much. Here the validation set
//! is split in two. The selection part yields a sequence of cascades, from the largest variant alone to ever cheaper ones. On the
//! certification part the sequence is tested in that order, each cascade at the full level, until the first one fails; the last
//! that passed is the plan. This is fixed-sequence testing as in Learn then Test (Angelopoulos et al., arXiv 2110.01052): the order is
//! fixed before the certification part is used, so the probability to certify a cascade that misses the target is at most
//! `1 - confidence`, whatever the models and the data.
//!
//! | module | holds |
//! |---|---|
//! | `options` | what is certified, and with which confidence |
//! | `sample_split` | the selection and the certification part |
//! | `distributions` | tails of the binomial, quantiles of the normal distribution |
//! | `paired` | the exact test of the loss against the largest variant |
//! | `sequence` | the cascades to test, from the selection part |
//! | `list` | the certified list that a plan carries |
//! | `held_out` | cross-validation of objectives that are not certified |

mod distributions;
mod held_out;
mod list;
mod options;
mod paired;
mod sample_split;
mod sequence;

use kaskade_policy::plan::{Certificate, Guarantee};
use serde::Serialize;
use thiserror::Error;

use self::distributions::{Binomial, normal_quantile};
pub use self::held_out::HeldOut;
pub(crate) use self::held_out::held_out;
pub(crate) use self::list::{Wired, certified_list, steps};
pub use self::options::{AccuracyTarget, CertifyOptions};
pub(crate) use self::sample_split::CERTIFICATION_SHARE;
pub use self::sample_split::{SampleSplit, split_samples};
pub use self::sequence::Candidate;
use crate::thresholds::{CascadeOutcome, Family, Paired, Scoring};

/// A lower confidence is surely meant as the probability of an error.
const LEAST_CONFIDENCE: f64 = 0.5;

/// A certified cascade.
#[derive(Debug, Clone, PartialEq)]
pub struct Certified {
    /// The cascade.
    pub cascade: Candidate,
    /// Certificate of the cascade. The largest variant alone has a loss of 0 by definition and needs none.
    pub certificate: Certificate,
    /// Outcome of the cascade on the certification part.
    pub outcome: CascadeOutcome,
    /// The certification part.
    pub certification: Family,
    /// Cascades tested, and how many passed.
    pub tested: CertificationCounts,
    /// The cascades of the sequence that passed before it, from the largest variant alone.
    pub safer: Vec<PassedCascade>,
}

/// Progress of a certification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CertificationCounts {
    /// Cascades in the sequence.
    pub candidates: usize,
    /// Cascades that passed before the first failure.
    pub passed: usize,
    /// Samples in the selection part.
    pub selection: usize,
    /// Samples in the certification part.
    pub certification: usize,
    /// Validation samples with which the next cheaper cascade would pass in about four of five draws, if the selection part shows its
    /// true loss; `None` if it loses more than allowed or nearly so, if there are as many already, or if all passed.
    pub next_needs: Option<usize>,
}

/// Why no cascade was certified.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum CertifyError {
    /// A target or a confidence is outside (0, 1).
    #[error("{what} is {value}; it must be above 0 and below 1")]
    OutOfRange {
        /// Name of the quantity.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// The confidence is below one half.
    #[error(
        "the confidence is {:.4} %, which is the probability that the guarantee holds: state at least 50 %, such as 95 %",
        confidence * 100.0
    )]
    LowConfidence {
        /// The confidence.
        confidence: f64,
    },
    /// No outcome of the test could be a proof.
    #[error(
        "{samples} validation samples cannot prove this, whatever the answers: it takes at least {needed}. Record more samples, \
         allow a larger loss, or lower the confidence"
    )]
    TooFewSamples {
        /// Validation samples.
        samples: usize,
        /// The fewest validation samples that could.
        needed: usize,
    },
    /// Not even the largest variant alone is certified to be as accurate.
    #[error(
        "the largest variant alone answers {right} of {samples} certification samples rightly, which does not prove an accuracy of \
         {:.2} %; {}",
        accuracy * 100.0,
        remedy(better.as_ref(), *needed)
    )]
    OutOfReach {
        /// Right answers of the largest variant.
        right: usize,
        /// Certification samples.
        samples: usize,
        /// The accuracy asked for.
        accuracy: f64,
        /// A variant that is more accurate than the largest; `None` if the largest is the most accurate.
        better: Option<MoreAccurateVariant>,
        /// Validation samples that would prove it of the largest variant in about four of five draws, if the selection part shows its
        /// true accuracy; `None` if that is below the accuracy asked for or nearly so, or if there are as many already.
        needed: Option<usize>,
    },
}

/// A variant that is more accurate than the largest on the selection part. The certification part may not be used for this comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoreAccurateVariant {
    /// The variant.
    pub name: String,
    /// Right answers of the variant.
    pub right: usize,
    /// Right answers of the largest variant.
    pub largest: usize,
    /// Selection samples.
    pub samples: usize,
}

impl MoreAccurateVariant {
    fn of(selection: &Family) -> Option<Self> {
        let (best, last) = (selection.best(), selection.columns().len().checked_sub(1)?);
        let (right, largest) = (selection.right(best), selection.right(last));
        (right > largest).then(|| Self {
            name: selection
                .columns()
                .get(best)
                .map_or_else(String::new, |column| column.name.clone()),
            right,
            largest,
            samples: selection.samples(),
        })
    }
}

/// Returns the remedy if not even the largest variant is accurate enough.
fn remedy(better: Option<&MoreAccurateVariant>, needed: Option<usize>) -> String {
    match better {
        None => match needed {
            Some(needed) => format!(
                "ask for less, add a larger variant, or record more samples: about {needed} validation samples would do"
            ),
            None => "ask for less, or add a larger variant".to_owned(),
        },
        Some(MoreAccurateVariant {
            name,
            right,
            largest,
            samples,
        }) => format!(
            "on the {samples} selection samples `{name}` answers {right} rightly and the largest variant {largest}: profile again without \
             the variants after `{name}`, or make it the last one"
        ),
    }
}

/// Finds the cheapest cascade that can be certified.
///
/// `skips` also tries skip connections for each cascade of the sequence. The same family and options give the same cascade.
///
/// # Errors
/// [`CertifyError`]: a value out of range, too few samples, or an accuracy out of reach.
pub fn certify(family: &Family, options: &CertifyOptions, skips: bool) -> Result<Certified, CertifyError> {
    let Sequence {
        safer,
        last,
        tested,
        certification,
    } = certified_sequence(family, options, skips)?;
    Ok(Certified {
        cascade: last.cascade,
        certificate: last.certificate,
        outcome: last.outcome,
        certification,
        tested,
        safer,
    })
}

/// One cascade of the sequence that passed its test.
#[derive(Debug, Clone, PartialEq)]
pub struct PassedCascade {
    /// The cascade.
    pub cascade: Candidate,
    /// Certificate of the cascade.
    pub certificate: Certificate,
    /// Outcome of the cascade on the certification part.
    pub outcome: CascadeOutcome,
}

/// Returns all cascades that can be certified together, from the largest variant alone to the cheapest; never empty.
///
/// Fixed-sequence testing bounds the probability that *any* cascade that passes misses the target. So a plan may switch between all of
/// them, and its certificate has the confidence of one.
///
/// # Errors
/// As [`certify`].
pub(crate) fn certify_all(
    family: &Family,
    options: &CertifyOptions,
) -> Result<Vec<PassedCascade>, CertifyError> {
    let Sequence { mut safer, last, .. } = certified_sequence(family, options, false)?;
    safer.push(last);
    Ok(safer)
}

/// Result of testing a sequence.
struct Sequence {
    /// All cascades that passed, except the last.
    safer: Vec<PassedCascade>,
    last: PassedCascade,
    tested: CertificationCounts,
    certification: Family,
}

/// Tests the sequence up to the first failure.
fn certified_sequence(
    family: &Family,
    options: &CertifyOptions,
    skips: bool,
) -> Result<Sequence, CertifyError> {
    check(options)?;
    let parts = split_samples(family.samples());
    let selection = family.of_samples(&parts.selection);
    let certification = family.of_samples(&parts.certification);
    let needed = fewest(options);
    let judge = Judge::new(&certification, options);
    if (certification.samples() as u64) < needed {
        // More samples of such a variant would not prove it either.
        if judge.is_below_target() {
            return Err(judge.out_of_reach(&selection));
        }
        return Err(CertifyError::TooFewSamples {
            samples: family.samples(),
            needed: (needed as f64 / CERTIFICATION_SHARE).ceil() as usize,
        });
    }
    let sequence = sequence::candidates(&selection, options.target, certification.samples(), skips);
    let mut tested = CertificationCounts {
        candidates: sequence.len(),
        passed: 0,
        selection: selection.samples(),
        certification: certification.samples(),
        next_needs: None,
    };
    let mut passed = Vec::new();
    let mut scoring = Scoring::new(&certification);
    for cascade in sequence {
        let outcome = cascade.outcome_with(&mut scoring);
        let Some(certificate) = judge.test(&cascade, &outcome) else {
            // Fewer than there are means that this draw was unlucky; more samples would not be the advice.
            tested.next_needs =
                needs(&cascade, &selection, options).filter(|samples| *samples > family.samples());
            break;
        };
        passed.push(PassedCascade {
            cascade,
            certificate,
            outcome,
        });
    }
    tested.passed = passed.len();
    // All that passed hold together, so the choice among them is free; the sequence is ever cheaper on the selection part only.
    let costs = passed.iter().enumerate();
    let cheapest = costs.min_by(|(_, a), (_, b)| a.outcome.energy_j.total_cmp(&b.outcome.energy_j));
    if let Some((cheapest, _)) = cheapest {
        passed.truncate(cheapest + 1);
    }
    let last = passed.pop().ok_or_else(|| judge.out_of_reach(&selection))?;
    Ok(Sequence {
        safer: passed,
        last,
        tested,
        certification,
    })
}

fn check(options: &CertifyOptions) -> Result<(), CertifyError> {
    let (what, value) = match options.target {
        AccuracyTarget::MaxLoss { loss } => ("the largest loss", loss),
        AccuracyTarget::MinAccuracy { accuracy } => ("the least accuracy", accuracy),
    };
    for (what, value) in [(what, value), ("the confidence", options.confidence)] {
        if !(value > 0.0 && value < 1.0) {
            return Err(CertifyError::OutOfRange { what, value });
        }
    }
    if options.confidence < LEAST_CONFIDENCE {
        return Err(CertifyError::LowConfidence {
            confidence: options.confidence,
        });
    }
    Ok(())
}

/// Returns the fewest certification samples with which the test can succeed.
fn fewest(options: &CertifyOptions) -> u64 {
    match options.target {
        AccuracyTarget::MaxLoss { loss } => paired::fewest_samples(loss, options.level()),
        // All answers right: `accuracy^n <= level`.
        AccuracyTarget::MinAccuracy { accuracy } => (options.level().ln() / accuracy.ln()).ceil() as u64,
    }
}

/// Tests cascades on the certification part.
struct Judge<'a> {
    options: &'a CertifyOptions,
    largest: &'a str,
    /// Whether the largest variant answers each sample rightly.
    baseline: &'a [bool],
}

impl<'a> Judge<'a> {
    fn new(certification: &'a Family, options: &'a CertifyOptions) -> Self {
        let largest = certification.columns().last();
        Self {
            options,
            largest: largest.map_or("", |column| column.name.as_str()),
            baseline: largest.map_or(&[], |column| &*column.correct),
        }
    }

    /// Returns the certificate of a cascade that passes.
    fn test(&self, candidate: &Candidate, outcome: &CascadeOutcome) -> Option<Certificate> {
        let paired = Paired::new(&outcome.correct, self.baseline);
        let right = count(&outcome.correct);
        let (guarantee, p_value, compared) = match self.options.target {
            AccuracyTarget::MaxLoss { loss } => {
                // One that asks the largest variant for every answer loses nothing, by definition.
                let p_value = if candidate.is_largest_alone {
                    0.0
                } else {
                    paired::p_value(&paired, loss, self.options.level())
                };
                let against = self.largest.to_owned();
                (Guarantee::MaxLoss { loss, against }, p_value, Some(paired))
            }
            AccuracyTarget::MinAccuracy { accuracy } => {
                let samples = paired.samples as u64;
                let binomial = Binomial::up_to(samples);
                let p_value = binomial.at_most(samples, 1.0 - accuracy, samples - right);
                (Guarantee::MinAccuracy { accuracy }, p_value, None)
            }
        };
        (p_value <= self.options.level()).then(|| Certificate {
            guarantee,
            confidence: self.options.confidence,
            samples: paired.samples as u64,
            right,
            judge: None,
            lost: compared.map(|paired| paired.lost as u64),
            gained: compared.map(|paired| paired.gained as u64),
            p_value,
        })
    }

    /// Whether the largest variant alone misses a least accuracy.
    fn is_below_target(&self) -> bool {
        match self.options.target {
            AccuracyTarget::MinAccuracy { accuracy } => {
                (count(self.baseline) as f64) < accuracy * self.baseline.len() as f64
            }
            AccuracyTarget::MaxLoss { .. } => false,
        }
    }

    fn out_of_reach(&self, selection: &Family) -> CertifyError {
        let samples = selection.samples() + self.baseline.len();
        let right = selection.accuracy(selection.columns().len().saturating_sub(1));
        let needed = match self.options.target {
            AccuracyTarget::MinAccuracy { accuracy } if !self.is_below_target() => {
                let variance = right * (1.0 - right);
                samples_for(right - accuracy, variance, selection.samples(), self.options)
            }
            _ => None,
        };
        CertifyError::OutOfReach {
            right: count(self.baseline) as usize,
            samples: self.baseline.len(),
            accuracy: match self.options.target {
                AccuracyTarget::MinAccuracy { accuracy } => accuracy,
                AccuracyTarget::MaxLoss { .. } => f64::NAN,
            },
            better: MoreAccurateVariant::of(selection),
            needed: needed.filter(|needed| *needed > samples),
        }
    }
}

fn count(flags: &[bool]) -> u64 {
    flags.iter().filter(|flag| **flag).count() as u64
}

/// Quantile of the normal distribution for a power of 80 %.
const POWER_80: f64 = 0.8416;

/// Returns the validation samples with which a cascade would pass in about four of five draws, by the normal approximation on the
/// selection part.
fn needs(candidate: &Candidate, selection: &Family, options: &CertifyOptions) -> Option<usize> {
    let outcome = candidate.outcome(selection);
    let baseline = selection.columns().last()?;
    let paired = Paired::new(&outcome.correct, &baseline.correct);
    let samples = paired.samples as f64;
    let (margin, variance) = match options.target {
        AccuracyTarget::MaxLoss { loss } => {
            // As if one more sample differed, since few differences do not prove that there are none.
            let differing = (paired.lost + paired.gained + 1) as f64 / samples;
            let difference = paired.difference();
            (loss + difference, differing - difference * difference)
        }
        AccuracyTarget::MinAccuracy { accuracy } => {
            let right = outcome.accuracy;
            (right - accuracy, right * (1.0 - right))
        }
    };
    samples_for(margin, variance, paired.samples, options)
}

/// Returns the validation samples with which a margin above the target would be proven in about four of five draws; `None` if it is within
/// a standard error of zero, where it says nothing about the number. `variance` is that of one sample; both are of `samples` samples.
fn samples_for(margin: f64, variance: f64, samples: usize, options: &CertifyOptions) -> Option<usize> {
    if margin <= (variance / samples as f64).sqrt() {
        return None;
    }
    let distance = normal_quantile(options.confidence) + POWER_80;
    let proving = distance * distance * variance / (margin * margin);
    Some((proving.max(fewest(options) as f64) / CERTIFICATION_SHARE).ceil() as usize)
}

#[cfg(test)]
mod tests;
