//! The cascades to certify, from the selection part: the largest variant alone, then ever cheaper ones.

use crate::skips::{Dropped, Pruned, Reason, Skips, add_skips, trim};
use crate::thresholds::{Family, Outcome, Search, evaluate, frontier, threshold_exits};

/// Cascades in the sequence, besides the largest variant alone. The frontier holds hundreds that differ by single samples; testing more
/// of them would not be wrong, but each neighbour is one more chance to stop early.
const CANDIDATES: usize = 40;

/// One cascade of the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its variants, over the selection part.
    pub family: Family,
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
        evaluate(&family.of_variants(&names), &self.skips.exits)
    }

    /// `selection` is the whole family.
    fn new(selection: &Family, pruned: Pruned, skips: bool) -> Self {
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
            skips,
            is_largest_alone: false,
            family: pruned.family,
        }
    }
}

/// Returns the sequence: the largest variant alone, then cheaper cascades by falling cost.
pub(super) fn candidates(selection: &Family, search: &Search, skips: bool) -> Vec<Candidate> {
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
        ..Candidate::new(selection, alone, false)
    };
    let cheaper = spread(pareto(selection, search), largest.energy_j);
    let cheaper = cheaper
        .into_iter()
        .map(|found| Candidate::new(selection, found, skips));
    std::iter::once(alone).chain(cheaper).collect()
}

/// Returns the cascades of the whole family, and of its single variants, pairs and triples, that no other beats on the selection part,
/// by rising cost. A small family leaves out what a family of all would have to ask on the way.
fn pareto(selection: &Family, search: &Search) -> Vec<Pruned> {
    let mut found: Vec<Pruned> = subsets(selection)
        .into_iter()
        .flat_map(|family| {
            let points = frontier(&family, search).points;
            points.into_iter().map(move |point| Pruned {
                family: family.clone(),
                point,
                dropped: Vec::new(),
            })
        })
        .collect();
    found.sort_by(|a, b| {
        let accuracy = || b.point.accuracy.total_cmp(&a.point.accuracy);
        a.point.energy_j.total_cmp(&b.point.energy_j).then_with(accuracy)
    });
    let mut best = f64::NEG_INFINITY;
    found.retain(|one| {
        let better = one.point.accuracy > best;
        best = best.max(one.point.accuracy);
        better
    });
    found
}

/// Returns the family, and its subsets of one, two and three variants.
fn subsets(selection: &Family) -> Vec<Family> {
    let names: Vec<&str> = selection
        .columns()
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    let mut subsets = Vec::new();
    for (first, one) in names.iter().enumerate() {
        subsets.push(selection.of_variants(&[one]));
        for (second, two) in names.iter().enumerate().skip(first + 1) {
            subsets.push(selection.of_variants(&[one, two]));
            for three in names.iter().skip(second + 1) {
                subsets.push(selection.of_variants(&[one, two, three]));
            }
        }
    }
    subsets.retain(|subset| subset.columns().len() < names.len());
    subsets.push(selection.clone());
    subsets
}

/// Returns those that are cheaper than `cost`, at equal ratios of cost, the most expensive first.
fn spread(mut found: Vec<Pruned>, cost: f64) -> Vec<Pruned> {
    found.retain(|one| one.point.energy_j < cost);
    let Some(cheapest) = found.first().map(|one| one.point.energy_j) else {
        return Vec::new();
    };
    let ratio = (cheapest.max(f64::MIN_POSITIVE) / cost).powf(1.0 / CANDIDATES as f64);
    let mut limit = cost;
    let mut spread = Vec::new();
    for mut one in found.into_iter().rev() {
        if one.point.energy_j <= limit {
            limit = one.point.energy_j * ratio;
            trim(&mut one);
            spread.push(one);
        }
    }
    spread
}
