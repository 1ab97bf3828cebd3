//! SP2, workload adaption: which cascade serves which range of load (CascadeServe §4.3).
//!
//! Every range starts with the best cascade by what is not promised: the most accurate one under a latency objective, the
//! fastest one under an accuracy objective. What the other submodules cannot carry is ruled out, one cascade in one range per
//! violation, so that the search ends.
//!
//! An accuracy objective applies to the mean over all ranges, weighed by the served load, so some ranges must be served
//! more accurately than by the fastest. A latency costs a simulation, so not all are known: steps that gain much accuracy for
//! little latency lead to a first choice, and the best choice among all examined ones is then found
//! exactly, but for the rounding of accuracies.

use super::search::Cascade;
use super::violation::{Violation, ViolationKind};

/// The cascades to choose from, and those that are ruled out.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    /// Ascending in accuracy.
    pub(super) pareto_cascades: Vec<Cascade>,
    /// How much is served in every range, summing to 1.
    weights: Vec<f64>,
    /// Whether a cascade is allowed, by range and cascade.
    allowed: Vec<Vec<bool>>,
}

/// The cascade of every range, as an index into the Pareto cascades.
pub(super) type Assignment = Vec<usize>;

/// Maximum number of cascades that a step goes up.
const REACH: usize = 4;

/// Cascades on either side of a choice that are examined before it is final.
const AROUND: usize = 3;

/// Steps that the missing accuracy is counted in.
const UNITS: usize = 20_000;

impl Workload {
    pub(super) fn new(pareto_cascades: Vec<Cascade>, weights: Vec<f64>) -> Self {
        let allowed = vec![vec![true; pareto_cascades.len()]; weights.len()];
        Self {
            pareto_cascades,
            weights,
            allowed,
        }
    }

    /// Adds new cascades, which no range has ruled out.
    pub(super) fn add(&mut self, fresh: &[Cascade]) {
        for cascade in fresh {
            if self.pareto_cascades.contains(cascade) {
                continue;
            }
            let at = self
                .pareto_cascades
                .partition_point(|other| other.accuracy <= cascade.accuracy);
            self.pareto_cascades.insert(at, cascade.clone());
            for allowed in &mut self.allowed {
                allowed.insert(at, true);
            }
        }
    }

    /// Mean accuracy of an assignment, weighed by how much is served in the ranges.
    pub(super) fn accuracy(&self, assignment: &[usize]) -> f64 {
        self.weights
            .iter()
            .zip(assignment)
            .map(|(weight, level)| weight * self.accuracy_of(*level))
            .sum()
    }

    fn accuracy_of(&self, level: usize) -> f64 {
        self.pareto_cascades
            .get(level)
            .map_or(0.0, |cascade| cascade.accuracy)
    }

    /// The allowed cascades of a range, ascending.
    fn left(&self, range: usize) -> impl DoubleEndedIterator<Item = usize> {
        let allowed = self.allowed.get(range).map_or(&[][..], Vec::as_slice);
        allowed
            .iter()
            .enumerate()
            .filter(|(_, allowed)| **allowed)
            .map(|(level, _)| level)
    }

    /// The most accurate cascade that is left in every range. `None` if a range has none.
    pub(super) fn most_accurate(&self) -> Option<Assignment> {
        (0..self.weights.len())
            .map(|range| self.left(range).next_back())
            .collect()
    }

    /// Rules out what a violation names: the cascade of its range. A lack of memory is the doing of all ranges that use its model;
    /// of these (or else of all) the range is taken that loses least. Gives what was ruled out, `None` if there is nothing left
    /// to fall back to.
    pub(super) fn rule_out(
        &mut self,
        assignment: &[usize],
        violation: &Violation,
        model: usize,
    ) -> Option<(usize, usize)> {
        let ranges: Vec<usize> = match violation.kind {
            ViolationKind::Memory { .. } => (0..assignment.len()).collect(),
            _ => vec![violation.range],
        };
        let uses = |range: usize| {
            let cascade = assignment
                .get(range)
                .and_then(|level| self.pareto_cascades.get(*level));
            cascade.is_some_and(|cascade| cascade.models().contains(model))
        };
        let (range, level) = ranges
            .into_iter()
            .filter_map(|range| Some((range, *assignment.get(range)?)))
            .filter(|(range, _)| self.left(*range).nth(1).is_some())
            .min_by(|a, b| {
                let key = |(range, level): &(usize, usize)| (!uses(*range), self.loss(*range, *level));
                let ((a_spares, a_loss), (b_spares, b_loss)) = (key(a), key(b));
                a_spares.cmp(&b_spares).then(a_loss.total_cmp(&b_loss))
            })?;
        *self.allowed.get_mut(range)?.get_mut(level)? = false;
        Some((range, level))
    }

