//! The self-test: checks a device's results and measures its speed (`kaskade selftest`).
//!
//! The binary contains everything that the test needs: checkpoints with expected outputs, and networks with random
//! weights. Sections are independent: a panic or an error in one is reported, and the others still run.
//!
//! | section | holds |
//! |---|---|
//! | `device` | device, driver, memory |
//! | `parity` | every architecture against expected outputs |
//! | `language` | the language model engine against expected outputs, and its decoding speed |
//! | `throughput` | throughput of BERT and ViT by batch size |
//! | `transfers` | transfer speed between host and device, both ways, by size |
//! | `memory` | memory of the device and of this process |
//! | `energy` | energy of the whole run |
//!
//! Further modules: `options` of a run, `section` of the report, the measured networks (`shapes`, with `random`
//! weights), and `transfer_times` of burn.

pub mod fixtures;
mod language;
mod memory;
mod options;
mod parity;
mod random;
mod section;
mod shapes;
mod throughput;
#[cfg(feature = "burn")]
mod transfer_times;
mod transfers;

use std::time::Instant;

use serde::Serialize;

use section::guarded;

use crate::device::{self, Device, DeviceInfo};
use crate::power::{EnergySample, PowerMeter};

pub use self::language::{Decoded, DecoderRow, DecodingPoint, LanguageReport};
pub use self::memory::MemoryReport;
pub use self::options::{NETWORKS, SelftestExtent, SelftestOptions, SelftestPart, families};
pub use self::section::Section;
pub use crate::device::memory::ProcessMemory;
pub use parity::{Agreement, ParityReport, ParityRow};
pub use shapes::{Network, Shape};
pub use throughput::{Measured, Point, ThroughputReport};
pub use transfers::{Direction, Transfer};

/// Version of the report's format.
pub(crate) const SELFTEST_VERSION: u32 = 1;

/// Report of the self-test.
#[derive(Debug, Clone, Serialize)]
pub struct SelftestReport {
    /// Version of the format.
    pub version: u32,
    /// Version of this program.
    pub program: &'static str,
    /// True if no section that ran failed and the outputs of every compared architecture match.
    pub passed: bool,
    /// Duration, seconds.
    pub seconds: f64,
    /// Load average over the minute before the run and over its last minute. Values far above the number of cores mean
    /// that other processes distorted the times.
    pub load: [Option<f64>; 2],
    /// The device.
    pub device: Section<DeviceReport>,
    /// Parity with expected outputs.
    pub parity: Section<ParityReport>,
    /// The language model engine.
    pub language: Section<LanguageReport>,
    /// Throughput of networks.
    pub throughput: Section<ThroughputReport>,
    /// Transfer speed.
    pub transfers: Section<Vec<Transfer>>,
    /// Memory after the run.
    pub memory: Section<MemoryReport>,
    /// Energy of the whole run.
    pub energy: Section<EnergyReport>,
}

/// The device that was tested.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Description of the device, as in profiles.
    pub description: String,
    /// Details of the device.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// The GPU driver's version.
    pub driver: Option<String>,
    /// Whether this program has the CUDA back end.
    pub built_with_cuda: bool,
}

/// Energy of the whole run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EnergyReport {
    /// The last reading; its totals count from the start of the suite.
    #[serde(flatten)]
    pub total: EnergySample,
    /// Mean power over the run, watts.
    pub mean_watts: Option<f64>,
    /// Reasons why better sources are not used.
    pub skipped_sources: Vec<String>,
}

/// Runs the suite. Calls `progress` with one line of text before each step that takes time.
///
/// Always returns a report; a section that cannot run states the reason.
pub fn selftest(options: &SelftestOptions, progress: &mut dyn FnMut(&str)) -> SelftestReport {
    let started = Instant::now();
    let load = memory::load();
    progress(&format!("opening {}", options.device));
    let mut report = match guarded(|| device::open(options.device).map_err(|error| error.to_string())) {
        Section::Done(device) => on_device(options, &device, started, progress),
        Section::Failed(reason) | Section::Skipped(reason) => SelftestReport::without_device(reason),
    };
    report.seconds = started.elapsed().as_secs_f64();
    report.load = [load, memory::load()];
    report
}

