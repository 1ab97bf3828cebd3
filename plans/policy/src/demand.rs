//! Measurements that workers and ingresses report to planners: peaks of the load and run times of variants.

mod periods;
mod trend;

pub(crate) use periods::BusiestSecond;
pub use periods::Periods;
pub use trend::DemandTrend;

/// Batches that a variant ran, over all its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCounts {
    /// Batches.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Time that they took, microseconds.
    pub busy_us: u64,
}

impl std::ops::AddAssign for RunCounts {
    fn add_assign(&mut self, other: Self) {
        self.batches += other.batches;
        self.requests += other.requests;
        self.busy_us += other.busy_us;
    }
}
