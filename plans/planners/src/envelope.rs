//! The cascades of a family and of its small subsets, each stage with the score that was chosen for it.
//!
//! A cascade of all variants runs every cheap one on the way to the largest. Where one does not pay, a smaller family is better: "Is
//! Escalation Worth It?" (arXiv 2605.06350) finds that the envelope of two-model cascades beats long chains.

use kaskade_policy::confidence::deferral::DeferralScore;

use crate::deferral;
use crate::forecast::{Against, Forecast, forecasts};
use crate::pareto::{Place, pareto_front};
use crate::thresholds::{Family, Outcome, Point, evaluate, threshold_exits};

/// A subset of a family, with the values of its scores in place of confidences.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its variants.
    pub family: Family,
    /// The scores, one per variant but the last; `None` for the calibrated confidence.
    pub scores: Vec<Option<DeferralScore>>,
}

impl Member {
    fn new(subset: &Family) -> Self {
        let scores = deferral::scores(subset);
        Self {
            family: subset.scored(&scores),
            scores,
        }
    }
}

/// A cascade on the envelope.
#[derive(Debug, Clone, PartialEq)]
pub struct OnEnvelope {
    /// Its variants, by name.
    pub variants: Vec<String>,
    /// Its scores.
    pub scores: Vec<Option<DeferralScore>>,
    /// Its thresholds, and what it does on the samples that it was chosen on.
    pub point: Point,
}

impl OnEnvelope {
    /// Returns what it does on the samples of another family that has its variants.
    pub fn outcome(&self, family: &Family) -> Outcome {
        let names: Vec<&str> = self.variants.iter().map(String::as_str).collect();
        let scored = family.of_variants(&names).scored(&self.scores);
        evaluate(&scored, &threshold_exits(&self.point.thresholds))
    }
}

/// Returns the single variants, pairs and triples of a family, and the whole family. Scores are chosen if the family is observed.
pub fn members(family: &Family) -> Vec<Member> {
    subsets(family).iter().map(Member::new).collect()
}

/// Returns the cascades of all members that no cheaper one equals in expected accuracy, by rising cost and expected accuracy.
pub fn envelope(family: &Family) -> Vec<OnEnvelope> {
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
        OnEnvelope {
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