fn on_device(
    options: &SelftestOptions,
    device: &Device,
    began: Instant,
    progress: &mut dyn FnMut(&str),
) -> SelftestReport {
    let info = device::describe(options.device, device);
    let mut meter = PowerMeter::detect(&options.power, &info).map_err(|error| error.to_string());
    let device_report = guarded(|| Ok(describe(&info)));
    let parity = if fixtures::ALL.iter().any(|fixture| options.compares(fixture.name)) {
        options.part(SelftestPart::Parity, || {
            Ok(parity::compare_all(options, device, began, progress))
        })
    } else {
        Section::Skipped("no encoder was chosen".into())
    };
    let language = options.part(SelftestPart::Language, || {
        Ok(language::measure_all(options, device, began, progress))
    });
    let throughput = options.part(SelftestPart::Throughput, || {
        Ok(throughput::measure_all(
            options,
            device,
            began,
            meter.as_mut().ok(),
            progress,
        ))
    });
    let transfers = match device {
        Device::Cpu => Section::Skipped("the CPU computes in host memory: nothing is transferred".into()),
        #[cfg(feature = "burn")]
        Device::Burn(device) => options.part(SelftestPart::Transfers, || {
            transfer_times::measure(device, transfer_times::SIZES, progress)
        }),
    };
    let memory = guarded(|| Ok(memory::read(&info)));
    let energy = guarded(|| meter.map(|mut meter| energy(&mut meter)));
    let correct =
        parity.done().is_none_or(ParityReport::passed) && language.done().is_none_or(LanguageReport::passed);
    let failed = [
        device_report.failed(),
        parity.failed(),
        language.failed(),
        throughput.failed(),
        transfers.failed(),
        memory.failed(),
        energy.failed(),
    ];
    let answered = throughput.done().is_none_or(ThroughputReport::answered);
    SelftestReport {
        passed: correct && answered && !failed.contains(&true),
        device: device_report,
        parity,
        language,
        throughput,
        transfers,
        memory,
        energy,
        ..SelftestReport::without_device(String::new())
    }
}

impl SelftestReport {
    fn without_device(reason: String) -> Self {
        let skipped = "the device could not be opened";
        Self {
            version: SELFTEST_VERSION,
            program: env!("CARGO_PKG_VERSION"),
            passed: false,
            seconds: 0.0,
            load: [None, None],
            device: Section::Failed(reason),
            parity: Section::Skipped(skipped.into()),
            language: Section::Skipped(skipped.into()),
            throughput: Section::Skipped(skipped.into()),
            transfers: Section::Skipped(skipped.into()),
            memory: Section::Skipped(skipped.into()),
            energy: Section::Skipped(skipped.into()),
        }
    }
}

fn describe(info: &DeviceInfo) -> DeviceReport {
    let gpu = device::nvml::Gpu::open(info).ok();
    DeviceReport {
        description: info.to_string(),
        driver: gpu.and_then(|gpu| gpu.driver_version().ok()),
        built_with_cuda: cfg!(feature = "cuda"),
        info: info.clone(),
    }
}

