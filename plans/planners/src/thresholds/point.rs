//! Cascades on the frontier of accuracy and energy.

use serde::Serialize;

/// A threshold that no confidence reaches: the stage forwards everything.
pub const FORWARD_ALL: f64 = 2.0;

/// A cascade on the frontier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// One per variant but the last: a confidence below it is forwarded. 0 forwards nothing, [`FORWARD_ALL`] everything.
    pub thresholds: Vec<f64>,
    /// Share of right answers on the validation set.
    pub accuracy: f64,
    /// Joules per request, the sum of `rho_i e_i` (or seconds, see [`CostBasis`](super::CostBasis)).
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
    /// Whether this is the whole frontier, proven; otherwise it is what the search found, or a part of it.
    pub exact: bool,
}
