//! The device that models run on, selected by name at startup.
//!
//! The CPU runs this crate's kernels, a GPU burn's. burn panics if a requested GPU does not exist, so this module
//! checks first whether the program has the CUDA back end, whether a driver lists the device, and whether kernels can
//! be compiled.

#[cfg(feature = "cuda")]
mod cuda;
mod handle;
pub mod memory;
pub mod nvml;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use handle::Device;
pub(crate) use handle::with_ops;

/// A device by name: `cpu`, `cuda` (the first GPU) or `cuda:N`. `cpu:N` also parses as the CPU: plans use it to name
/// slots for one replica each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The NVIDIA GPU of this index, counted as CUDA counts (`CUDA_VISIBLE_DEVICES` applies).
    Cuda(u16),
}

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let (kind, index) = match name.split_once(':') {
            None => (name, Some(0)),
            Some((kind, digits)) => (kind, index(digits)),
        };
        match (kind, index) {
            ("cpu", Some(_)) => Ok(Self::Cpu),
            ("cuda", Some(index)) => Ok(Self::Cuda(index)),
            _ => Err(DeviceError::UnknownName {
                name: name.to_owned(),
            }),
        }
    }
}

/// Parses digits only, without sign or space.
fn index(digits: &str) -> Option<u16> {
    let digits = Some(digits).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok()
}

impl TryFrom<String> for DeviceChoice {
    type Error = DeviceError;

    fn try_from(name: String) -> Result<Self, DeviceError> {
        name.parse()
    }
}

impl From<DeviceChoice> for String {
    fn from(choice: DeviceChoice) -> Self {
        choice.to_string()
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Description of an opened device. [`Display`](fmt::Display) gives the text in profiles: `cpu (AMD EPYC, 2 cores)`,
/// `cuda:0 NVIDIA H200`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The selected device.
    pub choice: DeviceChoice,
    /// Model name, if known.
    pub name: Option<String>,
    /// Cores available to this process.
    pub cores: usize,
    /// Bus address of a GPU (`0000:07:00.0`), which identifies it in NVML.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            choice, name, cores, ..
        } = self;
        let plural = if *cores == 1 { "core" } else { "cores" };
        match (choice, name) {
            (DeviceChoice::Cpu, Some(name)) => write!(f, "cpu ({name}, {cores} {plural})"),
            (DeviceChoice::Cpu, None) => write!(f, "cpu ({cores} {plural})"),
            (DeviceChoice::Cuda(_), Some(name)) => write!(f, "{choice} {name}"),
            (DeviceChoice::Cuda(_), None) => write!(f, "{choice}"),
        }
    }
}

/// Why a device could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The name is not a device name.
    #[error("`{name}` is not a device: use `cpu`, `cuda` or `cuda:N`")]
    UnknownName {
        /// The given name.
        name: String,
    },
    /// The program has no CUDA back end.
    #[error(
        "`{choice}` needs a program built with `--features cuda`; this one was built without it and runs on `cpu` only"
    )]
    NotBuilt {
        /// The requested device.
        choice: DeviceChoice,
    },
    /// No GPU was found.
    #[error("`{choice}`: no CUDA device found: {found}")]
    NoneFound {
        /// The requested device.
        choice: DeviceChoice,
        /// What was found instead, and how to fix it.
        found: String,
    },
    /// The index exceeds the number of GPUs.
    #[error("`{choice}` does not exist: CUDA lists {count} device(s), `cuda:0` to `cuda:{last}`", last = count.saturating_sub(1))]
    OutOfRange {
        /// The requested device.
        choice: DeviceChoice,
        /// Number of GPUs; never 0.
        count: usize,
    },
    /// Kernels cannot be compiled on this machine.
    #[error("`{choice}`: kernels cannot be compiled: {reason}")]
    NoCompiler {
        /// The requested device.
        choice: DeviceChoice,
        /// What is missing, where it was searched, and how to fix it.
        reason: String,
    },
    /// The device is listed and does not work.
    #[error("`{choice}` is listed but does not work: {reason}")]
    Unusable {
        /// The requested device.
        choice: DeviceChoice,
        /// Message of burn or the driver.
        reason: String,
    },
}

/// Opens a device. On a GPU, compiles and runs one tiny kernel as a check.
///
/// # Errors
/// A [`DeviceError`] that states what was found instead and how to fix it. Panics of the CUDA libraries are caught,
/// but the message that they print to standard error remains.
pub fn open(choice: DeviceChoice) -> Result<Device, DeviceError> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        #[cfg(feature = "cuda")]
        DeviceChoice::Cuda(index) => cuda::open(choice, index).map(Device::Burn),
        #[cfg(not(feature = "cuda"))]
        DeviceChoice::Cuda(_) => Err(DeviceError::NotBuilt { choice }),
    }
}