    /// The loss of mean accuracy of the step down to the next cascade.
    fn loss(&self, range: usize, level: usize) -> f64 {
        let below = self
            .left(range)
            .rev()
            .find(|below| *below < level)
            .unwrap_or(level);
        let weight = self.weights.get(range).copied().unwrap_or(0.0);
        weight * (self.accuracy_of(level) - self.accuracy_of(below))
    }

    /// The assignment of least mean latency that reaches an accuracy, among what is allowed. `latency` returns the latency of a range with a
    /// cascade (any unit; infinite if it does not keep up). `None` if the most accurate that are left do not reach it.
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
            latency: vec![vec![None; self.pareto_cascades.len()]; self.weights.len()],
            levels: Vec::new(),
        };
        for range in 0..self.weights.len() {
            let lowest = self.left(range).next().unwrap_or(0);
            choice.levels.push(lowest);
            choice.measure(range, lowest, &mut latency)?;
            // No cascade of such accuracy answers its slowest requests sooner than a variant alone.
            let single = |level: &usize| {
                self.pareto_cascades
                    .get(*level)
                    .is_some_and(|cascade| cascade.variants.len() == 1)
            };
            for level in self.left(range).filter(single) {
                choice.measure(range, level, &mut latency)?;
            }
        }
        while self.accuracy(&choice.levels) < at_least {
            match choice.best_step(at_least, &mut latency)? {
                Some((range, level)) => choice.set(range, level),
                // No allowed cascade keeps up; the caller reports it.
                None => return Ok(Some(highest)),
            }
        }
        // Around the choice there may be better ones that the steps led past.
        loop {
            choice.examine_neighbours(&mut latency)?;
            match choice.best_known(at_least) {
                Some(better) => choice.levels = better,
                None => return Ok(Some(choice.levels)),
            }
        }
    }
}

/// An assignment while it is being chosen.
struct Choice<'a> {
    workload: &'a Workload,
    /// Latency by range and cascade, as far as known.
    latency: Vec<Vec<Option<f64>>>,
    levels: Assignment,
}

