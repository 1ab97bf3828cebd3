//! Scores that decide on escalation, fitted and chosen per stage.
//!
//! Every candidate of a stage is judged by cross-validation: on samples that it was not fitted on, does escalating by it gain more right
//! answers than escalating by the calibrated confidence? A candidate is taken only if it is significantly better; otherwise the stage keeps its
//! confidence. All of this happens on the samples of the family that is given, which for a certificate is the selection part.
//!
//! | module | holds |
//! |---|---|
//! | `samples` | the samples of a stage: features, targets, weights |
//! | `regression` | weighted logistic regression |
//! | `isotonic` | isotonic regression |

mod isotonic;
mod regression;
mod samples;

use kaskade_policy::confidence::deferral::{DeferralScore, Feature, Linear};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use self::regression::Column;
pub(crate) use self::regression::Curve;
use self::samples::{Row, Rows, ranks};
use crate::thresholds::{Family, drawn};

/// Parts of the cross-validation.
const FOLDS: usize = 5;

/// Standard errors by which a candidate must beat the confidence. Half a dozen candidates are compared, so more than the usual 1.64.
const SURE: f64 = 2.0;

/// The fewest samples with which anything is fitted.
const MIN_SAMPLES: usize = 100;

/// The most samples that scores are fitted and compared on. With as many, the weights of a few dozen terms are known to a few per cent.
const MAX_SAMPLES: usize = 10_000;

/// The most classes of which each gets a term of its own, and the most earlier stages that are read.
const CLASSES: usize = 16;
const EARLIER: usize = 3;

/// A kind of score to fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Candidate {
    /// Platt scaling of the confidence.
    Platt,
    /// Isotonic regression on the confidence.
    Isotonic,
    /// The probability of being right, from the stage's own result.
    Logistic,
    /// Logistic regression that also reads the answers of earlier stages.
    LogisticOfPath,
    /// The benefit of escalation, from the stage's own result.
    Benefit,
    /// Benefit of escalation that also reads the answers of earlier stages.
    BenefitOfPath,
}

impl Candidate {
    /// All candidates.
    pub const ALL: [Self; 6] = [
        Self::Platt,
        Self::Isotonic,
        Self::Logistic,
        Self::LogisticOfPath,
        Self::Benefit,
        Self::BenefitOfPath,
    ];

    fn reads_path(self) -> bool {
        matches!(self, Self::LogisticOfPath | Self::BenefitOfPath)
    }
}

/// Gain of a candidate score in the cross-validation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CandidateGain {
    /// The candidate.
    pub candidate: Candidate,
    /// Right answers per request that it gains over the calibrated confidence, on average over all shares of escalation.
    pub gain: f64,
    /// Standard error of the gain.
    pub error: f64,
}

impl CandidateGain {
    fn is_better(&self) -> bool {
        self.gain > SURE * self.error && self.gain > 0.0
    }
}

/// The choice at one stage.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    /// The score; `None` for the calibrated confidence.
    pub score: Option<DeferralScore>,
    /// The candidates that could be fitted.
    pub tried: Vec<CandidateGain>,
}

/// Chooses a score for every variant of a family but the last, whose names are those of their stages. No score where the family is not
/// observed, has fewer than 100 samples, or nothing is significantly better than the confidence.
pub fn choose(family: &Family) -> Vec<Choice> {
    let gates = family.columns().len().saturating_sub(1);
    (0..gates).map(|variant| at_stage(family, variant)).collect()
}

/// Returns the score of a choice at one variant, which is not the last. It depends on this variant, on those before it and on the last.
pub(crate) fn score_at(family: &Family, variant: usize) -> Option<DeferralScore> {
    at_stage(family, variant).score
}

/// Returns the scores of a choice, one per variant but the last.
pub fn scores(family: &Family) -> Vec<Option<DeferralScore>> {
    choose(family).into_iter().map(|choice| choice.score).collect()
}

fn at_stage(family: &Family, variant: usize) -> Choice {
    if family.samples() > MAX_SAMPLES {
        return at_stage(&family.of_samples(&drawn(family.samples(), MAX_SAMPLES)), variant);
    }
    let rows = Rows::at(family, variant).filter(|_| family.is_observed() && family.samples() >= MIN_SAMPLES);
    let Some(rows) = rows else {
        return Choice::default();
    };
    // Where escalating changes no answer, there is nothing to learn.
    if rows.iter().all(|row| row.gain_of_escalating() == 0.0) {
        return Choice::default();
    }
    let candidates = Candidate::ALL.into_iter();
    let tried: Vec<CandidateGain> = candidates
        .filter_map(|candidate| judge(&rows, candidate))
        .collect();
    let better = tried.iter().filter(|tried| tried.is_better());
    let best = better.max_by(|a, b| a.gain.total_cmp(&b.gain));
    Choice {
        score: best.and_then(|best| fit(&rows, best.candidate)),
        tried,
    }
}

