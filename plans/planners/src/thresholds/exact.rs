//! The whole frontier, for short cascades.
//!
//! A gate forwards the samples below its threshold. Take the most confident that it forwards: if it is right at the gate, or no
//! later variant is right about it, then a lower threshold that keeps it is at least as accurate and costs no more. So a gate
//! needs to be cut only just above a sample that is wrong there and right later ("rescuable"), or not at all: a few per
//! cent of all thresholds. The search walks up the gates' cuts, one inside the other, with the samples that reach the
//! next gate kept in its order; at the last gate one walk yields all cuts with running sums.
//!
//! The search skips cuts for which even perfect later gates, at the cost of the next gate alone, cannot beat the known points.

#![expect(
    clippy::indexing_slicing,
    reason = "lists hold positions of the gate they belong to; this is the innermost loop of the planner"
)]

use super::pareto_front::{Kept, ParetoFront};
use super::table::{Gate, Table};

/// Puts the whole frontier into the front, unless that takes more steps than this. Returns whether it did.
pub(super) fn search(table: &Table, most_steps: u64, front: &mut ParetoFront) -> bool {
    let mut walk = Walk {
        table,
        front,
        cuts: vec![0; table.gates.len()],
        forwarded: vec![0; table.gates.len()],
        steps_left: most_steps,
    };
    let mut lists: Vec<Vec<u32>> = table
        .gates
        .iter()
        .map(|gate| Vec::with_capacity(gate.ranked.len()))
        .collect();
    if let Some(first) = lists.first_mut() {
        first.extend(0..table.samples as u32);
    }
    let first = table.gates.first();
    let right = first.map_or_else(
        || count(table.last_right.iter().copied()),
        |gate| count(gate.ranked.iter().map(|spot| spot.right)),
    );
    let start = Reached {
        right,
        rescuable: first.map_or(0, |gate| {
            count(gate.ranked.iter().map(|spot| spot.is_rescuable()))
        }),
        cost_before: 0.0,
    };
    walk.gate(0, &table.gates, &mut lists, start).is_some()
}

fn count(flags: impl Iterator<Item = bool>) -> u32 {
    flags.map(u32::from).sum()
}

/// Steps of an insertion into a list, and how many entries move in the time of one step.
const INSERT: usize = 8;
const MOVED: usize = 16;

/// Sums over the samples that reach a gate; the list of samples is separate.
#[derive(Clone, Copy)]
struct Reached {
    /// Right answers if the gate forwards nothing: those of earlier gates and its own.
    right: u32,
    /// Number of samples that the variant answers wrongly while a later variant is right.
    rescuable: u32,
    /// Cost of all earlier gates, not yet divided by the samples.
    cost_before: f64,
}

struct Walk<'a> {
    table: &'a Table,
    front: &'a mut ParetoFront,
    cuts: Vec<u32>,
    /// Number of samples that each gate forwards.
    forwarded: Vec<u32>,
    steps_left: u64,
}

impl Walk<'_> {
    /// Tries every useful cut of the first of these gates, whose list contains the samples that reach it, in its order. `None` once the steps are
    /// used up.
    fn gate(&mut self, index: usize, gates: &[Gate], lists: &mut [Vec<u32>], reached: Reached) -> Option<()> {
        let ([gate, later @ ..], [list, later_lists @ ..]) = (gates, lists) else {
            // A family of one: it answers every sample.
            self.offer(reached.right, self.table.samples as f64 * self.table.last_energy);
            return Some(());
        };
        let cost = reached.cost_before + list.len() as f64 * gate.energy;
        let next_energy = later.first().map_or(self.table.last_energy, |next| next.energy);
        if self.is_hopeless(reached, cost, next_energy)? {
            return Some(());
        }
        self.spend(list.len())?;
        let mut right = reached.right;
        self.cuts[index..].fill(0);
        self.forwarded[index..].fill(0);
        self.offer(right, cost);
        let Some(top) = list
            .iter()
            .rposition(|position| gate.ranked[*position as usize].is_rescuable())
        else {
            return Some(());
        };
        if later.is_empty() {
            self.last_gate(index, gate, list, right, cost);
            return Some(());
        }
        if let Some(next) = later_lists.first_mut() {
            next.clear();
        }
        let (mut hopeful, mut right_next) = (0, 0);
        let mut useful = false;
        for (place, &position) in list.iter().enumerate() {
            let spot = gate.ranked[position as usize];
            right -= u32::from(spot.right);
            hopeful += u32::from(spot.later_correct);
            right_next += u32::from(spot.right_next);
            useful |= spot.is_rescuable();
            if let Some(next) = later_lists.first_mut() {
                let insertion = next.partition_point(|other| *other < spot.next);
                next.insert(insertion, spot.next);
                self.spend(INSERT + (next.len() - insertion) / MOVED)?;
            }
            if useful && ends_group(gate, list, place) {
                useful = false;
                self.cuts[index] = position + 1;
                self.forwarded[index] = place as u32 + 1;
                let forwarded = Reached {
                    right: right + right_next,
                    rescuable: hopeful - right_next,
                    cost_before: cost,
                };
                self.gate(index + 1, later, later_lists, forwarded)?;
            }
            if place >= top && ends_group(gate, list, place) {
                break;
            }
        }
        Some(())
    }

    /// All useful cuts of the last gate, in one walk.
    fn last_gate(&mut self, index: usize, gate: &Gate, list: &[u32], right_uncut: u32, cost_uncut: f64) {
        let mut right = right_uncut;
        let mut useful = false;
        for (place, &position) in list.iter().enumerate() {
            let spot = gate.ranked[position as usize];
            right = right + u32::from(spot.later_correct) - u32::from(spot.right);
            useful |= spot.is_rescuable();
            if useful && ends_group(gate, list, place) {
                useful = false;
                self.cuts[index] = position + 1;
                self.forwarded[index] = place as u32 + 1;
                self.offer(right, cost_uncut + (place + 1) as f64 * self.table.last_energy);
            }
        }
    }

    /// Whether nothing that follows can be on the frontier: every rescue forwards at least one sample to the next variant, so
    /// even with perfect gates `n` more right answers cost at least `n` runs of it.
    fn is_hopeless(&mut self, reached: Reached, cost: f64, next_energy: f64) -> Option<bool> {
        for rescued in 0..=reached.rescuable {
            let least = (cost + f64::from(rescued) * next_energy) / self.table.samples as f64;
            if !self.front.beats(reached.right + rescued, least) {
                return Some(false);
            }
            self.spend(1)?;
        }
        Some(true)
    }

    fn spend(&mut self, steps: usize) -> Option<()> {
        self.steps_left = self.steps_left.checked_sub(steps as u64)?;
        Some(())
    }

    fn offer(&mut self, right: u32, cost: f64) {
        let energy = cost / self.table.samples as f64;
        let cascade = Kept {
            right,
            cuts: &self.cuts,
            forwarded: &self.forwarded,
        };
        self.front.offer(energy, cascade);
    }
}

/// Whether a threshold can lie after this place of the list.
fn ends_group(gate: &Gate, list: &[u32], place: usize) -> bool {
    list.get(place + 1)
        .is_none_or(|next| gate.ranked[*next as usize].group != gate.ranked[list[place] as usize].group)
}
