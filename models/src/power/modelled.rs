//! Energy where nothing can be measured: time, and a power that someone states.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::PowerError;

/// A stated power.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wattage {
    /// Drawn whether it works or not, watts.
    pub idle_watts: f64,
    /// Drawn in addition while it works, watts: per busy core, or for the whole GPU.
    pub active_watts: f64,
}

impl Wattage {
    pub(super) fn check(self, what: &'static str) -> Result<(), PowerError> {
        [self.idle_watts, self.active_watts]
            .into_iter()
            .find(|watts| !watts.is_finite() || *watts < 0.0)
            .map_or(Ok(()), |watts| Err(PowerError::BadWattage { what, watts }))
    }

    /// Energy of a stretch of time with this much busy time in it, joules.
    pub(super) fn joules(self, wall_s: f64, busy_s: f64) -> f64 {
        self.idle_watts * wall_s + self.active_watts * busy_s
    }
}

/// Processor time of this process since it began, seconds, all its threads together.
pub fn process_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_work_add_up() {
        let watts = Wattage {
            idle_watts: 10.0,
            active_watts: 5.0,
        };
        assert!((watts.joules(2.0, 0.0) - 20.0).abs() < 1e-12);
        assert!((watts.joules(2.0, 3.0) - 35.0).abs() < 1e-12);
    }
}