/// Describes a device returned by [`open`].
pub fn describe(choice: DeviceChoice, device: &Device) -> DeviceInfo {
    let (name, pci_address) = match choice {
        DeviceChoice::Cpu => (processor_name(), None),
        DeviceChoice::Cuda(_) => gpu_identity(device),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    DeviceInfo {
        choice,
        name,
        cores,
        pci_address,
    }
}

#[cfg(feature = "cuda")]
fn gpu_identity(device: &Device) -> (Option<String>, Option<String>) {
    match device {
        Device::Cpu => (None, None),
        Device::Burn(device) => cuda::identity(device),
    }
}

#[cfg(not(feature = "cuda"))]
fn gpu_identity(_device: &Device) -> (Option<String>, Option<String>) {
    (None, None)
}

fn processor_name() -> Option<String> {
    let table = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    model_name(&table)
}

/// Returns the model name in the text of `/proc/cpuinfo`, without the core count that some vendors append: the
/// description states the cores of this process.
fn model_name(table: &str) -> Option<String> {
    let line = table.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    let words: Vec<&str> = name
        .split_whitespace()
        .filter(|word| !word.ends_with("-Core"))
        .collect();
    let words = words.strip_suffix(&["Processor"]).unwrap_or(&words);
    (!words.is_empty()).then(|| words.join(" "))
}

/// Returns the message of a caught panic.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    payload
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (name, choice) in [
            ("cpu", DeviceChoice::Cpu),
            ("cuda:0", DeviceChoice::Cuda(0)),
            ("cuda:12", DeviceChoice::Cuda(12)),
        ] {
            assert_eq!(name.parse(), Ok(choice));
            assert_eq!(choice.to_string(), name);
        }
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("cpu:3".parse(), Ok(DeviceChoice::Cpu));
    }

    #[test]
    fn other_names_are_rejected() {
        for name in [
            "",
            "CPU",
            "gpu",
            "cuda:",
            "cuda:-1",
            "cuda:+1",
            "cuda: 1",
            "cuda:65536",
            "cuda0",
            "cpu:",
            "cpu:x",
            "gpu:0",
        ] {
            assert_eq!(
                name.parse::<DeviceChoice>(),
                Err(DeviceError::UnknownName { name: name.into() }),
                "{name}"
            );
        }
    }

    #[test]
    fn a_choice_is_a_string_in_files() {
        assert_eq!(
            serde_json::to_string(&DeviceChoice::Cuda(1)).unwrap(),
            "\"cuda:1\""
        );
        assert_eq!(
            serde_json::from_str::<DeviceChoice>("\"cpu\"").unwrap(),
            DeviceChoice::Cpu
        );
        let rejection = serde_json::from_str::<DeviceChoice>("\"tpu\"")
            .unwrap_err()
            .to_string();
        assert!(rejection.contains("`tpu` is not a device"), "{rejection}");
    }

    #[test]
    fn the_cpu_opens() {
        let device = open(DeviceChoice::Cpu).unwrap();
        assert_eq!(device, Device::Cpu);
        let info = describe(DeviceChoice::Cpu, &device);
        assert!(info.to_string().starts_with("cpu ("), "{info}");
        assert!(info.cores >= 1);
    }

    /// Opens the GPU if the feature is enabled and a GPU is present; otherwise expects an error with a hint.
    #[test]
    fn a_gpu_opens_or_is_rejected_with_a_reason() {
        match open(DeviceChoice::Cuda(0)) {
            Ok(device) => {
                let info = describe(DeviceChoice::Cuda(0), &device);
                assert!(info.to_string().starts_with("cuda:0"), "{info}");
                assert!(matches!(
                    open(DeviceChoice::Cuda(999)),
                    Err(DeviceError::OutOfRange { .. })
                ));
            }
            Err(DeviceError::NotBuilt { .. }) if cfg!(feature = "cuda") => panic!("it was built"),
            Err(error) => {
                let reason = error.to_string();
                assert!(reason.contains("cuda:0"), "{reason}");
                assert_eq!(
                    reason.contains("--features cuda"),
                    !cfg!(feature = "cuda"),
                    "{reason}"
                );
            }
        }
    }

    #[test]
    fn descriptions_read_well() {
        let info = |choice, name: Option<&str>, cores| DeviceInfo {
            choice,
            name: name.map(str::to_owned),
            cores,
            pci_address: None,
        };
        let text = |choice, name, cores| info(choice, name, cores).to_string();
        assert_eq!(
            text(DeviceChoice::Cpu, Some("AMD EPYC"), 2),
            "cpu (AMD EPYC, 2 cores)"
        );
        assert_eq!(text(DeviceChoice::Cpu, None, 1), "cpu (1 core)");
        assert_eq!(
            text(DeviceChoice::Cuda(0), Some("NVIDIA H200"), 16),
            "cuda:0 NVIDIA H200"
        );
        assert_eq!(text(DeviceChoice::Cuda(3), None, 16), "cuda:3");
    }

    #[test]
    fn processor_names_are_parsed() {
        let table = "processor\t: 0\nmodel name\t: AMD EPYC 9654 96-Core Processor\nflags\t: sse\n";
        assert_eq!(model_name(table).as_deref(), Some("AMD EPYC 9654"));
        assert_eq!(
            model_name("model name : Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz\n").as_deref(),
            Some("Intel(R) Xeon(R) Gold 6330 CPU @ 2.00GHz")
        );
        assert_eq!(model_name("model name\t:\n"), None);
        assert_eq!(model_name("processor : 0\n"), None);
    }
}