impl Choice<'_> {
    fn set(&mut self, range: usize, level: usize) {
        if let Some(at) = self.levels.get_mut(range) {
            *at = level;
        }
    }

    fn at(&self, range: usize) -> usize {
        self.levels.get(range).copied().unwrap_or(0)
    }

    fn known(&self, range: usize, level: usize) -> Option<f64> {
        *self.latency.get(range)?.get(level)?
    }

    fn measure<X>(
        &mut self,
        range: usize,
        level: usize,
        latency: &mut impl FnMut(usize, &Cascade) -> Result<f64, X>,
    ) -> Result<f64, X> {
        if let Some(known) = self.known(range, level) {
            return Ok(known);
        }
        let found = match self.workload.pareto_cascades.get(level) {
            Some(cascade) => latency(range, cascade)?,
            None => f64::INFINITY,
        };
        if let Some(known) = self
            .latency
            .get_mut(range)
            .and_then(|levels| levels.get_mut(level))
        {
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
        let missing = at_least - self.workload.accuracy(&self.levels);
        let mut best = None;
        let mut highest = f64::NEG_INFINITY;
        for range in 0..self.levels.len() {
            let now = self.at(range);
            let before = self.measure(range, now, latency)?;
            let steps: Vec<usize> = self
                .workload
                .left(range)
                .filter(|level| *level > now)
                .take(REACH)
                .collect();
            for level in steps {
                let after = self.measure(range, level, latency)?;
                let weight = self.weight(range);
                let gain = weight * (self.workload.accuracy_of(level) - self.workload.accuracy_of(now));
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
                    best = Some((range, level));
                }
            }
        }
        Ok(best)
    }

    /// Examines the cascades next to the present ones.
    fn examine_neighbours<X>(
        &mut self,
        latency: &mut impl FnMut(usize, &Cascade) -> Result<f64, X>,
    ) -> Result<(), X> {
        for range in 0..self.levels.len() {
            let now = self.at(range);
            let below = self
                .workload
                .left(range)
                .rev()
                .filter(|level| *level < now)
                .take(AROUND);
            let above = self
                .workload
                .left(range)
                .filter(|level| *level > now)
                .take(AROUND);
            for level in below.chain(above).collect::<Vec<usize>>() {
                self.measure(range, level, latency)?;
            }
        }
        Ok(())
    }

    /// The least mean latency of all examined assignments, if it is below the present one: a knapsack, one range
    /// at a time, over the accuracy that is still to be gained in [`UNITS`] steps.
    fn best_known(&self, at_least: f64) -> Option<Assignment> {
        let least: f64 = (0..self.levels.len())
            .map(|range| self.gain(range, self.lowest(range)))
            .sum();
        let missing = at_least - least;
        let mut cheapest = vec![f64::INFINITY; UNITS + 1];
        if let Some(none) = cheapest.first_mut() {
            *none = 0.0;
        }
        let mut chosen: Vec<Vec<(usize, usize)>> = Vec::new();
        for range in 0..self.levels.len() {
            let base = self.gain(range, self.lowest(range));
            let options: Vec<(usize, usize, f64)> = self
                .looked_at(range)
                .map(|(level, latency)| {
                    // Rounded down: what reaches the accuracy in units reaches it in truth.
                    let gained = (self.gain(range, level) - base) / missing * UNITS as f64;
                    let units = if missing > 0.0 {
                        gained.max(0.0) as usize
                    } else {
                        UNITS
                    };
                    (level, units.min(UNITS), self.weight(range) * latency)
                })
                .collect();
            let best = |units: usize| {
                let total = |(level, gained, cost): &(usize, usize, f64)| {
                    let before = units.saturating_sub(*gained);
                    (
                        *level,
                        before,
                        cheapest
                            .get(before)
                            .map_or(f64::INFINITY, |cheapest| cheapest + cost),
                    )
                };
                options
                    .iter()
                    .map(total)
                    .min_by(|(.., a), (.., b)| a.total_cmp(b))
            };
            let row: Vec<(usize, usize, f64)> = (0..=UNITS).map_while(best).collect();
            cheapest = row.iter().map(|(.., cost)| *cost).collect();
            chosen.push(
                row.into_iter()
                    .map(|(level, before, _)| (level, before))
                    .collect(),
            );
        }
        let found = *cheapest.last()?;
        if found.is_infinite() || found >= self.latency_of_choice() * (1.0 - 1e-9) {
            return None;
        }
        let mut units = UNITS;
        let mut levels = Vec::new();
        for row in chosen.iter().rev() {
            let (level, before) = *row.get(units)?;
            levels.push(level);
            units = before;
        }
        levels.reverse();
        (self.workload.accuracy(&levels) >= at_least).then_some(levels)
    }

    /// Returns the contribution of a cascade to the mean accuracy.
    fn gain(&self, range: usize, level: usize) -> f64 {
        self.weight(range) * self.workload.accuracy_of(level)
    }

    /// The examined cascades of a range that keep up, with their latencies, ascending.
    fn looked_at(&self, range: usize) -> impl Iterator<Item = (usize, f64)> {
        let known = move |level| {
            Some((
                level,
                self.known(range, level).filter(|latency| latency.is_finite())?,
            ))
        };
        self.workload.left(range).filter_map(known)
    }

    fn lowest(&self, range: usize) -> usize {
        self.looked_at(range)
            .next()
            .map_or_else(|| self.at(range), |(level, _)| level)
    }

    fn latency_of_choice(&self) -> f64 {
        let latency = |range| self.known(range, self.at(range)).unwrap_or(f64::INFINITY);
        (0..self.levels.len())
            .map(|range| self.weight(range) * latency(range))
            .sum()
    }
}

#[cfg(test)]
mod tests;
