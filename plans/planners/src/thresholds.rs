//! Confidence thresholds: the accuracy-energy frontier of a cascade and its named points (HybridServe §IV-B, Algorithm 1).
//!
//! A threshold only matters between observed confidences, so a validation set has finitely many cascades, and the frontier
//! is a fact about it that can be computed instead of sampled.
//!
//! | module | holds |
//! |---|---|
//! | [`family`](Family) | what the search reads of a profile |
//! | [`evaluate`](evaluate()) | what a given cascade would have done on the validation set |
//! | `envelope` | the frontier while it is being found |
//! | `exact` | all cascades worth looking at, for short cascades |
//! | `sampled` | random cascades, refined line by line, for long ones |
//! | [`named`](Guard) | the accuracy-preserving and the energy-optimising point, and the guard against luck |

mod envelope;
mod evaluate;
mod exact;
mod family;
mod named;
mod sampled;
#[cfg(test)]
pub(crate) mod synthetic;
mod table;

use serde::Serialize;

pub use evaluate::{Band, Exits, Outcome, evaluate, threshold_exits};
pub use family::{Column, CostBasis, Family, FamilyError};
pub use named::{Guard, Paired, Yardstick, accuracy_preserving, alone, energy_optimising};

use envelope::Envelope;
use table::Table;

/// A threshold that no confidence reaches: the stage forwards everything.
pub const FORWARD_ALL: f64 = 2.0;

/// A cascade on the frontier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// One per variant but the last: a confidence below it is forwarded. 0 forwards nothing, [`FORWARD_ALL`] everything.
    pub thresholds: Vec<f64>,
    /// Share of right answers on the validation set.
    pub accuracy: f64,
    /// Joules per request, the sum of `rho_i e_i` (or seconds, see [`CostBasis`]).
    pub energy_j: f64,
    /// Share of requests that every variant runs, `rho_i`.
    pub reach: Vec<f64>,
    /// Share of requests that every variant answers, summing to 1.
    pub answered: Vec<f64>,
}

/// The accuracy-energy frontier of a family.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Frontier {
    /// Cascades that none other beats, ascending in energy and in accuracy. Never empty.
    pub points: Vec<Point>,
    /// Whether this is the whole frontier, proven; otherwise it is what the search found.
    pub exact: bool,
}

/// How hard to search.
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

/// The frontier of all cascades over this family (Algorithm 1).
///
/// First sampled: the paper's random thresholds, refined around the best. That is a good bound from the start for the
/// exact search, which then leaves out whatever cannot beat it, and stands if the exact search would take too long.
pub fn frontier(family: &Family, search: &Search) -> Frontier {
    let table = Table::new(family);
    let mut envelope = Envelope::new(family.samples());
    sampled::search(&table, search.seed, &mut envelope);
    let exact = exact::search(&table, search.exact_steps, &mut envelope);
    let points = envelope.cuts().map(|cuts| table.point(cuts)).collect();
    Frontier { points, exact }
}

#[cfg(test)]
mod study;
#[cfg(test)]
mod tests;
