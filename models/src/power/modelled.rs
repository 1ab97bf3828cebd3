//! Modelled energy: time multiplied by an assumed power.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::PowerError;

/// Assumed power of a device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wattage {
    /// Idle power, watts.
    pub idle_watts: f64,
    /// Additional power while busy, watts: per busy core, or for the whole GPU.
    pub active_watts: f64,
}

impl Wattage {
    pub(super) fn check(self, what: &'static str) -> Result<(), PowerError> {
        [self.idle_watts, self.active_watts]
            .into_iter()
            .find(|watts| !watts.is_finite() || *watts < 0.0)
            .map_or(Ok(()), |watts| Err(PowerError::BadWattage { what, watts }))
    }

    /// Returns the energy of a period with this wall time and busy time, joules.
    pub(super) fn joules(self, wall_s: f64, busy_s: f64) -> f64 {
        self.idle_watts * wall_s + self.active_watts * busy_s
    }
}

/// Returns the CPU time of this process since its start, all threads, seconds.
pub(crate) fn process_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_active_energy_add_up() {
        let watts = Wattage {
            idle_watts: 10.0,
            active_watts: 5.0,
        };
        assert!((watts.joules(2.0, 0.0) - 20.0).abs() < 1e-12);
        assert!((watts.joules(2.0, 3.0) - 35.0).abs() < 1e-12);
    }
}
