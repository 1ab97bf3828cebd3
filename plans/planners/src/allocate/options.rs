//! Options of allocation.

use crate::lp::Solver;

/// The allocation policy, for comparison (§6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocationPolicy {
    /// Hardware scaling, then accuracy scaling over the whole pipeline.
    #[default]
    Loki,
    /// InferLine: it uses the pipeline and scales hardware, but "requires the clients to specify a single model variant to use
    /// for each task". They specify the most accurate. When the cluster is exhausted it serves what it can.
    HardwareOnly,
}

impl AllocationPolicy {
    /// Returns the policy's name, as a plan states it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loki => "loki",
            Self::HardwareOnly => "inferline",
        }
    }
}

/// Options of allocation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllocateOptions {
    /// The allocation policy.
    pub policy: AllocationPolicy,
    /// The solver for the gap that rounding leaves.
    pub solver: Solver,
    /// Relative gap to the bound below which an answer is good enough.
    pub gap: f64,
    /// Columns that are considered.
    pub columns: usize,
    /// Node limit of the solver, and no time limit: a plan does not depend on how fast the machine is.
    pub nodes: u64,
}

impl Default for AllocateOptions {
    fn default() -> Self {
        Self {
            policy: AllocationPolicy::Loki,
            solver: Solver::Embedded,
            gap: 1e-3,
            columns: 120,
            nodes: 60,
        }
    }
}
