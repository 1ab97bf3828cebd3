//! Energy readings of a device, from NVML, RAPL or a power model.
//!
//! Sources, in the order of preference:
//!
//! | source | device | measures |
//! |---|---|---|
//! | `nvml` | GPU | energy counter of the board (Volta and later) |
//! | `nvml (power sampled)` | GPU | power of the board, integrated over the samples |
//! | `rapl` | CPU | energy of all packages and their memory, all processes |
//! | `modelled: ...` | both | busy time of this process times a stated wattage, plus idle power |
//!
//! A meter starts no thread and never blocks: the caller calls [`PowerMeter::sample`] every 100 ms. Unknown values are
//! `None`, never zero.

mod modelled;
mod nvml;
mod rapl;

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::{DeviceChoice, DeviceInfo};
use nvml::NvmlReader;
use rapl::Rapl;

pub use modelled::Wattage;
use modelled::process_cpu_s;

/// Allowed sources and assumed power.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PowerConfig {
    /// Allowed sources, best first.
    pub sources: Vec<SourceKind>,
    /// Assumed power of the CPU; the active power is per busy core.
    pub processor: Wattage,
    /// Assumed power of a GPU; the active power is that of the whole busy GPU. GPUs differ by an order of magnitude,
    /// so there is no default: without NVML and without this value, a GPU's energy is unknown.
    pub gpu: Option<Wattage>,
    /// Root directory of the RAPL zones in sysfs.
    pub rapl_root: PathBuf,
}

impl Default for PowerConfig {
    /// All sources; 10 W idle and 10 W per busy core, round figures of a small machine. They serve comparisons on one
    /// machine, not absolute values.
    fn default() -> Self {
        Self {
            sources: vec![SourceKind::Nvml, SourceKind::Rapl, SourceKind::Modelled],
            processor: Wattage {
                idle_watts: 10.0,
                active_watts: 10.0,
            },
            gpu: None,
            rapl_root: "/sys/class/powercap".into(),
        }
    }
}

/// Kind of an energy source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// NVIDIA Management Library (NVML).
    Nvml,
    /// Running Average Power Limit (RAPL) counters of the CPU.
    Rapl,
    /// Modelled: busy time times an assumed power.
    Modelled,
}

/// Source of energy readings. [`Display`](fmt::Display) gives the `energy_source` in profiles and reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(into = "String")]
pub enum EnergySource {
    /// The GPU's energy counter.
    Nvml,
    /// The GPU's power, integrated between samples.
    NvmlSampled,
    /// The CPU's energy counters.
    Rapl,
    /// Assumed power of the CPU.
    ModelledCores(Wattage),
    /// Assumed power of a GPU.
    ModelledGpu(Wattage),
    /// No source: energy is unknown.
    Unknown,
}

impl fmt::Display for EnergySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nvml => f.write_str("nvml"),
            Self::NvmlSampled => f.write_str("nvml (power sampled)"),
            Self::Rapl => f.write_str("rapl"),
            Self::ModelledCores(watts) => write!(
                f,
                "modelled: {} W idle + {} W per busy core",
                watts.idle_watts, watts.active_watts
            ),
            Self::ModelledGpu(watts) => write!(
                f,
                "modelled: {} W idle + {} W while the GPU is busy",
                watts.idle_watts, watts.active_watts
            ),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl From<EnergySource> for String {
    fn from(source: EnergySource) -> Self {
        source.to_string()
    }
}

/// File with the random boot id of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// One reading. Totals count from [`PowerMeter::detect`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EnergySample {
    /// Energy, joules; `None` if the source could not be read.
    pub joules_total: Option<f64>,
    /// Source of the energy.
    pub source: EnergySource,
    /// CPU time of this process on all cores, seconds.
    pub busy_core_s: f64,
    /// Wall time, seconds.
    pub wall_s: f64,
}

/// Why a meter cannot be created.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PowerError {
    /// An assumed power is invalid.
    #[error("{what} is {watts} W: a stated power must be finite and not negative")]
    BadWattage {
        /// Name of the setting.
        what: &'static str,
        /// Value of the setting, watts.
        watts: f64,
    },
}

/// Reads one device's energy.
pub struct PowerMeter {
    reader: Reader,
    /// PCI address of the device; `None` without one.
    pci_address: Option<String>,
    skipped_sources: Vec<String>,
    started: Instant,
    cpu_at_start: f64,
    device_busy_s: Option<f64>,
}

enum Reader {
    // Boxed because it contains NVML's function table, which is large.
    Nvml(Box<NvmlReader>),
    Rapl(Rapl),
    Cores(Wattage),
    Gpu(Wattage),
    Nothing,
}

