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

use super::pareto_front::{Kept, ParetoFront};
use super::table::Table;

/// Maximum number of samples that random cascades are tried on.
pub(super) const MAX_SAMPLES: usize = 20_000;
/// Random cascades at the start, each walked along every gate.
const DRAWS: usize = 48;
/// Frontier points refined per round, spread evenly over it.
const REFINED: usize = 48;
/// Rounds of refinement at most.
const ROUNDS: usize = 8;
/// Both limits for cascades that were found on some of the samples: there are more samples, so lines take longer.
const SPREAD_FROM: usize = 24;
const ROUNDS_FROM: usize = 6;
/// Besides, of the frontier points that are as accurate as the best variant, as many of the cheapest are refined per round: one of these will be the
/// accuracy-preserving point.
const PRESERVING: usize = 16;
/// A neighbour's cuts are off by at most this share of the samples (the paper's epsilon).
const EPSILON: f64 = 0.05;

/// Adds random cascades to the front, and refines it.
pub(super) fn search(table: &Table, seed: u64, front: &mut ParetoFront) {
    let gates = table.gates.len();
    if gates == 0 {
        return;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut lines = Lines::new(table);
    lines.through_pairs(front);
    for _ in 0..DRAWS {
        let samples = table.samples as u32;
        let cuts: Vec<u32> = (0..gates).map(|_| rng.random_range(0..=samples)).collect();
        lines.through(&cuts, front);
    }
    let effort = Effort {
        rounds: ROUNDS,
        spread: REFINED,
        preserving: 0,
    };
    lines.refine(effort, &mut rng, front);
}

/// Adds cascades that were found on some of the samples to the front, ascending in accuracy, and refines it.
pub(super) fn search_from(table: &Table, cascades: &[Vec<u32>], seed: u64, front: &mut ParetoFront) {
    if table.gates.is_empty() {
        return;
    }
    let mut lines = Lines::new(table);
    lines.through_pairs(front);
    for cuts in super::evenly(&cascades.iter().collect::<Vec<_>>(), REFINED) {
        lines.through(cuts, front);
    }
    let effort = Effort {
        rounds: ROUNDS_FROM,
        spread: SPREAD_FROM,
        preserving: PRESERVING,
    };
    lines.refine(effort, &mut ChaCha8Rng::seed_from_u64(seed), front);
}

/// Effort of a refinement.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Frontier points per round, at even distances.
    spread: usize,
    /// The cheapest frontier points that are as accurate as the best variant, per round.
    preserving: usize,
}

fn neighbour(cuts: &[u32], samples: u32, rng: &mut ChaCha8Rng) -> Vec<u32> {
    let reach = (f64::from(samples) * EPSILON).ceil() as u32;
    let mut moved = |cut: &u32| {
        let low = cut.saturating_sub(reach);
        rng.random_range(low..=(cut + reach).min(samples))
    };
    cuts.iter().map(&mut moved).collect()
}

/// Walks one gate through all its cuts while the others stand still.
struct Lines<'a> {
    table: &'a Table,
    /// Outcome of forwarding each sample at the line's gate: the lowest bit is whether the final answer is right, the others the number of
    /// further variants that it runs. A sample that does not reach the gate runs none, and has the bit of the gate's variant.
    fates: Vec<u16>,
    /// For each sample, 1 if it reaches the line's gate, else 0.
    reaches: Vec<u32>,
}

impl<'a> Lines<'a> {
    fn new(table: &'a Table) -> Self {
        Self {
            table,
            fates: vec![0; table.samples],
            reaches: vec![0; table.samples],
        }
    }

    /// Along gates that forward everything up to theirs and then nothing: the variants alone, and all pairs.
    fn through_pairs(&mut self, front: &mut ParetoFront) {
        let (gates, samples) = (self.table.gates.len(), self.table.samples as u32);
        for first in 0..gates {
            let cuts: Vec<u32> = (0..gates)
                .map(|gate| if gate < first { samples } else { 0 })
                .collect();
            self.through(&cuts, front);
        }
    }

