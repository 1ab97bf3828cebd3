//! The best placement of all combinations: greedy ones for as many as the bounds do not rule out, annealed ones for the best of those, and
//! exact ones where they are small.

use super::candidates::{Candidate, Candidates};
use super::error::PlacementError;
use super::inputs::{Case, FeasiblePartition};
use super::options::SearchLimits;
use super::outcome::{Proof, Shapes};
use super::problem::Cluster;
use super::shapes::{Parts, ReplicaPartition};
use super::solve::{self, Solved};

/// Steps of the greedy placement, over all combinations: instances times devices.
const GREEDY_STEPS: u64 = 10_000_000;

/// Combinations that are annealed, and how often the best of them is annealed again; together they have three fifths of the moves and two.
const ANNEALED: usize = 6;
const REANNEALED: u64 = 2;

/// Programs that are solved.
const PROGRAMS: u64 = 48;

/// A placement of a combination, and what was done to find it.
pub(super) struct SearchResult {
    pub(super) shape: ReplicaPartition,
    pub(super) parts: Parts,
    pub(super) solved: Solved,
    pub(super) qps: f64,
    pub(super) proof: Proof,
    pub(super) shapes: Shapes,
}

/// The best placement of all combinations that carry the load.
///
/// # Errors
/// A [`PlacementError`] if none was placed.
pub(super) fn search(
    case: &Case<'_>,
    cluster: &Cluster,
    qps: f64,
    seen: Option<FeasiblePartition>,
) -> Result<SearchResult, PlacementError> {
    let limits = &case.options.limits;
    let Candidates {
        list: mut candidates,
        mut shapes,
        unseen,
    } = case.candidates(cluster, qps, limits.shapes)?;
    let seen = seen.map(|(shape, solved)| {
        let mut candidate = case.candidate(cluster, shape, case.models.batch / qps);
        candidate.attempt.best = Some(solved);
        candidate.tried = true;
        candidate
    });
    if let Some(seen) = seen {
        candidates.retain(|candidate| candidate.shape != seen.shape);
        candidates.push(seen);
    }
    candidates.sort_by(|a, b| {
        let by_bound = a.attempt.lower.total_cmp(&b.attempt.lower);
        by_bound
            .then(a.instances.cmp(&b.instances))
            .then(a.shape.cmp(&b.shape))
    });
    try_all(cluster, &mut candidates, &mut shapes);
    anneal(cluster, &mut candidates, &mut shapes, limits, case.options.seed);
    prove(cluster, &mut candidates, &mut shapes, limits);
    let Some((place, overhead)) = best(&candidates) else {
        let proven = shapes.all && candidates.iter().all(|one| one.attempt.lower.is_infinite());
        return Err(unplaced(qps, &shapes, candidates.len() as u64, proven));
    };
    let lowers = candidates.iter().map(|candidate| candidate.attempt.lower);
    let proof = proof(overhead, lowers.fold(unseen, f64::min));
    let chosen = candidates.into_iter().nth(place);
    let found = chosen.and_then(|chosen| {
        Some(SearchResult {
            solved: chosen.attempt.best?,
            shape: chosen.shape,
            parts: chosen.parts,
            qps,
            proof,
            shapes,
        })
    });
    found.ok_or_else(|| unplaced(qps, &shapes, 0, false))
}

/// The best placement so far: whose it is, and what it costs.
fn best(candidates: &[Candidate]) -> Option<(usize, f64)> {
    let placed = candidates.iter().enumerate();
    placed
        .filter_map(|(place, candidate)| Some((place, candidate.attempt.best.as_ref()?.overhead)))
        .min_by(|a, b| a.1.total_cmp(&b.1))
}

