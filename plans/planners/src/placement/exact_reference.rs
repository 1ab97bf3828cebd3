//! The integer program alone, as a baseline for cases that are too large for exhaustive search.

use std::time::Duration;

use super::curves::Curves;
use super::error::PlacementError;
use super::options::PlacementOptions;
use super::outcome::Placement;
use super::problem::{Cluster, Problem};
use super::program::Placing;
use super::shapes::{Models, ReplicaPartition};
use crate::lp::{Limits, LpError, Solver};
use kaskade_policy::profile::Profile;

/// The result of a solver for a placed combination.
#[derive(Debug, Clone, PartialEq)]
pub struct ExactResult {
    /// Instances of the combination.
    pub instances: usize,
    /// Variables of the integer program.
    pub variables: usize,
    /// Seconds of transfer per period of the placement that the solver found; or why it found none.
    pub overhead_s: Result<f64, LpError>,
    /// Whether the solver got to the end: then nothing of this combination moves less.
    pub proven: bool,
}

/// Solves the integer program of the combination that was placed, on the same devices and for the same load, with no placement to begin
/// from. `time` is the solver's own limit; the embedded one is limited by `nodes`.
///
/// # Errors
/// A [`PlacementError`] if the profile no longer has what the placement was made from.
pub fn solve_exactly(
    profile: &Profile,
    placed: &Placement,
    options: &PlacementOptions,
    solver: Solver,
    time: Option<Duration>,
    nodes: Option<u64>,
) -> Result<ExactResult, PlacementError> {
    let of = |name: &String| {
        let mut variants = profile.variants.iter();
        let known = variants.find(|known| known.name == *name);
        let known = known.ok_or_else(|| PlacementError::NoVariant { name: name.clone() })?;
        Curves::new(known, options)
    };
    let curves: Vec<Curves> = placed.flow.variants.iter().map(of).collect::<Result<_, _>>()?;
    let models = Models::new(&placed.flow, &curves, options);
    let shape = ReplicaPartition {
        replicas: placed.models.iter().map(|model| model.replicas).collect(),
        partitions: placed.models.iter().map(|model| model.partitions).collect(),
    };
    let parts = models.parts(&shape, f64::from(options.batch) / placed.qps);
    let cluster = Cluster::new(options, options.devices.len());
    let problem = Problem::new(&cluster, parts.kinds, parts.pairs, parts.chains);
    let placing = Placing::new(&problem);
    let limits = Limits {
        nodes,
        time,
        ..Limits::NONE
    };
    let found = placing.solve(None, solver, &limits);
    Ok(ExactResult {
        instances: problem.instances.len(),
        variables: placing.variables(),
        proven: found.as_ref().is_ok_and(|found| found.proven),
        overhead_s: found.map(|found| problem.overhead(&found.placed)),
    })
}