    /// Along all gates of frontier points, and along one of a random neighbour of each, until nothing new is found.
    fn refine(&mut self, effort: Effort, rng: &mut ChaCha8Rng, front: &mut ParetoFront) {
        let (gates, samples) = (self.table.gates.len(), self.table.samples as u32);
        let best = self.table.best_right();
        let mut refined = BTreeSet::new();
        for _ in 0..effort.rounds {
            let fresh: Vec<usize> = front
                .owners()
                .into_iter()
                .filter(|owner| !refined.contains(owner))
                .collect();
            if fresh.is_empty() {
                return;
            }
            let preserves = |owner: &&usize| front.of_owner(**owner).is_some_and(|kept| kept.right >= best);
            let mut picked: Vec<usize> = fresh
                .iter()
                .filter(preserves)
                .take(effort.preserving)
                .copied()
                .collect();
            picked.extend(fresh.iter().step_by(fresh.len().div_ceil(effort.spread)));
            for owner in &picked {
                if !refined.insert(*owner) {
                    continue;
                }
                let Some(cuts) = front.of_owner(*owner).map(|kept| kept.cuts.to_vec()) else {
                    continue;
                };
                self.through(&cuts, front);
                let neighbour = self.table.snapped(&neighbour(&cuts, samples, rng));
                self.along(rng.random_range(0..gates), &neighbour, front);
            }
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
        let mut line = self.start(index, cuts);
        line.offer(self.table, front);
        // By number of further variants that a forwarded sample runs.
        let mut runs = vec![0_u32; self.table.gates.len() - index + 1];
        let mut useful = false;
        for (place, spot) in gate.ranked.iter().enumerate() {
            let fate = self.fates[spot.sample as usize];
            let (gets, had) = (u32::from(fate & 1), u32::from(spot.right));
            runs[(fate >> 1) as usize] += 1;
            line.right = line.right + gets - had;
            useful |= gets > had;
            let parts = gate
                .ranked
                .get(place + 1)
                .is_none_or(|next| next.group != spot.group);
            if useful && parts {
                useful = false;
                line.cuts[index] = place as u32 + 1;
                let mut forwarded = 0;
                for (slot, runs) in line.forwarded[index..].iter_mut().zip(&runs[1..]).rev() {
                    forwarded += runs;
                    *slot = forwarded;
                }
                line.offer(self.table, front);
            }
        }
    }

    /// The cascade whose gate forwards nothing; also finds what forwarding leads to.
    fn start(&mut self, index: usize, cuts: &[u32]) -> Line {
        let gates = &self.table.gates;
        let runs_all = (gates.len() - index) as u16;
        for (fate, right) in self.fates.iter_mut().zip(self.table.last_right.iter()) {
            *fate = runs_all << 1 | u16::from(*right);
        }
        let later = gates.iter().zip(cuts).skip(index + 1);
        for ((gate, cut), runs) in later.zip(1_u16..).collect::<Vec<_>>().into_iter().rev() {
            let samples = self.fates.iter_mut().zip(&gate.position).zip(gate.right.iter());
            for ((fate, position), right) in samples {
                let stops = runs << 1 | u16::from(*right);
                *fate = if position >= cut { stops } else { *fate };
            }
        }
        let mut line = Line {
            index,
            right: 0,
            cuts: cuts.to_vec(),
            forwarded: vec![0; gates.len()],
            cost: 0.0,
        };
        line.cuts[index] = 0;
        let mut reaching = self.table.samples as u32;
        self.reaches.fill(1);
        for (place, (gate, cut)) in gates.iter().zip(cuts).take(index).enumerate() {
            line.cost += f64::from(reaching) * gate.energy;
            reaching = 0;
            let samples = self.reaches.iter_mut().zip(&gate.position).zip(gate.right.iter());
            for ((reaches, position), right) in samples {
                let goes = *reaches & u32::from(position < cut);
                line.right += (*reaches - goes) & u32::from(*right);
                reaching += goes;
                *reaches = goes;
            }
            line.forwarded[place] = reaching;
        }
        let gate = &gates[index];
        line.cost += f64::from(reaching) * gate.energy;
        let samples = self.fates.iter_mut().zip(&self.reaches).zip(gate.right.iter());
        for ((fate, reaches), right) in samples {
            line.right += reaches & u32::from(*right);
            *fate = if *reaches == 1 { *fate } else { u16::from(*right) };
        }
        line
    }
}

/// A cascade on a line.
struct Line {
    /// The gate of the line.
    index: usize,
    right: u32,
    cuts: Vec<u32>,
    /// Number of samples that each gate forwards.
    forwarded: Vec<u32>,
    /// Cost of the variants up to that of the line's gate, not yet divided by the samples.
    cost: f64,
}

impl Line {
    #[inline]
    fn offer(&self, table: &Table, front: &mut ParetoFront) {
        let next = table.gates.iter().skip(self.index + 1).map(|gate| gate.energy);
        let energies = next.chain([table.last_energy]);
        let forwarded = self.forwarded.iter().skip(self.index);
        let cost = forwarded
            .zip(energies)
            .fold(self.cost, |cost, (samples, energy)| {
                cost + f64::from(*samples) * energy
            });
        let cascade = Kept {
            right: self.right,
            cuts: &self.cuts,
            forwarded: &self.forwarded,
        };
        front.offer(cost / table.samples as f64, cascade);
    }
}
