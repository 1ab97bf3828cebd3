//! The result of an allocator.

use serde::Serialize;

use crate::balance::Instances;
use crate::lp::LpError;

/// The variants that serve a pipeline, with their workers and batches.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Allocation {
    /// The policy that decided, as the plan names it.
    pub policy: &'static str,
    /// Kind of scaling that meets the demand.
    pub scaling: Scaling,
    /// Requested demand, requests/s at the root.
    pub demand_qps: f64,
    /// Demand that is served: all of it, or under overload what the cluster can serve, requests/s at the root.
    pub served_qps: f64,
    /// Workers in the cluster, `S`.
    pub workers: u32,
    /// Workers in use.
    pub used: u32,
    /// Expected system accuracy of what is served, in [0, 1]: the unweighted mean over the sinks of each sink's
    /// paths (§4.1). A share of right answers by request differs, because it weighs each sink by its requests.
    pub accuracy: f64,
    /// Proven upper bound of the accuracy with these workers and the variants that the policy allows. Under hardware scaling, the
    /// accuracy of the most accurate variants.
    pub bound: f64,
    /// The instances, by task and then by accuracy, the best first. A variant has batches of one size only.
    pub instances: Vec<Instances>,
    /// The shares of the paths that were planned with, by sink; empty where a policy plans without paths.
    pub paths: Vec<PathShare>,
    /// Why the chosen solver failed; the rounded answer is used.
    #[serde(skip)]
    pub solver_error: Option<LpError>,
}

impl Allocation {
    /// Relative distance of the accuracy to its upper bound.
    pub fn gap(&self) -> f64 {
        if self.bound > 0.0 {
            (1.0 - self.accuracy / self.bound).max(0.0)
        } else {
            0.0
        }
    }
}

/// Kind of scaling that meets a demand.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Scaling {
    /// Hardware scaling: the most accurate variants on the fewest workers (eq. 11).
    Hardware,
    /// Accuracy scaling: less accuracy on the available workers (eq. 12).
    Accuracy,
    /// Not all of it: the cluster is too small even at the least accuracy that helps.
    Overload,
}

/// The share of the requests that take one path to a sink, `c(p)`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PathShare {
    /// Variants, the root's first.
    pub variants: Vec<String>,
    /// Share, in (0, 1]; those of the paths to one sink sum to 1.
    pub share: f64,
}