/// Judges a candidate on samples that it was not fitted on. `None` if it cannot be fitted.
fn judge(rows: &Rows<'_>, candidate: Candidate) -> Option<CandidateGain> {
    let mut folds: Vec<usize> = (0..rows.len()).map(|place| place % FOLDS).collect();
    folds.shuffle(&mut ChaCha8Rng::seed_from_u64(0xf01d));
    let is_in = |place: usize, fold: usize| folds.get(place) == Some(&fold);
    let mut difference = Vec::with_capacity(rows.len());
    for fold in 0..FOLDS {
        let score = fit(&rows.filtered(|place| !is_in(place, fold)), candidate)?;
        let judged = rows.filtered(|place| is_in(place, fold));
        let confidences: Vec<f64> = judged.iter().map(|row| row.confidence).collect();
        // Ranks within the fold, because scores of different fits are not comparable.
        let by_confidence = ranks(&confidences);
        let by_score = ranks(&judged.scores(&score));
        let ranked = judged.iter().zip(by_confidence.iter().zip(&by_score));
        // Escalating below a uniformly drawn rank gains `gain * (1 - rank)`.
        difference
            .extend(ranked.map(|(row, (old, new))| row.weight * row.gain_of_escalating() * (old - new)));
    }
    let samples = difference.len() as f64;
    let gain = difference.iter().sum::<f64>() / samples;
    let variance = difference.iter().map(|one| (one - gain).powi(2)).sum::<f64>() / samples;
    Some(CandidateGain {
        candidate,
        gain,
        error: (variance / samples).sqrt(),
    })
}

fn fit(rows: &Rows<'_>, candidate: Candidate) -> Option<DeferralScore> {
    if candidate.reads_path() && rows.earlier().is_empty() {
        return None;
    }
    let right = |row: &Row| row.right;
    match candidate {
        Candidate::Platt => {
            let Linear { intercept, terms } =
                regression::fit(rows, &columns(rows, vec![Feature::Confidence]), right)?;
            let [term] = terms.as_slice() else { return None };
            (term.weight > 0.0).then_some(DeferralScore::Platt {
                slope: term.weight,
                intercept: intercept - term.weight * term.mean,
            })
        }
        Candidate::Isotonic => isotonic::fit(rows).map(|knots| DeferralScore::Isotonic { knots }),
        Candidate::Logistic | Candidate::LogisticOfPath => {
            let columns = columns(rows, features(rows, candidate));
            regression::fit(rows, &columns, right).map(|right| DeferralScore::Logistic { right })
        }
        Candidate::Benefit | Candidate::BenefitOfPath => {
            let columns = columns(rows, features(rows, candidate));
            let rescue = regression::fit(rows, &columns, |row| row.right_last && !row.right)?;
            let harm = regression::fit(rows, &columns, |row| row.right && !row.right_last)?;
            Some(DeferralScore::Benefit { rescue, harm })
        }
    }
}

/// The features with their values; without those that a sample lacks.
fn columns(rows: &Rows<'_>, features: Vec<Feature>) -> Vec<Column> {
    let column = |feature: Feature| {
        let values = rows.feature(&feature)?;
        Some(Column { feature, values })
    };
    features.into_iter().filter_map(column).collect()
}

fn features(rows: &Rows<'_>, candidate: Candidate) -> Vec<Feature> {
    let mut features = vec![
        Feature::Confidence,
        Feature::Margin,
        Feature::Entropy,
        Feature::Length,
    ];
    let answers = rows.answers();
    // Texts have as many answers as samples.
    if answers.len() <= CLASSES {
        // The most frequent class is the one that the others are compared with.
        features.extend(answers.into_iter().skip(1).map(Feature::Answer));
    }
    if candidate.reads_path() {
        for stage in rows.earlier().into_iter().rev().take(EARLIER) {
            features.push(Feature::EarlierConfidence(stage.to_owned()));
            features.push(Feature::Agrees(stage.to_owned()));
            features.push(Feature::Support(stage.to_owned()));
        }
    }
    features
}

#[cfg(test)]
mod tests;
