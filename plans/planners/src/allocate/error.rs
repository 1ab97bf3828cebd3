//! Errors of the allocator.

use kaskade_policy::invalid::Invalid;
use thiserror::Error;

use crate::lp::LpError;

/// Why there is no allocation. The caller keeps an older plan.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AllocateError {
    /// The pipeline is unsound.
    #[error("the pipeline cannot be planned for: {0}")]
    Pipeline(Box<Invalid>),
    /// Even the fastest batches are too slow.
    #[error(
        "the objective of {:.1} ms cannot be met: even the fastest batches of {} take {:.1} ms with as long in queues, and messages; \
         use an objective of at least {:.1} ms, or a faster variant",
        *.slo_us as f64 / 1e3, .path.join(" -> "), *.needed_us as f64 / 1e3, *.needed_us as f64 / 1e3
    )]
    Slo {
        /// The fastest variants of the tightest path, the root's first.
        path: Vec<String>,
        /// The objective, microseconds.
        slo_us: u64,
        /// Time that this path needs, microseconds.
        needed_us: u64,
    },
    /// The pipeline is too large.
    #[error(
        "the pipeline has more than {max} paths to choose variants and batch sizes; allow fewer batch sizes or variants"
    )]
    TooMany {
        /// Maximum that can be searched.
        max: usize,
    },
    /// Not every task can have a worker.
    #[error("{workers} worker(s) cannot serve {tasks} tasks; use at least one for each")]
    TooFewWorkers {
        /// Tasks that need one.
        tasks: usize,
        /// Available workers.
        workers: u32,
    },
    /// The demand is not a positive number.
    #[error("a demand of {0} requests/s cannot be planned for; it must be positive and finite")]
    Demand(f64),
    /// The solver failed, and no other method gives a result.
    #[error(transparent)]
    Lp(#[from] LpError),
}
