//! SP2, workload adaption: which cascade serves which range of load (CascadeServe §4.3).
//!
//! Every range starts with the best cascade by what is not promised: the most accurate one under a latency objective, the
//! fastest one under an accuracy objective. What the other submodules cannot carry is ruled out, one cascade in one range per
//! fault, so that there is an end.
//!
//! An accuracy objective speaks of the mean over all ranges, weighed by how common they are, so some ranges must be served
//! more accurately than by the fastest. It is always the step that gains most accuracy for the latency it costs, and at the
//! end no exchange between two ranges that lowers the latency is left undone.

use super::fault::{Fault, FaultKind};
use super::search::Cascade;

/// The cascades to choose from, and what has been ruled out.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    /// Ascending in accuracy.
    pub(super) ladder: Vec<Cascade>,
    /// How common every range is, summing to 1.
    weights: Vec<f64>,
    /// By range and rung.
    allowed: Vec<Vec<bool>>,
}

/// A rung of the ladder for every range.
pub(super) type Assignment = Vec<usize>;

/// Rungs above the present one that a step may lead to.
const REACH: usize = 4;

impl Workload {
    pub(super) fn new(ladder: Vec<Cascade>, weights: Vec<f64>) -> Self {
        let allowed = vec![vec![true; ladder.len()]; weights.len()];
        Self {
            ladder,
            weights,
            allowed,
        }
    }

    /// Takes in cascades that were found since. No range has ruled them out.
    pub(super) fn add(&mut self, fresh: &[Cascade]) {
        for cascade in fresh {
            if self.ladder.contains(cascade) {
                continue;
            }
            let at = self
                .ladder
                .partition_point(|other| other.accuracy <= cascade.accuracy);
            self.ladder.insert(at, cascade.clone());
            for allowed in &mut self.allowed {
                allowed.insert(at, true);
            }
        }
    }

    /// Mean accuracy of an assignment, weighed by how common the ranges are.
    pub(super) fn accuracy(&self, assignment: &[usize]) -> f64 {
        self.weights
            .iter()
            .zip(assignment)
            .map(|(weight, rung)| weight * self.accuracy_of(*rung))
            .sum()
    }

    fn accuracy_of(&self, rung: usize) -> f64 {
        self.ladder.get(rung).map_or(0.0, |cascade| cascade.accuracy)
    }

    /// The rungs of a range that are left, ascending.
    fn left(&self, range: usize) -> impl DoubleEndedIterator<Item = usize> {
        let allowed = self.allowed.get(range).map_or(&[][..], Vec::as_slice);
        allowed
            .iter()
            .enumerate()
            .filter(|(_, allowed)| **allowed)
            .map(|(rung, _)| rung)
    }

    /// The most accurate cascade that is left in every range. `None` if a range has none.
    pub(super) fn most_accurate(&self) -> Option<Assignment> {
        (0..self.weights.len())
            .map(|range| self.left(range).next_back())
            .collect()
    }

    /// Rules out what a fault names: the cascade of its range. A lack of memory is the doing of all ranges that use its model;
    /// of these (or else of all) the range is taken that loses least. Gives what was ruled out, `None` if there is nothing left
    /// to fall back to.
    pub(super) fn rule_out(
        &mut self,
        assignment: &[usize],
        fault: &Fault,
        model: usize,
    ) -> Option<(usize, usize)> {
        let ranges: Vec<usize> = match fault.kind {
            FaultKind::Memory { .. } => (0..assignment.len()).collect(),
            _ => vec![fault.range],
        };
        let uses = |range: usize| {
            let cascade = assignment.get(range).and_then(|rung| self.ladder.get(*rung));
            cascade.is_some_and(|cascade| cascade.models().contains(model))
        };
        let (range, rung) = ranges
            .into_iter()
            .filter_map(|range| Some((range, *assignment.get(range)?)))
            .filter(|(range, _)| self.left(*range).nth(1).is_some())
            .min_by(|a, b| {
                let key = |(range, rung): &(usize, usize)| (!uses(*range), self.loss(*range, *rung));
                let ((a_spares, a_loss), (b_spares, b_loss)) = (key(a), key(b));
                a_spares.cmp(&b_spares).then(a_loss.total_cmp(&b_loss))
            })?;
        *self.allowed.get_mut(range)?.get_mut(rung)? = false;
        Some((range, rung))
    }

    /// What falling to the next rung costs in mean accuracy.
    fn loss(&self, range: usize, rung: usize) -> f64 {
        let below = self.left(range).rev().find(|below| *below < rung).unwrap_or(rung);
        let weight = self.weights.get(range).copied().unwrap_or(0.0);
        weight * (self.accuracy_of(rung) - self.accuracy_of(below))
    }

