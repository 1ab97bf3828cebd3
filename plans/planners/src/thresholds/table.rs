//! The family as the searches need it: every gate's samples in order of confidence.

#![expect(
    clippy::indexing_slicing,
    reason = "positions and samples are permutations of 0..samples that this module makes; the searches visit them a billion times"
)]

use std::sync::Arc;

use super::family::Family;
use super::pareto_front::Kept;
use super::point::FORWARD_ALL;

/// A sample's place in the order of confidence at a gate.
#[derive(Debug, Clone, Copy)]
pub(super) struct RankedSample {
    /// Index of the sample.
    pub(super) sample: u32,
    /// Rank of the sample at the next gate (0 at the last).
    pub(super) next: u32,
    /// Samples of equal confidence share a group: no threshold parts them.
    pub(super) group: u32,
    /// Whether the gate's variant is right.
    pub(super) right: bool,
    /// Whether the next variant is right.
    pub(super) right_next: bool,
    /// Whether any later variant is right.
    pub(super) later_correct: bool,
}

impl RankedSample {
    /// Whether forwarding it can make a wrong answer right.
    pub(super) fn is_rescuable(self) -> bool {
        self.later_correct && !self.right
    }
}

/// A gate: a variant with a successor, and the samples by its confidence.
pub(super) struct Gate {
    /// Cost of one request at its variant.
    pub(super) energy: f64,
    /// Ascending by confidence.
    pub(super) ranked: Vec<RankedSample>,
    /// Position of each sample in `ranked`.
    pub(super) position: Vec<u32>,
    /// Whether the variant is right, by sample.
    pub(super) right: Arc<[bool]>,
    /// Confidence of the variant, by sample.
    confidence: Arc<[f64]>,
}

pub(super) struct Table {
    pub(super) gates: Vec<Gate>,
    /// Cost of one request at the last variant.
    pub(super) last_energy: f64,
    /// Whether the last variant is right, by sample.
    pub(super) last_right: Arc<[bool]>,
    pub(super) samples: usize,
}

impl Table {
    pub(super) fn new(family: &Family) -> Self {
        let samples = family.samples();
        let mut columns = family.columns().to_vec();
        let last = columns.pop();
        let last_right = last
            .as_ref()
            .map_or_else(Arc::default, |last| last.correct.clone());
        let mut gates: Vec<Gate> = Vec::new();
        let mut later_correct = last_right.to_vec();
        for column in columns.into_iter().rev() {
            let next = gates.last();
            let right_next = next.map_or_else(|| last_right.clone(), |next| next.right.clone());
            let gate = Gate::new(column, &later_correct, &right_next, next);
            for (later_correct, right) in later_correct.iter_mut().zip(gate.right.iter()) {
                *later_correct |= right;
            }
            gates.push(gate);
        }
        gates.reverse();
        Self {
            gates,
            last_energy: last.map_or(0.0, |last| last.energy_j),
            last_right,
            samples,
        }
    }

    /// Right answers of the best variant.
    pub(super) fn best_right(&self) -> u32 {
        let variants = self
            .gates
            .iter()
            .map(|gate| &gate.right)
            .chain([&self.last_right]);
        let right = variants.map(|right| super::family::count(right) as u32);
        right.max().unwrap_or(0)
    }

    /// The cuts, each raised until it parts no samples of equal confidence.
    pub(super) fn snapped(&self, cuts: &[u32]) -> Vec<u32> {
        let snap = |(gate, cut): (&Gate, &u32)| {
            let Some(last) = cut.checked_sub(1) else {
                return 0;
            };
            let group = gate.ranked[last as usize].group;
            gate.ranked.partition_point(|spot| spot.group <= group) as u32
        };
        self.gates.iter().zip(cuts).map(snap).collect()
    }

    /// Returns the cuts of some thresholds: by gate, how many samples have a confidence below its threshold.
    pub(super) fn cuts(&self, thresholds: &[f64]) -> Vec<u32> {
        let cut = |(gate, threshold): (&Gate, &f64)| {
            let below = |spot: &RankedSample| gate.confidence[spot.sample as usize] < *threshold;
            gate.ranked.partition_point(below) as u32
        };
        self.gates.iter().zip(thresholds).map(cut).collect()
    }

