//! Random cascades, refined around the best (HybridServe §IV-B, Algorithm 1).
//!
//! The paper draws thresholds uniformly and tries one cascade per draw. Most confidences are near 1, so this draws ranks
//! instead, and for every draw walks one gate through all its cuts with running sums: a whole line of cascades for the
//! price of two. Frontier points are refined by the lines through them and through a random neighbour, until nothing new
//! is found.

#![expect(
    clippy::indexing_slicing,
    reason = "gates, samples and positions are counted by the table; lines are walked tens of thousands of times"
)]

use std::collections::BTreeSet;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::pareto_front::ParetoFront;
use super::table::Table;

/// Random cascades at the start, each walked along every gate.
const DRAWS: usize = 48;
/// Frontier points refined per round, spread evenly over it.
const REFINED: usize = 48;
/// Rounds of refinement at most.
const ROUNDS: usize = 8;
/// A neighbour's cuts are off by at most this share of the samples (the paper's epsilon).
const EPSILON: f64 = 0.05;

/// Adds its cascades to the front.
pub(super) fn search(table: &Table, seed: u64, front: &mut ParetoFront) {
    let gates = table.gates.len();
    if gates == 0 {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut lines = Lines::new(table);
    let samples = table.samples as u32;
    for first in 0..gates {
        // Gates that forward everything up to here and then nothing: the variants alone, and all pairs along the lines.
        let cuts: Vec<u32> = (0..gates)
            .map(|gate| if gate < first { samples } else { 0 })
            .collect();
        lines.through(&cuts, front);
    }
    for _ in 0..DRAWS {
        let cuts: Vec<u32> = (0..gates).map(|_| rng.random_range(0..=samples)).collect();
        lines.through(&cuts, front);
    }
    let mut refined = BTreeSet::new();
    for _ in 0..ROUNDS {
        let fresh: Vec<usize> = front
            .owners()
            .into_iter()
            .filter(|owner| !refined.contains(owner))
            .collect();
        if fresh.is_empty() {
            return;
        }
        for owner in fresh.iter().step_by(fresh.len().div_ceil(REFINED)) {
            refined.insert(*owner);
            let Some(cuts) = front.cuts_of(*owner).map(<[u32]>::to_vec) else {
                continue;
            };
            lines.through(&cuts, front);
            let neighbour = table.snapped(&neighbour(&cuts, samples, &mut rng));
            lines.along(rng.random_range(0..gates), &neighbour, front);
        }
    }
}

fn neighbour(cuts: &[u32], samples: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let reach = (f64::from(samples) * EPSILON).ceil() as u32;
    let mut moved = |cut: &u32| {
        let low = cut.saturating_sub(reach);
        rng.random_range(low..=(cut + reach).min(samples))
    };
    cuts.iter().map(&mut moved).collect()
}

/// The outcome of a sample at and after the gate of a line.
#[derive(Clone, Copy, Default)]
struct Fate {
    reaches: bool,
    /// Whether forwarding it ends in a right answer.
    right: bool,
    /// Cost of forwarding it.
    cost: f64,
}

/// Walks one gate through all its cuts while the others stand still.
struct Lines<'a> {
    table: &'a Table,
    fates: Vec<Fate>,
}

impl<'a> Lines<'a> {
    fn new(table: &'a Table) -> Self {
        Self {
            table,
            fates: vec![Fate::default(); table.samples],
        }
    }

    fn through(&mut self, cuts: &[u32], front: &mut ParetoFront) {
        let cuts = self.table.snapped(cuts);
        for gate in 0..cuts.len() {
            self.along(gate, &cuts, front);
        }
    }

    /// The cuts must be snapped.
    fn along(&mut self, index: usize, cuts: &[u32], front: &mut ParetoFront) {
        let gate = &self.table.gates[index];
        let mut right = 0_u32;
        let mut cost = 0.0;
        for sample in 0..self.table.samples {
            let fate = self.fate(index, cuts, sample, &mut right, &mut cost);
            self.fates[sample] = fate;
        }
        let samples = self.table.samples as f64;
        let mut cuts = cuts.to_vec();
        cuts[index] = 0;
        front.offer(right, cost / samples, &cuts);
        let mut useful = false;
        for (place, spot) in gate.ranked.iter().enumerate() {
            let fate = self.fates[spot.sample as usize];
            if fate.reaches {
                right = right + u32::from(fate.right) - u32::from(spot.right);
                cost += fate.cost;
                useful |= fate.right && !spot.right;
            }
            let parts = gate
                .ranked
                .get(place + 1)
                .is_none_or(|next| next.group != spot.group);
            if useful && parts {
                useful = false;
                cuts[index] = place as u32 + 1;
                front.offer(right, cost / samples, &cuts);
            }
        }
    }

    /// Follows a sample. Adds what it costs, and whether it is answered rightly, with the line's gate forwarding nothing.
    fn fate(&self, index: usize, cuts: &[u32], sample: usize, right: &mut u32, cost: &mut f64) -> Fate {
        let gates = &self.table.gates;
        for (gate, cut) in gates.iter().zip(cuts).take(index) {
            *cost += gate.energy;
            let position = gate.position[sample];
            if position >= *cut {
                *right += u32::from(gate.ranked[position as usize].right);
                return Fate::default();
            }
        }
        let gate = &gates[index];
        *cost += gate.energy;
        *right += u32::from(gate.ranked[gate.position[sample] as usize].right);
        let mut fate = Fate {
            reaches: true,
            ..Fate::default()
        };
        for (gate, cut) in gates.iter().zip(cuts).skip(index + 1) {
            fate.cost += gate.energy;
            let position = gate.position[sample];
            if position >= *cut {
                fate.right = gate.ranked[position as usize].right;
                return fate;
            }
        }
        fate.cost += self.table.last_energy;
        fate.right = self.table.last_right[sample];
        fate
    }
}
