//! The cascades of a family and of its small subsets, each stage with the score that was chosen for it.
//!
//! A cascade of all variants runs every cheap one on the way to the largest. Where one does not pay, a smaller family is better: "Is
//! Escalation Worth It?" (arXiv 2605.06350) finds that the envelope of two-model cascades beats long chains.

use std::collections::BTreeMap;

use kaskade_policy::confidence::deferral::DeferralScore;

use crate::deferral;
use crate::forecast::{Against, Forecast, forecasts};
use crate::pareto::{Place, pareto_front};
use crate::thresholds::{CascadeOutcome, Family, Point, Scoring, evaluate, threshold_exits};

/// A subset of a family, with the values of its scores in place of confidences.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Variants of the subset.
    pub family: Family,
    /// The scores, one per variant but the last; `None` for the calibrated confidence.
    pub scores: Vec<Option<DeferralScore>>,
}

/// A cascade on the envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct EnvelopeCascade {
    /// Variants of the cascade, by name.
    pub variants: Vec<String>,
    /// Deferral scores of the cascade.
    pub scores: Vec<Option<DeferralScore>>,
    /// Thresholds of the cascade, and the outcome on the samples that it was chosen on.
    pub point: Point,
}

impl EnvelopeCascade {
    /// Returns what it does on the samples of another family that has its variants.
    pub fn outcome(&self, family: &Family) -> CascadeOutcome {
        let names: Vec<&str> = self.variants.iter().map(String::as_str).collect();
        let scored = family.of_variants(&names).scored(&self.scores);
        evaluate(&scored, &threshold_exits(&self.point.thresholds))
    }
}

/// Variants at most of which subsets are formed.
const MAX_VARIANTS: usize = 8;

/// Returns the single variants, pairs and triples of a family, and the whole family. Scores are chosen if the family is observed.
///
/// The time grows with the cube of the number of variants, and that for all of them together exponentially. So of more than eight
/// variants, eight are taken.
pub fn members(family: &Family) -> Vec<Member> {
    let family = shortlist(family);
    let mut chosen = ScoreCache::default();
    let mut scoring = Scoring::new(&family);
    let member = |subset: Family| {
        let names: Vec<&str> = subset
            .columns()
            .iter()
            .map(|column| column.name.as_str())
            .collect();
        let scores = chosen.scores(&subset, &names);
        Member {
            family: scoring.scored(&names, &scores),
            scores,
        }
    };
    subsets(&family).into_iter().map(member).collect()
}

/// The scores that were chosen, by the stages up to theirs and the last one: subsets that share these share the score.
#[derive(Default)]
struct ScoreCache {
    scores: BTreeMap<(Vec<String>, String), Option<DeferralScore>>,
}

impl ScoreCache {
    fn scores(&mut self, subset: &Family, names: &[&str]) -> Vec<Option<DeferralScore>> {
        let Some((last, gates)) = names.split_last() else {
            return Vec::new();
        };
        let score = |variant: usize| {
            let path = names.iter().take(variant + 1).map(|name| (*name).to_owned());
            let known = self.scores.entry((path.collect(), (*last).to_owned()));
            known
                .or_insert_with(|| deferral::score_at(subset, variant))
                .clone()
        };
        (0..gates.len()).map(score).collect()
    }
}

/// Returns the family without the variants that promise least: of the others than the largest, seven are kept. Those that no cheaper one equals in
/// accuracy go first, at even distances if they are too many; then the most accurate.
fn shortlist(family: &Family) -> Family {
    let columns = family.columns();
    let Some((largest, others)) = columns.split_last().filter(|_| columns.len() > MAX_VARIANTS) else {
        return family.clone();
    };
    let others = (0..others.len()).collect();
    let mut kept = pareto_front(others, |variant| Place {
        cost: columns
            .get(*variant)
            .map_or(f64::INFINITY, |column| column.energy_j),
        gain: family.right(*variant) as f64,
    });
    let last = kept.len().saturating_sub(1);
    if kept.len() >= MAX_VARIANTS {
        let even = |step: usize| kept.get(step * last / (MAX_VARIANTS - 2)).copied();
        kept = (0..MAX_VARIANTS - 1).filter_map(even).collect();
    }
    let mut rest: Vec<usize> = (0..columns.len() - 1)
        .filter(|variant| !kept.contains(variant))
        .collect();
    rest.sort_by_key(|variant| std::cmp::Reverse(family.right(*variant)));
    kept.extend(
        rest.into_iter()
            .take((MAX_VARIANTS - 1).saturating_sub(kept.len())),
    );
    let names = kept
        .iter()
        .filter_map(|variant| Some(columns.get(*variant)?.name.as_str()));
    let names: Vec<&str> = names.chain([largest.name.as_str()]).collect();
    family.of_variants(&names)
}