    /// Returns the thresholds of a cascade. A cut is the number of positions from the bottom that a gate forwards; its threshold
    /// is midway between the confidences on its two sides, among the samples that reach the gate, and is as short a decimal as that
    /// allows.
    pub(super) fn thresholds(&self, cascade: Kept<'_>) -> Vec<f64> {
        let mut reaching = self.samples as u32;
        let threshold = |(gate, forwarded): (usize, &u32)| {
            let before = std::mem::replace(&mut reaching, *forwarded);
            self.threshold(gate, cascade.cuts, before, *forwarded)
        };
        cascade.forwarded.iter().enumerate().map(threshold).collect()
    }

    fn threshold(&self, index: usize, cuts: &[u32], reaching: u32, forwarded: u32) -> f64 {
        if forwarded == 0 {
            return 0.0;
        }
        let gate = &self.gates[index];
        let (low, high) = gate.ranked.split_at(cuts[index] as usize);
        let confidence = |spot: &RankedSample| gate.confidence[spot.sample as usize];
        let reaches = |spot: &&RankedSample| self.stop(&cuts[..index], spot.sample as usize) == index;
        let below = low.iter().rev().find(reaches).map(confidence);
        let above = (forwarded < reaching).then(|| high.iter().find(reaches).map(confidence));
        match (below, above.flatten()) {
            (None, _) => 0.0,
            (Some(below), Some(above)) => between(below, above),
            (Some(below), None) if below < 1.0 => between(below, 1.0),
            (Some(_), None) => FORWARD_ALL,
        }
    }

    /// The gate of these cuts that does not forward the sample; their number if all do.
    fn stop(&self, cuts: &[u32], sample: usize) -> usize {
        let forwards = |(gate, cut): (&Gate, &u32)| gate.position[sample] < *cut;
        self.gates
            .iter()
            .zip(cuts)
            .take_while(|pair| forwards(*pair))
            .count()
    }
}

impl Gate {
    fn new(column: super::Column, later_correct: &[bool], right_next: &[bool], next: Option<&Self>) -> Self {
        let mut order: Vec<u32> = (0..column.confidences.len() as u32).collect();
        order.sort_by(|a, b| column.confidences[*a as usize].total_cmp(&column.confidences[*b as usize]));
        let mut position = vec![0; order.len()];
        let mut group = 0;
        let mut before = None;
        let ranked = order
            .into_iter()
            .enumerate()
            .map(|(place, sample)| {
                let confidence = column.confidences[sample as usize];
                if before.is_some_and(|before| confidence > before) {
                    group += 1;
                }
                before = Some(confidence);
                position[sample as usize] = place as u32;
                RankedSample {
                    sample,
                    next: next.map_or(0, |next| next.position[sample as usize]),
                    group,
                    right: column.correct[sample as usize],
                    right_next: right_next[sample as usize],
                    later_correct: later_correct[sample as usize],
                }
            })
            .collect();
        Self {
            energy: column.energy_j,
            ranked,
            position,
            right: column.correct,
            confidence: column.confidences,
        }
    }
}

/// The shortest decimal in the middle half of an interval, or its middle where there is none.
pub(crate) fn between(below: f64, above: f64) -> f64 {
    let middle = f64::midpoint(below, above);
    let quarter = (above - below) / 4.0;
    (1..=15)
        .map(|digits| {
            let scale = 10_f64.powi(digits);
            (middle * scale).round() / scale
        })
        .find(|rounded| (rounded - middle).abs() <= quarter && *rounded > below && *rounded <= above)
        .unwrap_or(if middle > below { middle } else { above })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::between;

    #[test]
    fn thresholds_are_short() {
        assert_eq!(between(0.5, 0.7).to_string(), "0.6");
        assert_eq!(between(0.812_345, 0.812_399).to_string(), "0.81237");
        assert_eq!(between(0.999_999, 1.0).to_string(), "0.9999995");
    }

    proptest! {
        #[test]
        fn a_threshold_parts_its_neighbours(a in 0.0..=1.0_f64, b in 0.0..=1.0_f64, shrink in 0..52_u32) {
            let below = a.min(b);
            let above = below + (a.max(b) - below) / f64::from(1_u32 << (shrink / 2)) / f64::from(1_u32 << shrink.div_ceil(2));
            prop_assume!(above > below);
            let threshold = between(below, above);
            prop_assert!(threshold > below && threshold <= above);
        }
    }
}
