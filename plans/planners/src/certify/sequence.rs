//! The cascades to certify, from the selection part: the largest variant alone, then ever cheaper ones.

use kaskade_policy::confidence::deferral::DeferralScore;

use super::options::AccuracyTarget;
use super::paired;
use crate::envelope::{Member, members};
use crate::forecast::{Against, Forecast, forecasts};
use crate::pareto::{Place, pareto_front};
use crate::skips::{Dropped, Pruned, Reason, Skips, add_skips, trim};
use crate::thresholds::{CascadeOutcome, Column, Family, Scoring, evaluate, threshold_exits};

/// Cascades in the sequence at most, besides the largest variant alone. The last step before the first failure is lost, so steps are short.
const CANDIDATES: usize = 60;

/// One cascade of the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Variants of the cascade, over the selection part, with the values of the scores in place of confidences.
    pub family: Family,
    /// The scores that decide on escalation, one per variant but the last; `None` for the calibrated confidence.
    pub scores: Vec<Option<DeferralScore>>,
    /// Thresholds of the cascade, one per variant but the last, without skip connections.
    pub thresholds: Vec<f64>,
    /// Exits over these variants, and the skip connections that were tried.
    pub skips: Skips,
    /// The variants that it leaves out.
    pub dropped: Vec<Dropped>,
    /// Whether the largest variant answers everything.
    pub is_largest_alone: bool,
}

impl Candidate {
    /// Returns what it does on the samples of another family that has its variants.
    pub fn outcome(&self, family: &Family) -> CascadeOutcome {
        self.outcome_with(&mut Scoring::new(family))
    }

    /// Returns what it does on the samples of another family, whose values of scores may be known.
    pub(super) fn outcome_with(&self, scoring: &mut Scoring<'_>) -> CascadeOutcome {
        let names: Vec<&str> = self
            .family
            .columns()
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        evaluate(&scoring.scored(&names, &self.scores), &self.skips.exits)
    }

    /// `selection` is the whole family.
    fn new(selection: &Family, pruned: Pruned, mut scores: Vec<Option<DeferralScore>>, skips: bool) -> Self {
        scores.truncate(pruned.family.columns().len().saturating_sub(1));
        // A skip connection would lead past a stage whose answer a later score reads.
        let reads = |score: &Option<DeferralScore>| score.as_ref().is_some_and(DeferralScore::reads_earlier);
        let skips = skips && !scores.iter().any(reads);
        let plain = pruned.point.accuracy;
        let kept = |name: &str| pruned.family.columns().iter().any(|column| column.name == name);
        let left_out = selection.columns().iter().filter(|column| !kept(&column.name));
        let dropped = left_out.map(|column| Dropped {
            name: column.name.clone(),
            reason: Reason::CheaperWithout,
        });
        let skips = add_skips(&pruned.family, &pruned.point.thresholds, |outcome| {
            skips && outcome.accuracy >= plain
        });
        Self {
            dropped: dropped.collect(),
            scores,
            skips,
            thresholds: pruned.point.thresholds,
            is_largest_alone: false,
            family: pruned.family,
        }
    }
}

/// Returns the sequence: the largest variant alone, then cheaper cascades by falling cost. `certification` is the number of samples that
/// it will be tested on.
pub(super) fn candidates(
    selection: &Family,
    target: AccuracyTarget,
    certification: usize,
    skips: bool,
) -> Vec<Candidate> {
    let Some(largest) = selection.columns().last() else {
        return Vec::new();
    };
    let only = selection.of_variants(&[largest.name.as_str()]);
    let alone = Candidate {
        is_largest_alone: true,
        ..Candidate::new(selection, pruned(only, Vec::new()), Vec::new(), false)
    };
    let members = members(selection);
    let found = pareto(&members, largest, target, certification);
    let cheaper = spread(found, largest.energy_j).into_iter().map(|found| {
        let cascade = pruned(found.member.family.clone(), found.forecast.thresholds);
        Candidate::new(selection, cascade, found.member.scores.clone(), skips)
    });
    std::iter::once(alone).chain(cheaper).collect()
}

/// A cascade of all variants of a family.
fn pruned(family: Family, thresholds: Vec<f64>) -> Pruned {
    let mut pruned = Pruned {
        point: evaluate(&family, &threshold_exits(&thresholds)).into_point(thresholds),
        family,
        dropped: Vec::new(),
    };
    trim(&mut pruned);
    pruned
}

/// A cascade on the selection part, and how far it is from missing the target there.
struct ScoredCascade<'a> {
    member: &'a Member,
    forecast: Forecast,
    /// A test statistic: the smaller, the surer the target.
    score: f64,
}

/// Returns cascades of the whole family, and of its single variants, pairs and triples, by rising cost. A cascade is left out if a cheaper
/// one is more likely to pass the test, by expected losses and gains.
///
/// The criterion is the statistic of the later test, not accuracy: of two cascades of the same cost, the one that rarely differs from the
/// largest variant is proven with fewer samples than one that wins and loses many. The statistic uses expected losses and gains: by counts,
/// which are small, the best of thousands of cascades would be a lucky one. Small families skip the variants that the whole family would
/// have to run first.
fn pareto<'a>(
    members: &'a [Member],
    largest: &Column,
    target: AccuracyTarget,
    certification: usize,
) -> Vec<ScoredCascade<'a>> {
    let against = match target {
        AccuracyTarget::MaxLoss { .. } => Against::Largest(largest),
        AccuracyTarget::MinAccuracy { .. } => Against::Truth,
    };
    let score = |forecast: &Forecast| match target {
        AccuracyTarget::MaxLoss { loss } => {
            let samples = certification as f64;
            let (lost, gained) = (samples * forecast.lost, samples * forecast.gained);
            paired::score(samples, lost, gained, loss)
        }
        AccuracyTarget::MinAccuracy { .. } => forecast.lost,
    };
    let found: Vec<ScoredCascade<'_>> = members
        .iter()
        .flat_map(|member| {
            let found = forecasts(&member.family, against).into_iter();
            found.map(move |forecast| (member, forecast))
        })
        .map(|(member, forecast)| ScoredCascade {
            score: score(&forecast),
            member,
            forecast,
        })
        .collect();
    pareto_front(found, |one| Place {
        cost: one.forecast.cost,
        gain: -one.score,
    })
}

/// Returns those that are cheaper than `cost`, at equal ratios of cost, the most expensive first. Cascades ascend in cost.
///
/// The ratio is that to the cheapest cascade that costs anything: no ratio leads to one that is free.
fn spread(mut found: Vec<ScoredCascade<'_>>, cost: f64) -> Vec<ScoredCascade<'_>> {
    found.retain(|one| one.forecast.cost < cost);
    let mut costs = found.iter().map(|one| one.forecast.cost);
    let cheapest = costs.find(|cost| *cost > 0.0).unwrap_or(cost);
    let ratio = (cheapest / cost).powf(1.0 / CANDIDATES as f64);
    let mut limit = cost;
    let mut spread = Vec::new();
    for one in found.into_iter().rev() {
        if one.forecast.cost <= limit {
            limit = one.forecast.cost * ratio;
            spread.push(one);
        }
    }
    spread
}
