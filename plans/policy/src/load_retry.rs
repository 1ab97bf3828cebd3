//! When a worker loads a replica again that could not be loaded.
//!
//! A load may fail for a reason that passes: memory that another process holds, a file server or an endpoint that does not answer.
//! Without another attempt the replica would be missing until the next plan.

/// Pauses before a replica is loaded again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadRetry {
    /// Pause after the first failure, microseconds; doubled with each further one.
    pub pause_us: u64,
    /// Longest pause, microseconds.
    pub max_pause_us: u64,
}

impl Default for LoadRetry {
    /// Five seconds, doubled up to five minutes.
    fn default() -> Self {
        Self {
            pause_us: 5_000_000,
            max_pause_us: 300_000_000,
        }
    }
}

impl LoadRetry {
    /// Returns the pause after this many failures in a row, microseconds.
    pub fn pause_after(&self, failures: u32) -> u64 {
        let doubled = 1_u64
            .checked_shl(failures.saturating_sub(1))
            .map_or(u64::MAX, |factor| self.pause_us.saturating_mul(factor));
        doubled.min(self.max_pause_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pauses = [1, 2, 3, 6, 7, 64, u32::MAX].map(|failures| LoadRetry::default().pause_after(failures));
        let seconds = pauses.map(|pause| pause / 1_000_000);
        assert_eq!(seconds, [5, 10, 20, 160, 300, 300, 300]);
    }
}