/// Returns the cascades of all members that no cheaper one equals in expected accuracy, by rising cost and expected accuracy.
pub fn envelope(family: &Family) -> Vec<EnvelopeCascade> {
    let members = members(family);
    let found = members.iter().flat_map(|member| {
        let found = forecasts(&member.family, Against::Truth).into_iter();
        found.map(move |forecast| (member, forecast))
    });
    let front = pareto_front(found.collect(), |(_, forecast)| Place {
        cost: forecast.cost,
        gain: -forecast.lost,
    });
    let on_envelope = |(member, forecast): (&Member, Forecast)| {
        let columns = member.family.columns().iter();
        let outcome = evaluate(&member.family, &threshold_exits(&forecast.thresholds));
        EnvelopeCascade {
            variants: columns.map(|column| column.name.clone()).collect(),
            scores: member.scores.clone(),
            point: outcome.into_point(forecast.thresholds),
        }
    };
    front.into_iter().map(on_envelope).collect()
}

/// Returns the subsets of one, two and three variants, and the family.
fn subsets(family: &Family) -> Vec<Family> {
    let columns = family.columns().iter();
    let names: Vec<&str> = columns.map(|column| column.name.as_str()).collect();
    let mut subsets = Vec::new();
    for (first, one) in names.iter().enumerate() {
        subsets.push(family.of_variants(&[one]));
        for (second, two) in names.iter().enumerate().skip(first + 1) {
            subsets.push(family.of_variants(&[one, two]));
            for three in names.iter().skip(second + 1) {
                subsets.push(family.of_variants(&[one, two, three]));
            }
        }
    }
    subsets.retain(|subset| subset.columns().len() < names.len());
    subsets.push(family.clone());
    subsets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thresholds::synthetic;

    fn family(variants: u32) -> Family {
        let skills: Vec<f64> = (0..variants)
            .map(|variant| 0.5 + 0.1 * f64::from(variant))
            .collect();
        let energies: Vec<f64> = (0..variants)
            .map(|variant| 1.5_f64.powf(f64::from(variant)))
            .collect();
        synthetic::family(&skills, &energies, 4.0, 400, 3)
    }

    #[test]
    fn of_many_variants_eight_are_searched() {
        assert_eq!(shortlist(&family(8)), family(8));
        for variants in [9, 20, 60] {
            let kept = shortlist(&family(variants));
            assert_eq!(kept.columns().len(), MAX_VARIANTS, "{variants}");
            assert_eq!(kept.columns().last(), family(variants).columns().last());
        }
        // 8 + 28 + 56, and the whole.
        assert_eq!(members(&family(20)).len(), 93);
    }

    #[test]
    fn the_variants_that_promise_most_are_kept() {
        let mut skills = [0.2; 12];
        let mut energies = [5.0; 12];
        (skills[4], energies[4]) = (1.0, 1.0);
        (skills[9], energies[9]) = (2.0, 4.0);
        (skills[11], energies[11]) = (2.5, 40.0);
        let kept = shortlist(&synthetic::family(&skills, &energies, 4.0, 1_000, 3));
        let names: Vec<&str> = kept.columns().iter().map(|column| column.name.as_str()).collect();
        assert!(
            ["v4", "v9", "v11"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        assert_eq!(names.len(), MAX_VARIANTS);
    }
}
