//! The cascades to certify, from the selection part: the largest variant alone, then ever cheaper ones.

use kaskade_policy::confidence::deferral::DeferralScore;

use super::{AccuracyTarget, paired};
use crate::envelope::{Member, members};
use crate::pareto::{Place, pareto_front};
use crate::skips::{Dropped, Pruned, Reason, Skips, add_skips, trim};
use crate::thresholds::{Family, Outcome, Paired, Search, evaluate, frontier, threshold_exits};

/// Cascades in the sequence, besides the largest variant alone. The frontier holds hundreds that differ by single samples; testing more
/// of them would not be wrong, but each neighbour is one more chance to stop early.
const CANDIDATES: usize = 40;

/// One cascade of the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its variants, over the selection part, with the values of its scores in place of confidences.
    pub family: Family,
    /// The scores that decide on escalation, one per variant but the last; `None` for the calibrated confidence.
    pub scores: Vec<Option<DeferralScore>>,
    /// Its thresholds, one per variant but the last, without skip connections.
    pub thresholds: Vec<f64>,
    /// Its exits over these variants, and the skip connections that were tried.
    pub skips: Skips,
    /// The variants that it leaves out.
    pub dropped: Vec<Dropped>,
    /// Whether the largest variant answers everything.
    pub is_largest_alone: bool,
}

impl Candidate {
    /// Returns what it does on the samples of another family that has its variants.
    pub fn outcome(&self, family: &Family) -> Outcome {
        let names: Vec<&str> = self
            .family
            .columns()
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        let family = family.of_variants(&names).scored(&self.scores);
        evaluate(&family, &self.skips.exits)
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

/// Returns the sequence: the largest variant alone, then cheaper cascades by falling cost.
pub(super) fn candidates(
    selection: &Family,
    target: AccuracyTarget,
    search: &Search,
    skips: bool,
) -> Vec<Candidate> {
    let Some(largest) = selection.columns().last() else {
        return Vec::new();
    };
    let only = selection.of_variants(&[largest.name.as_str()]);
    let point = evaluate(&only, &threshold_exits(&[])).into_point(Vec::new());
    let alone = Pruned {
        family: only,
        point,
        dropped: Vec::new(),
    };
    let alone = Candidate {
        is_largest_alone: true,
        ..Candidate::new(selection, alone, Vec::new(), false)
    };
    let cheaper = spread(pareto(selection, search, target), largest.energy_j);
    let cheaper = cheaper
        .into_iter()
        .map(|(found, scores)| Candidate::new(selection, found, scores, skips));
    std::iter::once(alone).chain(cheaper).collect()
}

/// A cascade on the selection part, and how far it is from missing the target there.
struct Found {
    cascade: Pruned,
    scores: Vec<Option<DeferralScore>>,
    /// A test statistic: the smaller, the surer the target.
    score: f64,
}

/// Returns the cascades of the whole family, and of its single variants, pairs and triples, that no cheaper one is surer than on the
/// selection part, by rising cost.
///
/// The criterion is the statistic of the test to come, not accuracy: of two cascades of one cost, the one that rarely differs from the
/// largest variant is proven with fewer samples than one that wins and loses many. Small families leave out what the whole family
/// would have to ask on the way.
fn pareto(selection: &Family, search: &Search, target: AccuracyTarget) -> Vec<Found> {
    let largest = selection
        .columns()
        .last()
        .map_or(&[][..], |column| column.correct.as_slice());
    let score = |outcome: &Outcome| match target {
        AccuracyTarget::MaxLoss { loss } => {
            let Paired {
                gained,
                lost,
                samples,
            } = Paired::new(&outcome.correct, largest);
            // As if one more sample were lost: few differences do not prove that there are none.
            paired::score(samples as u64 + 1, lost as u64 + 1, gained as u64, loss)
        }
        AccuracyTarget::MinAccuracy { .. } => -outcome.accuracy,
    };
    let found: Vec<Found> = members(selection)
        .into_iter()
        .flat_map(|Member { family, scores }| {
            let points = frontier(&family, search).points;
            points
                .into_iter()
                .map(move |point| (family.clone(), scores.clone(), point))
        })
        .map(|(family, scores, point)| Found {
            score: score(&evaluate(&family, &threshold_exits(&point.thresholds))),
            scores,
            cascade: Pruned {
                family,
                point,
                dropped: Vec::new(),
            },
        })
        .collect();
    pareto_front(found, |one| Place {
        cost: one.cascade.point.energy_j,
        gain: -one.score,
    })
}

/// Returns those that are cheaper than `cost`, at equal ratios of cost, the most expensive first.
fn spread(mut found: Vec<Found>, cost: f64) -> Vec<(Pruned, Vec<Option<DeferralScore>>)> {
    found.retain(|one| one.cascade.point.energy_j < cost);
    let Some(cheapest) = found.first().map(|one| one.cascade.point.energy_j) else {
        return Vec::new();
    };
    let ratio = (cheapest.max(f64::MIN_POSITIVE) / cost).powf(1.0 / CANDIDATES as f64);
    let mut limit = cost;
    let mut spread = Vec::new();
    for Found {
        mut cascade, scores, ..
    } in found.into_iter().rev()
    {
        if cascade.point.energy_j <= limit {
            limit = cascade.point.energy_j * ratio;
            trim(&mut cascade);
            spread.push((cascade, scores));
        }
    }
    spread
}