    /// The assignment of least mean latency that reaches an accuracy, of what is left. `latency` says how a range fares with a
    /// rung (any unit; infinite if it does not keep up). `None` if the most accurate that are left do not reach it.
    ///
    /// # Errors
    /// Those of `latency`.
    pub(super) fn fastest<X>(
        &self,
        at_least: f64,
        mut latency: impl FnMut(usize, &Cascade) -> Result<f64, X>,
    ) -> Result<Option<Assignment>, X> {
        // The same mean, summed in another order, is not below itself.
        let at_least = at_least - 1e-9;
        let Some(highest) = self
            .most_accurate()
            .filter(|best| self.accuracy(best) >= at_least)
        else {
            return Ok(None);
        };
        let mut choice = Choice {
            workload: self,
            latency: vec![vec![None; self.ladder.len()]; self.weights.len()],
            rungs: Vec::new(),
        };
        for range in 0..self.weights.len() {
            let lowest = self.left(range).next().unwrap_or(0);
            choice.rungs.push(lowest);
            choice.look(range, lowest, &mut latency)?;
        }
        while self.accuracy(&choice.rungs) < at_least {
            match choice.best_step(at_least, &mut latency)? {
                Some((range, rung)) => choice.set(range, rung),
                // What is left does not keep up anywhere; whoever tries it will say so.
                None => return Ok(Some(highest)),
            }
        }
        choice.polish(at_least);
        Ok(Some(choice.rungs))
    }
}

/// An assignment while it is being chosen.
struct Choice<'a> {
    workload: &'a Workload,
    /// By range and rung, as far as known.
    latency: Vec<Vec<Option<f64>>>,
    rungs: Assignment,
}

impl Choice<'_> {
    fn set(&mut self, range: usize, rung: usize) {
        if let Some(at) = self.rungs.get_mut(range) {
            *at = rung;
        }
    }

    fn at(&self, range: usize) -> usize {
        self.rungs.get(range).copied().unwrap_or(0)
    }

    fn known(&self, range: usize, rung: usize) -> Option<f64> {
        *self.latency.get(range)?.get(rung)?
    }

    fn look<X>(
        &mut self,
        range: usize,
        rung: usize,
        latency: &mut impl FnMut(usize, &Cascade) -> Result<f64, X>,
    ) -> Result<f64, X> {
        if let Some(known) = self.known(range, rung) {
            return Ok(known);
        }
        let found = match self.workload.ladder.get(rung) {
            Some(cascade) => latency(range, cascade)?,
            None => f64::INFINITY,
        };
        if let Some(known) = self.latency.get_mut(range).and_then(|rungs| rungs.get_mut(rung)) {
            *known = Some(found);
        }
        Ok(found)
    }

    fn weight(&self, range: usize) -> f64 {
        self.workload.weights.get(range).copied().unwrap_or(0.0)
    }

    /// The step up that gains most accuracy, as far as any is still missing, for the latency it costs.
    fn best_step<X>(
        &mut self,
        at_least: f64,
        latency: &mut impl FnMut(usize, &Cascade) -> Result<f64, X>,
    ) -> Result<Option<(usize, usize)>, X> {
        let missing = at_least - self.workload.accuracy(&self.rungs);
        let mut best = None;
        let mut highest = f64::NEG_INFINITY;
        for range in 0..self.rungs.len() {
            let now = self.at(range);
            let before = self.look(range, now, latency)?;
            let steps: Vec<usize> = self
                .workload
                .left(range)
                .filter(|rung| *rung > now)
                .take(REACH)
                .collect();
            for rung in steps {
                let after = self.look(range, rung, latency)?;
                let weight = self.weight(range);
                let gain = weight * (self.workload.accuracy_of(rung) - self.workload.accuracy_of(now));
                if gain <= 0.0 || after.is_infinite() {
                    continue;
                }
                let cost = weight * (after - before);
                let score = if cost > 0.0 {
                    gain.min(missing) / cost
                } else {
                    f64::INFINITY
                };
                if score > highest || best.is_none() {
                    highest = score;
                    best = Some((range, rung));
                }
            }
        }
        Ok(best)
    }

    /// Moves one range, or two, to rungs already looked at, as long as that lowers the latency and keeps the accuracy.
    fn polish(&mut self, at_least: f64) {
        while let Some(moves) = self.best_moves(at_least) {
            for (range, rung) in moves {
                self.set(range, rung);
            }
        }
    }

    fn best_moves(&self, at_least: f64) -> Option<Vec<(usize, usize)>> {
        let slack = self.workload.accuracy(&self.rungs) - at_least;
        let mut singles: Vec<(usize, usize, f64, f64)> = Vec::new();
        for range in 0..self.rungs.len() {
            let now = self.at(range);
            let before = self.known(range, now)?;
            for rung in self.workload.left(range).filter(|rung| *rung != now) {
                if let Some(after) = self.known(range, rung).filter(|after| after.is_finite()) {
                    let weight = self.weight(range);
                    let accuracy = self.workload.accuracy_of(rung) - self.workload.accuracy_of(now);
                    singles.push((range, rung, weight * (after - before), weight * accuracy));
                }
            }
        }
        let mut best = None;
        let mut lowest = -1e-9 * self.rungs.len() as f64;
        for (place, (range, rung, cost, gain)) in singles.iter().enumerate() {
            if *cost < lowest && slack + gain >= 0.0 {
                lowest = *cost;
                best = Some(vec![(*range, *rung)]);
            }
            for (other, up, more, extra) in singles.iter().skip(place + 1) {
                if other != range && cost + more < lowest && slack + gain + extra >= 0.0 {
                    lowest = cost + more;
                    best = Some(vec![(*range, *rung), (*other, *up)]);
                }
            }
        }
        best
    }
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
