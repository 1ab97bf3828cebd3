//! How good a gear is: the simulator, behind a trait of one method.

use crate::plan::Plan;

/// How a gear fares at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// 95th percentile of latency, microseconds.
    pub p95_us: u64,
    /// Whether the backlog stays level.
    pub keeps_up: bool,
    /// Utilisation of the busiest device, in [0, 1].
    pub utilisation: f64,
}

/// Says how a gear fares.
pub trait Evaluate {
    /// Runs the only gear of a plan at a constant load, requests/s. The same plan and load give the same outcome.
    ///
    /// # Errors
    /// A sentence that says why it cannot be run.
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<Outcome, String>;
}

impl<E: Evaluate + ?Sized> Evaluate for &mut E {
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<Outcome, String> {
        (**self).gear(candidate, qps)
    }
}
