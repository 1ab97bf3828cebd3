//! Places one combination: a first placement, annealed, and exact if it is small. One function for all solvers.

use super::anneal;
use super::bound;
use super::greedy::{self, Prefer};
use super::layout::Layout;
use super::options::SearchLimits;
use super::problem::{Problem, SLACK};
use super::program::Placing;
use crate::lp::{Limits, LpError, Solver};

/// A placement that meets equations 3 and 4.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Solved {
    /// Devices by instance.
    pub(super) placed: Vec<usize>,
    /// Seconds of transfer per period.
    pub(super) overhead: f64,
}

/// Bounds and best placement of a combination.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attempt {
    /// The best placement found.
    pub(super) best: Option<Solved>,
    /// Lower bound, seconds of transfer per period; infinite if there is certainly no placement.
    pub(super) lower: f64,
}

impl Attempt {
    /// Whether there is nothing more to find.
    pub(super) fn is_settled(&self) -> bool {
        self.best.as_ref().map_or(self.lower.is_infinite(), |best| {
            is_least(best.overhead, self.lower)
        })
    }
}

/// Whether an overhead is as low as a bound, but for rounding.
pub(super) fn is_least(overhead: f64, lower: f64) -> bool {
    overhead <= lower * (1.0 + SLACK) + f64::MIN_POSITIVE
}

/// Solves without search: the bound, and a placement if one of the two greedy ones meets the equations.
pub(super) fn first(problem: &Problem<'_>) -> Attempt {
    let lower = bound::overhead(problem.cluster, &problem.kinds, &problem.pairs, &problem.chains);
    let tries = [Prefer::Nearness, Prefer::Fullness].map(|prefer| greedy::place(problem, prefer));
    let best = tries
        .into_iter()
        .filter_map(|layout| sound(problem, layout.placed().to_vec()));
    Attempt {
        best: best.min_by(|a, b| a.overhead.total_cmp(&b.overhead)),
        lower,
    }
}

/// Anneals again, from the greedy placement.
pub(super) fn again(problem: &Problem<'_>, attempt: &mut Attempt, moves: u64, seed: u64) {
    if !attempt.is_settled() {
        let start = greedy::place(problem, Prefer::Nearness);
        keep(
            attempt,
            sound(problem, anneal::improve(start, problem, moves, seed)),
        );
    }
}

/// Anneals from the best placement known, or from the greedy one.
pub(super) fn refine(problem: &Problem<'_>, attempt: &mut Attempt, moves: u64, seed: u64) {
    if attempt.is_settled() {
        return;
    }
    let start = match &attempt.best {
        Some(best) => {
            let mut layout = Layout::new(problem);
            for (instance, device) in best.placed.iter().enumerate() {
                layout.put(instance, *device);
            }
            layout
        }
        None => greedy::place(problem, Prefer::Fullness),
    };
    let found = anneal::improve(start, problem, moves, seed);
    keep(attempt, sound(problem, found));
}

/// Solves the integer program, if it is small enough.
pub(super) fn prove(problem: &Problem<'_>, attempt: &mut Attempt, search: &SearchLimits) {
    let cells = problem.instances.len() * problem.cluster.devices.len();
    if attempt.is_settled() || cells > search.exact_cells {
        return;
    }
    let limits = Limits {
        nodes: Some(search.exact_nodes),
        time: search.solver_time.filter(|_| search.solver != Solver::Embedded),
        ..Limits::NONE
    };
    let start = attempt.best.as_ref().map(|best| best.placed.as_slice());
    match Placing::new(problem).solve(start, search.solver, &limits) {
        Ok(found) => {
            keep(attempt, sound(problem, found.placed));
            if let Some(best) = attempt.best.as_ref().filter(|_| found.proven) {
                attempt.lower = attempt.lower.max(best.overhead);
            }
        }
        Err(LpError::Infeasible) if attempt.best.is_none() => attempt.lower = f64::INFINITY,
        // Another solver is optional: without its answer, the one found before is used.
        Err(_) => {}
    }
}

/// Keeps a placement if it is better than the best known.
pub(super) fn keep(attempt: &mut Attempt, found: Option<Solved>) {
    let better = |found: &Solved| {
        attempt
            .best
            .as_ref()
            .is_none_or(|best| found.overhead < best.overhead)
    };
    if let Some(found) = found.filter(better) {
        attempt.best = Some(found);
    }
}

/// A placement, if it meets equations 3 and 4.
fn sound(problem: &Problem<'_>, placed: Vec<usize>) -> Option<Solved> {
    (problem.overload(&placed) <= 0.0).then(|| Solved {
        overhead: problem.overhead(&placed),
        placed,
    })
}

#[cfg(test)]
mod tests;
