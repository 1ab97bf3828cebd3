//! Measures energy and utilisation over intervals of work.

use kaskade_models::device::nvml::{Gpu, KernelUtilisation};
use kaskade_models::device::{self, DeviceChoice, DeviceInfo};
use kaskade_models::power::{EnergySample, PowerConfig, PowerMeter};

use super::MeasureError;

/// Meter of one device.
pub struct Meter {
    power: PowerMeter,
    device: DeviceInfo,
    gpu: Option<Gpu>,
    /// Time of the driver's newest sample before the interval, on the driver's clock.
    sampled: u64,
}

/// Energy and utilisation of an interval of work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct IntervalCost {
    /// Energy of the device, idle energy included, joules; `None` if no source can be read.
    pub joules: Option<f64>,
    /// Utilisation in [0, 1]: share of the busy CPU cores, or of the time in which a GPU ran kernels. `None` if the
    /// driver took no sample in the interval.
    pub utilisation: Option<f64>,
}

impl Meter {
    /// Creates the meter of a device.
    ///
    /// # Errors
    /// [`MeasureError`] if the device, or a configured power source, cannot be opened.
    pub fn open(choice: DeviceChoice, config: &PowerConfig) -> Result<Self, MeasureError> {
        let device = device::describe(choice, &device::open(choice)?);
        let mut power = PowerMeter::detect(config, &device)?;
        if choice != DeviceChoice::Cpu {
            // Report its busy time from now on, so that a modelled total is known from the start.
            power.add_device_busy(0.0);
        }
        let gpu = Gpu::open(&device).ok();
        Ok(Self {
            power,
            device,
            gpu,
            sampled: 0,
        })
    }

    /// Returns the device as text: `cpu (2 cores)`.
    pub fn device(&self) -> String {
        self.device.to_string()
    }

    /// Returns the name of the source of the joules.
    pub fn source(&self) -> String {
        self.power.source().to_string()
    }

    /// Starts an interval.
    pub fn begin(&mut self) -> EnergySample {
        if let Some(kernels) = self.kernels() {
            self.sampled = kernels.newest;
        }
        self.power.sample()
    }

    /// Returns the driver's utilisation samples since the interval started.
    fn kernels(&self) -> Option<KernelUtilisation> {
        self.gpu.as_ref()?.kernel_utilisation(self.sampled).ok()
    }

    /// Samples within an interval, which sampled sources need about every 100 ms.
    pub fn touch(&mut self) {
        self.power.sample();
    }

    /// Ends an interval during which the model was busy throughout.
    pub(crate) fn end_busy(&mut self, begun: EnergySample) -> IntervalCost {
        if self.device.choice != DeviceChoice::Cpu {
            let now = self.power.sample();
            self.power.add_device_busy(now.wall_s - begun.wall_s);
        }
        self.end(begun)
    }

    /// Ends an interval.
    pub fn end(&mut self, begun: EnergySample) -> IntervalCost {
        let ended = self.power.sample();
        let wall = ended.wall_s - begun.wall_s;
        let busy = ended.busy_core_s - begun.busy_core_s;
        let cores = busy / (wall * self.device.cores as f64);
        let utilisation = match self.device.choice {
            DeviceChoice::Cpu => Some(cores).filter(|cores| cores.is_finite()),
            DeviceChoice::Cuda(_) => self.kernels().map(|kernels| kernels.share),
        };
        let totals = ended.joules_total.zip(begun.joules_total);
        IntervalCost {
            joules: totals.map(|(ended, begun)| ended - begun),
            utilisation: utilisation.map(|share| share.clamp(0.0, 1.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaskade_models::power::SourceKind;

    #[test]
    fn a_busy_stretch_costs_more_than_an_idle_one_would() {
        let config = PowerConfig {
            sources: vec![SourceKind::Modelled],
            ..PowerConfig::default()
        };
        let mut meter = Meter::open(DeviceChoice::Cpu, &config).unwrap();
        let begun = meter.begin();
        let mut sum = 0.0;
        while meter.begin().busy_core_s - begun.busy_core_s < 0.02 {
            sum += std::hint::black_box((0..10_000).map(f64::from).sum::<f64>());
        }
        assert!(sum > 0.0);
        let stretch = meter.end(begun);
        assert!(stretch.joules.unwrap() > 0.2, "{stretch:?}");
        assert!((0.0..=1.0).contains(&stretch.utilisation.unwrap()));
        assert!(meter.source().starts_with("modelled"));
    }

    #[test]
    fn without_a_source_the_joules_of_a_stretch_are_unknown() {
        let config = PowerConfig {
            sources: Vec::new(),
            ..PowerConfig::default()
        };
        let mut meter = Meter::open(DeviceChoice::Cpu, &config).unwrap();
        let begun = meter.begin();
        assert_eq!(meter.end(begun).joules, None);
    }
}
