//! The clock that actors read: monotonic, microseconds since its start. Policies take its readings as arguments.

use std::time::Instant;

/// A monotonic clock. Copies share one origin, so their readings are comparable; readings of different processes are
/// not.
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

    /// Returns the time since the start, microseconds.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}