/// Greedy placements, in the order of the bounds, until the bounds rule the rest out or the steps are used up.
fn try_all(cluster: &Cluster, candidates: &mut [Candidate], shapes: &mut Shapes) {
    let devices = cluster.devices.len() as u64;
    let mut steps = GREEDY_STEPS;
    let mut best = f64::INFINITY;
    for candidate in candidates {
        let needed = candidate.instances * devices;
        if solve::is_least(best, candidate.attempt.lower) || (needed > steps && best.is_finite()) {
            return;
        }
        steps = steps.saturating_sub(needed);
        let seen = candidate.attempt.best.take();
        candidate.attempt = solve::first(&candidate.problem(cluster));
        solve::keep(&mut candidate.attempt, seen);
        candidate.tried = true;
        shapes.tried += 1;
        if let Some(found) = &candidate.attempt.best {
            best = best.min(found.overhead);
        }
    }
}

/// Anneals the most promising: those placed best, then those not placed yet of the lowest bound; and the best of them again.
fn anneal(
    cluster: &Cluster,
    candidates: &mut [Candidate],
    shapes: &mut Shapes,
    limits: &SearchLimits,
    seed: u64,
) {
    let order = promising(candidates);
    let moves = limits.moves * 3 / 5 / (order.len() as u64).max(1);
    let mut least = f64::INFINITY;
    for place in order {
        let Some(candidate) = candidates.get_mut(place) else {
            continue;
        };
        if solve::is_least(least, candidate.attempt.lower) {
            continue;
        }
        let problem = candidate.problem(cluster);
        solve::refine(&problem, &mut candidate.attempt, moves, seed);
        shapes.annealed += 1;
        if let Some(found) = &candidate.attempt.best {
            least = least.min(found.overhead);
        }
    }
    let winner = best(candidates).and_then(|(place, _)| candidates.get_mut(place));
    if let Some(winner) = winner {
        let problem = winner.problem(cluster);
        for time in 1..=REANNEALED {
            let moves = limits.moves * 2 / 5 / REANNEALED;
            solve::again(&problem, &mut winner.attempt, moves, seed.wrapping_add(time));
        }
    }
}

/// The combinations to anneal, the most promising first.
fn promising(candidates: &[Candidate]) -> Vec<usize> {
    let open = candidates.iter().enumerate();
    let open = open.filter(|(_, one)| one.tried && !one.attempt.is_settled());
    let mut rated: Vec<(usize, f64, f64)> = open
        .map(|(place, one)| {
            let overhead = one.attempt.best.as_ref().map(|best| best.overhead);
            (place, overhead.unwrap_or(f64::INFINITY), one.attempt.lower)
        })
        .collect();
    rated.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.2.total_cmp(&b.2)));
    rated.truncate(ANNEALED);
    rated.into_iter().map(|(place, ..)| place).collect()
}

/// Integer programs for the small ones that the bounds do not rule out.
fn prove(cluster: &Cluster, candidates: &mut [Candidate], shapes: &mut Shapes, limits: &SearchLimits) {
    let mut least = best(candidates).map_or(f64::INFINITY, |(_, overhead)| overhead);
    for candidate in candidates {
        let cells = candidate.instances as usize * cluster.devices.len();
        let hopeless = solve::is_least(least, candidate.attempt.lower);
        if hopeless || cells > limits.exact_cells || shapes.programs >= PROGRAMS {
            continue;
        }
        shapes.programs += 1;
        solve::prove(&candidate.problem(cluster), &mut candidate.attempt, limits);
        if let Some(found) = &candidate.attempt.best {
            least = least.min(found.overhead);
        }
    }
}

/// The error if no combination was placed.
pub(super) fn unplaced(qps: f64, shapes: &Shapes, unpacked: u64, proven: bool) -> PlacementError {
    PlacementError::Unplaced {
        qps,
        examined: shapes.examined,
        memory: shapes.memory,
        utilisation: shapes.utilisation,
        unpacked,
        proven,
    }
}

/// How good a placement is, of which it is known that none is better than `lower`.
fn proof(overhead: f64, lower: f64) -> Proof {
    if solve::is_least(overhead, lower) {
        Proof::Optimal
    } else if lower > 0.0 {
        Proof::Gap {
            lower_s: lower,
            gap: 1.0 - lower / overhead,
        }
    } else {
        Proof::NoBound
    }
}