impl PowerMeter {
    /// Creates a meter with the best available source for a device.
    ///
    /// # Errors
    /// [`PowerError::BadWattage`] for an invalid assumed power.
    pub fn detect(config: &PowerConfig, device: &DeviceInfo) -> Result<Self, PowerError> {
        config.processor.check("power.processor")?;
        if let Some(gpu) = config.gpu {
            gpu.check("power.gpu")?;
        }
        let mut skipped_sources = Vec::new();
        let reader = config
            .sources
            .iter()
            .find_map(|kind| match open(*kind, config, device) {
                Ok(reader) => Some(reader),
                Err(reason) => {
                    skipped_sources.push(reason);
                    None
                }
            })
            .unwrap_or(Reader::Nothing);
        Ok(Self {
            reader,
            pci_address: device.pci_address.clone(),
            skipped_sources,
            started: Instant::now(),
            cpu_at_start: process_cpu_s(),
            device_busy_s: None,
        })
    }

    /// Source of [`sample`](Self::sample).
    pub fn source(&self) -> EnergySource {
        match &self.reader {
            Reader::Nvml(reader) if reader.counts() => EnergySource::Nvml,
            Reader::Nvml(_) => EnergySource::NvmlSampled,
            Reader::Rapl(_) => EnergySource::Rapl,
            Reader::Cores(watts) => EnergySource::ModelledCores(*watts),
            Reader::Gpu(watts) => EnergySource::ModelledGpu(*watts),
            Reader::Nothing => EnergySource::Unknown,
        }
    }

    /// Returns the id of the hardware counter if it includes the energy of other processes. The id is equal in all
    /// processes of a host, containers included, and differs between hosts. `None` if the energy is that of this
    /// process alone.
    pub fn counter(&self) -> Option<String> {
        let host = std::fs::read_to_string(BOOT_ID).ok()?;
        let host = host.split('-').next().unwrap_or_default();
        match &self.reader {
            Reader::Nvml(_) => Some(format!("{host}/{}", self.pci_address.as_deref()?)),
            Reader::Rapl(_) => Some(format!("{host}/cpu")),
            Reader::Cores(_) | Reader::Gpu(_) | Reader::Nothing => None,
        }
    }

    /// Reasons why better sources are not used.
    pub(crate) fn skipped_sources(&self) -> &[String] {
        &self.skipped_sources
    }

    /// Adds busy time of the GPU, seconds. Required for a modelled GPU, whose energy is unknown until the first call.
    pub fn add_device_busy(&mut self, seconds: f64) {
        if seconds.is_finite() && seconds >= 0.0 {
            *self.device_busy_s.get_or_insert(0.0) += seconds;
        }
    }

    /// Takes a reading.
    pub fn sample(&mut self) -> EnergySample {
        let wall_s = self.started.elapsed().as_secs_f64();
        let busy_core_s = (process_cpu_s() - self.cpu_at_start).max(0.0);
        EnergySample {
            joules_total: self.joules(wall_s, busy_core_s),
            source: self.source(),
            busy_core_s,
            wall_s,
        }
    }

    fn joules(&mut self, wall_s: f64, busy_core_s: f64) -> Option<f64> {
        match &mut self.reader {
            Reader::Nvml(reader) => reader.joules(wall_s),
            Reader::Rapl(rapl) => rapl.joules(),
            Reader::Cores(watts) => Some(watts.joules(wall_s, busy_core_s)),
            Reader::Gpu(watts) => self.device_busy_s.map(|busy_s| watts.joules(wall_s, busy_s)),
            Reader::Nothing => None,
        }
    }
}

