//! Energy of a GPU from NVML: its energy counter if it has one, else its sampled power integrated over time.

use std::fmt::Display;

use crate::device::DeviceInfo;
use crate::device::nvml::Gpu;

pub(super) struct NvmlReader {
    gpu: Gpu,
    mode: Mode,
}

enum Mode {
    /// Value of the energy counter when the meter was created, millijoules.
    Counter(u64),
    Power(Integral),
}

impl NvmlReader {
    pub(super) fn open(device: &DeviceInfo) -> Result<Self, String> {
        let gpu = Gpu::open(device)?;
        let mode = first_reading(gpu.energy_mj().ok(), || gpu.power_mw())?;
        Ok(Self { gpu, mode })
    }

    pub(super) fn counts(&self) -> bool {
        matches!(self.mode, Mode::Counter(_))
    }

    /// Returns the energy since the reader was opened, joules; `None` if the GPU cannot be read. `wall_s` is the time
    /// since then, seconds.
    pub(super) fn joules(&mut self, wall_s: f64) -> Option<f64> {
        match &mut self.mode {
            Mode::Counter(start) => counted(*start, self.gpu.energy_mj().ok()?),
            Mode::Power(integral) => {
                let watts = f64::from(self.gpu.power_mw().ok()?) / 1e3;
                Some(integral.add(wall_s, watts))
            }
        }
    }
}

fn first_reading<E: Display>(
    counter: Option<u64>,
    power: impl FnOnce() -> Result<u32, E>,
) -> Result<Mode, String> {
    if let Some(start) = counter {
        return Ok(Mode::Counter(start));
    }
    let milliwatts = power().map_err(|error| format!("the GPU reports neither energy nor power: {error}"))?;
    Ok(Mode::Power(Integral::from(f64::from(milliwatts) / 1e3)))
}

/// Returns the energy between two readings in millijoules, joules; `None` if the counter decreased, as after a driver
/// reload.
fn counted(start_mj: u64, now_mj: u64) -> Option<f64> {
    now_mj.checked_sub(start_mj).map(|counted| counted as f64 / 1e3)
}

/// Integral of power over time by the trapezoidal rule. Missing readings are interpolated.
struct Integral {
    joules: f64,
    last_s: f64,
    last_watts: f64,
}

impl Integral {
    /// Starts with a first reading at time 0.
    fn from(watts: f64) -> Self {
        Self {
            joules: 0.0,
            last_s: 0.0,
            last_watts: watts,
        }
    }

    fn add(&mut self, now_s: f64, watts: f64) -> f64 {
        let seconds = (now_s - self.last_s).max(0.0);
        self.joules += seconds * f64::midpoint(self.last_watts, watts);
        self.last_s = self.last_s.max(now_s);
        self.last_watts = watts;
        self.joules
    }
}

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    reason = "small whole numbers of watts and seconds are exact"
)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_preferred_and_power_is_the_fallback() {
        let never = || -> Result<u32, &str> { panic!("the power is not read if there is a counter") };
        assert!(matches!(first_reading(Some(7), never), Ok(Mode::Counter(7))));
        let mode = first_reading(None, || Ok::<_, &str>(250_000)).unwrap();
        let Mode::Power(integral) = mode else {
            panic!("only the power is available")
        };
        assert_eq!(integral.last_watts, 250.0);
        let rejection = first_reading(None, || Err("no permission"));
        assert!(rejection.is_err_and(|reason| reason.contains("neither")));
    }

    #[test]
    fn a_decreasing_counter_is_unknown() {
        assert_eq!(counted(1_000, 3_500), Some(2.5));
        assert_eq!(counted(3_500, 1_000), None);
    }

    #[test]
    fn power_is_integrated_by_trapezoids() {
        let mut integral = Integral::from(100.0);
        assert_eq!(integral.add(1.0, 200.0), 150.0);
        assert_eq!(integral.add(3.0, 200.0), 550.0);
        assert_eq!(integral.add(3.0, 0.0), 550.0, "no time, no energy");
        assert_eq!(
            integral.add(2.0, 400.0),
            550.0,
            "a clock that goes back adds nothing"
        );
        assert_eq!(integral.add(4.0, 0.0), 750.0);
    }
}
