//! The clock that actors read: monotonic microseconds since the process began. Policies get its readings as arguments.

use std::time::{Duration, Instant};

/// A monotonic clock. Copies share one origin, so their readings compare; readings of different processes do not.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at 0 now.
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Microseconds since its start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// The instant of a reading, for timers.
    pub fn instant(&self, reading: u64) -> Instant {
        self.origin + Duration::from_micros(reading)
    }
}