fn open(kind: SourceKind, config: &PowerConfig, device: &DeviceInfo) -> Result<Reader, String> {
    match (kind, device.choice) {
        (SourceKind::Nvml, DeviceChoice::Cuda(_)) => NvmlReader::open(device)
            .map(|reader| Reader::Nvml(Box::new(reader)))
            .map_err(|reason| format!("nvml: {reason}")),
        (SourceKind::Rapl, DeviceChoice::Cpu) => Rapl::open(&config.rapl_root)
            .map(Reader::Rapl)
            .map_err(|reason| format!("rapl: {reason}")),
        (SourceKind::Modelled, DeviceChoice::Cpu) => Ok(Reader::Cores(config.processor)),
        (SourceKind::Modelled, DeviceChoice::Cuda(_)) => config
            .gpu
            .map(Reader::Gpu)
            .ok_or_else(|| "modelled: no power is stated for the GPU (`power.gpu`)".to_owned()),
        (SourceKind::Nvml, DeviceChoice::Cpu) => {
            Err("nvml: it reads GPUs, and this device is the processor".into())
        }
        (SourceKind::Rapl, DeviceChoice::Cuda(_)) => {
            Err("rapl: it reads processors, and this device is a GPU".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(choice: DeviceChoice) -> DeviceInfo {
        DeviceInfo {
            choice,
            name: None,
            cores: 2,
            pci_address: None,
        }
    }

    fn only(sources: &[SourceKind]) -> PowerConfig {
        PowerConfig {
            sources: sources.to_vec(),
            ..PowerConfig::default()
        }
    }

    #[test]
    fn modelled_energy_grows_with_time_and_work() {
        let config = PowerConfig {
            processor: Wattage {
                idle_watts: 7.5,
                active_watts: 4.0,
            },
            ..only(&[SourceKind::Modelled])
        };
        let mut meter = PowerMeter::detect(&config, &device(DeviceChoice::Cpu)).unwrap();
        let first = meter.sample();
        assert_eq!(
            first.source.to_string(),
            "modelled: 7.5 W idle + 4 W per busy core"
        );
        while meter.sample().busy_core_s < 0.02 {
            std::hint::black_box((0..10_000).map(f64::from).sum::<f64>());
        }
        let last = meter.sample();
        let (wall, busy) = (last.wall_s, last.busy_core_s);
        let joules = last.joules_total.unwrap();
        assert!((joules - (7.5 * wall + 4.0 * busy)).abs() < 1e-9);
        assert!(joules > first.joules_total.unwrap() + 4.0 * 0.01);
    }

    #[test]
    fn a_counter_of_the_whole_host_has_the_same_name_in_every_process() {
        let root = tempfile::tempdir().unwrap();
        let zone = root.path().join("intel-rapl:0");
        std::fs::create_dir(&zone).unwrap();
        for (file, value) in [
            ("name", "package-0"),
            ("energy_uj", "7"),
            ("max_energy_range_uj", "1000"),
        ] {
            std::fs::write(zone.join(file), value).unwrap();
        }
        let config = PowerConfig {
            rapl_root: root.path().to_owned(),
            ..only(&[SourceKind::Rapl])
        };
        let counter = || {
            let meter = PowerMeter::detect(&config, &device(DeviceChoice::Cpu)).unwrap();
            meter.counter().unwrap()
        };
        assert!(counter().ends_with("/cpu"), "{}", counter());
        assert_eq!(counter(), counter());
        let modelled = only(&[SourceKind::Modelled]);
        let modelled = PowerMeter::detect(&modelled, &device(DeviceChoice::Cpu)).unwrap();
        assert_eq!(modelled.counter(), None, "it is of this process alone");
    }

    #[test]
    fn without_a_source_energy_is_unknown_not_zero() {
        let mut meter = PowerMeter::detect(&only(&[]), &device(DeviceChoice::Cpu)).unwrap();
        assert_eq!(meter.sample().joules_total, None);
        assert_eq!(meter.source().to_string(), "unknown");
    }

    #[test]
    fn a_modelled_gpu_needs_a_stated_power_and_its_busy_time() {
        let gpu = device(DeviceChoice::Cuda(0));
        let silent = PowerMeter::detect(&only(&[SourceKind::Modelled]), &gpu).unwrap();
        assert_eq!(silent.source(), EnergySource::Unknown);
        assert!(
            silent.skipped_sources()[0].contains("power.gpu"),
            "{:?}",
            silent.skipped_sources()
        );

        let config = PowerConfig {
            gpu: Some(Wattage {
                idle_watts: 0.0,
                active_watts: 300.0,
            }),
            ..only(&[SourceKind::Modelled])
        };
        let mut meter = PowerMeter::detect(&config, &gpu).unwrap();
        assert_eq!(meter.sample().joules_total, None);
        meter.add_device_busy(0.5);
        meter.add_device_busy(f64::NAN);
        assert_eq!(meter.sample().joules_total, Some(150.0));
    }

    #[test]
    fn an_unsuitable_source_is_skipped_with_a_reason() {
        let empty = tempfile::tempdir().unwrap();
        let config = PowerConfig {
            rapl_root: empty.path().join("absent"),
            ..PowerConfig::default()
        };
        let meter = PowerMeter::detect(&config, &device(DeviceChoice::Cpu)).unwrap();
        assert!(matches!(meter.source(), EnergySource::ModelledCores(_)));
        let reasons = meter.skipped_sources().join("\n");
        assert!(
            reasons.contains("nvml: ") && reasons.contains("rapl: "),
            "{reasons}"
        );
    }

    #[test]
    fn invalid_powers_are_rejected() {
        for watts in [f64::NAN, f64::INFINITY, -1.0] {
            let stated = Wattage {
                idle_watts: 1.0,
                active_watts: watts,
            };
            let config = PowerConfig {
                gpu: Some(stated),
                ..PowerConfig::default()
            };
            let Err(rejection) = PowerMeter::detect(&config, &device(DeviceChoice::Cpu)) else {
                panic!("{watts} W were accepted");
            };
            assert!(rejection.to_string().contains("power.gpu"), "{rejection}");
        }
    }

    #[test]
    fn a_configuration_is_read_from_a_file() {
        let config: PowerConfig = serde_json::from_str(
            r#"{"sources": ["rapl", "modelled"], "gpu": {"idle_watts": 70, "active_watts": 400}}"#,
        )
        .unwrap();
        assert_eq!(config.sources, [SourceKind::Rapl, SourceKind::Modelled]);
        assert_eq!(config.processor, PowerConfig::default().processor);
        assert!(serde_json::from_str::<PowerConfig>(r#"{"watts": 3}"#).is_err());
    }
}
