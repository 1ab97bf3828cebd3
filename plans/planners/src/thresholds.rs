//! Confidence thresholds: the accuracy-energy frontier of a cascade and its named points (HybridServe §IV-B, Algorithm 1).
//!
//! A threshold only matters between observed confidences, so a validation set has finitely many cascades, and the frontier
//! is a fact about it that can be computed instead of sampled.
//!
//! | module | holds |
//! |---|---|
//! | [`family`](Family) | the part of a profile that the search uses |
//! | [`evaluate`](evaluate()) | evaluation of a given cascade on the validation set |
//! | `observations`, `scoring` | what deferral scores read besides confidences; families with scores in place of confidences |
//! | `point`, `table` | a cascade on the frontier; the samples of every gate in order of confidence |
//! | `pareto_front` | the frontier under construction |
//! | `exact` | all useful cascades, for short cascades |
//! | `sampled` | random cascades, refined line by line, for long ones |
//! | [`named`](NonInferiorityTest) | the accuracy-preserving and the energy-optimising point, and the test against overfitting the validation set |

mod evaluate;
mod exact;
mod family;
mod named;
mod observations;
mod pareto_front;
mod point;
mod sampled;
mod scoring;
#[cfg(test)]
pub(crate) mod synthetic;
mod table;

pub use evaluate::{Band, CascadeOutcome, Exits, evaluate, threshold_exits};
pub use family::{Column, CostBasis, Family, FamilyError, Minimise};
pub use named::{Baseline, NonInferiorityTest, Paired, alone};
pub(crate) use named::{accuracy_preserving, energy_optimising};
pub use point::{FORWARD_ALL, Frontier, Point};
pub(crate) use scoring::{Features, Scoring};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use evaluate::Counts;
use pareto_front::{Kept, ParetoFront};
use table::Table;
pub(crate) use table::between;

/// Options of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// Seed of the random part. The same seed finds the same frontier.
    pub seed: u64,
    /// Most steps (visits of one sample at one gate, about a nanosecond each) of the exact search before it gives way to what the
    /// sampled one found. A count and no time, so that the outcome does not depend on the machine.
    pub exact_steps: u64,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            seed: 0,
            exact_steps: 100_000_000,
        }
    }
}

/// Points of a frontier at most: there may be nearly as many as samples.
const MAX_POINTS: usize = 1_000;

/// The frontier of all cascades over this family (Algorithm 1), of which at most 1,000 points are kept, evenly spread.
///
/// First sampled: the paper's random thresholds, refined around the best. That is a good bound from the start for the
/// exact search, which then leaves out whatever cannot beat it, and is the result if the exact search would take too long.
///
/// Of more than 20,000 samples, the random thresholds are tried on 20,000, and those of the frontier that is found there are refined on all.
pub fn frontier(family: &Family, search: &Search) -> Frontier {
    let table = Table::new(family);
    let gates = table.gates.len();
    let mut front = ParetoFront::new(family.samples(), gates);
    if family.samples() > sampled::MAX_SAMPLES {
        let few = Table::new(&family.of_samples(&drawn(family.samples(), sampled::MAX_SAMPLES)));
        let mut rough = ParetoFront::new(few.samples, gates);
        sampled::search(&few, search.seed, &mut rough);
        let cuts = rough.cascades().map(|kept| table.cuts(&few.thresholds(kept)));
        sampled::search_from(&table, &cuts.collect::<Vec<_>>(), search.seed, &mut front);
    } else {
        sampled::search(&table, search.seed, &mut front);
    }
    let exact = exact::search(&table, search.exact_steps, &mut front);
    let point = |kept: Kept<'_>| {
        let counts = Counts::of_plain(table.samples, kept.right, kept.forwarded);
        let outcome = counts.outcome(family, Vec::new());
        outcome.into_point(table.thresholds(kept))
    };
    let cascades: Vec<Kept<'_>> = front.cascades().collect();
    let kept = evenly(&cascades, MAX_POINTS);
    Frontier {
        exact: exact && kept.len() == cascades.len(),
        points: kept.into_iter().map(point).collect(),
    }
}

/// Returns the places of `most` of that many samples, drawn at random and always the same, ascending.
pub(crate) fn drawn(samples: usize, most: usize) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(0xd4a3);
    let mut places: Vec<usize> = (0..samples).collect();
    let mut drawn = places.partial_shuffle(&mut rng, most).0.to_vec();
    drawn.sort_unstable();
    drawn
}

/// Returns at most this many of some points, at least 2, at even distances: the first and the last are among them.
fn evenly<T: Copy>(points: &[T], most: usize) -> Vec<T> {
    if points.len() <= most {
        return points.to_vec();
    }
    let last = points.len() - 1;
    let steps = (0..most).filter_map(|step| points.get(step * last / (most - 1)));
    steps.copied().collect()
}

#[cfg(test)]
mod study;
#[cfg(test)]
mod tests;