fn energy(meter: &mut PowerMeter) -> EnergyReport {
    let total = meter.sample();
    EnergyReport {
        total,
        mean_watts: total
            .joules_total
            .filter(|_| total.wall_s > 0.0)
            .map(|joules| joules / total.wall_s),
        skipped_sources: meter.skipped_sources().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::device::DeviceChoice;
    use crate::power::PowerConfig;

    fn quick() -> SelftestOptions {
        SelftestOptions {
            extent: SelftestExtent::Quick,
            budget: Duration::from_millis(50),
            ..SelftestOptions::default()
        }
    }

    #[test]
    fn the_quick_suite_passes_on_the_cpu() {
        let mut lines = Vec::new();
        let report = selftest(&quick(), &mut |line| lines.push(line.to_owned()));
        assert!(report.passed, "{report:#?}");
        assert!(!lines.is_empty());

        let parity = report.parity.done().unwrap();
        assert!(parity.rows.iter().all(|row| row.passed && row.cases > 0));
        let language = report.language.done().unwrap();
        for row in &language.rows {
            assert_eq!(
                (row.cases, row.cases),
                (row.equal_answers, row.equal_streamed),
                "{row:?}"
            );
        }
        for point in &language.decoding {
            let decoded = point.measured.done().unwrap();
            assert!(decoded.steps > 0 && decoded.tokens_per_s > 0.0, "{point:?}");
        }
        let points = &report.throughput.done().unwrap().points;
        assert!(!points.is_empty());
        for point in points {
            let measured = point.measured.done().unwrap();
            assert!(measured.median_s > 0.0 && measured.items_per_s > 0.0, "{point:?}");
            assert!(
                measured.joules_per_item.is_some_and(|joules| joules > 0.0),
                "{point:?}"
            );
            assert!(measured.finite);
        }
        let energy = report.energy.done().unwrap();
        assert!(energy.total.joules_total.is_some_and(|joules| joules > 0.0));

        let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(json["version"], 1);
        assert!(
            json["device"]["done"]["description"]
                .as_str()
                .unwrap()
                .starts_with("cpu (")
        );
        assert!(json["transfers"]["skipped"].is_string());
        assert!(json["energy"]["done"]["source"].is_string());
    }

    /// Checks that a selection of decoders only, which leaves no encoder to compare, is not a failure.
    #[test]
    fn only_chosen_checkpoints_are_compared() {
        let compared = |families: &[&str]| {
            let options = SelftestOptions {
                parts: vec![SelftestPart::Parity, SelftestPart::Language],
                networks: vec!["bert-tiny".into()],
                families: families.iter().map(|name| (*name).to_owned()).collect(),
                ..quick()
            };
            let report = selftest(&options, &mut |_| ());
            assert!(report.passed, "{report:#?}");
            let encoders = report.parity.done().map(|parity| parity.rows.len());
            (
                encoders,
                report.language.done().map(|language| language.rows.len()),
            )
        };
        assert_eq!(compared(&["gpt2"]), (None, Some(1)));
        assert_eq!(compared(&["vit", "t5", "bloom"]), (Some(1), Some(2)));
        assert_eq!(
            families().count(),
            fixtures::ALL.len() + language::names().count()
        );
    }

    /// Checks that every network of the full suite has a name that the options accept.
    #[test]
    fn every_timed_network_is_named() {
        let full = SelftestOptions {
            extent: SelftestExtent::Full,
            ..SelftestOptions::default()
        };
        let mut timed = throughput::networks(&full);
        timed.extend(language::networks(&full));
        timed.dedup();
        assert_eq!(timed, NETWORKS);
    }

    #[test]
    fn a_missing_device_gives_a_report_not_a_panic() {
        let options = SelftestOptions {
            device: DeviceChoice::Cuda(999),
            ..quick()
        };
        let report = selftest(&options, &mut |_| ());
        assert!(!report.passed);
        let Section::Failed(reason) = &report.device else {
            panic!("{:?}", report.device)
        };
        assert!(reason.contains("cuda:999"), "{reason}");
        assert!(matches!(report.parity, Section::Skipped(_)));
    }

    #[test]
    fn a_section_that_panics_fails_alone() {
        let panicked: Section<()> = guarded(|| panic!("a kernel went astray"));
        assert_eq!(
            panicked,
            Section::Failed("it panicked: a kernel went astray".into())
        );
        assert_eq!(guarded(|| Ok(3)), Section::Done(3));
        assert!(guarded(|| Err::<(), _>("no".into())).failed());
    }

    #[test]
    fn unknown_energy_stays_unknown_in_the_report() {
        let options = SelftestOptions {
            power: PowerConfig {
                sources: Vec::new(),
                ..PowerConfig::default()
            },
            ..quick()
        };
        let report = selftest(&options, &mut |_| ());
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["energy"]["done"]["joules_total"].is_null(), "{json:#}");
        assert_eq!(json["energy"]["done"]["source"], "unknown");
        let points = &report.throughput.done().unwrap().points;
        // A slow machine skips some.
        let measured: Vec<_> = points.iter().filter_map(|point| point.measured.done()).collect();
        assert!(!measured.is_empty());
        assert!(measured.iter().all(|point| point.joules_per_item.is_none()));
    }
}
