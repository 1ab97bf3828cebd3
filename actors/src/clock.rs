//! The clock that actors read: monotonic microseconds since it was started. Policies get its readings as arguments.

use std::time::Instant;

/// A monotonic clock. Copies share one origin, so their readings can be compared; readings of different processes
/// cannot.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock at 0.
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Returns the microseconds since its start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
