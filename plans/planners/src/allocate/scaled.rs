//! Flows that fit into the workers, and how many workers they need.

use std::collections::BTreeMap;

use super::flow::{self, Flow};
use super::paths::Paths;
use super::round::whole;
use crate::lp::LpError;

/// Flows that fit into the workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scaled {
    /// Requests/s at the root.
    pub(super) demand: f64,
    pub(super) flows: Vec<Flow>,
    pub(super) accuracy: f64,
    pub(super) bound: f64,
    pub(super) error: Option<LpError>,
}

/// Whole workers by configuration; whatever is used at all has one.
pub(super) fn needs(paths: &Paths, flows: &[Flow], demand: f64) -> BTreeMap<usize, f64> {
    let loads = flow::loads(paths, flows).into_iter();
    loads
        .filter(|(_, load)| *load > 0.0)
        .map(|(config, load)| (config, whole(load * demand).max(1.0)))
        .collect()
}
