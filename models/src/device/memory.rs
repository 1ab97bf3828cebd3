//! Memory of the device that models run on, and of this process.

use std::fs;

use serde::Serialize;

use crate::device::nvml::Gpu;
use crate::device::{DeviceChoice, DeviceInfo};

/// Host memory of this process, bytes; `None` if the system does not report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProcessMemory {
    /// Current resident memory.
    pub resident: Option<u64>,
    /// Maximum resident memory since the last `reset_peak`.
    pub peak: Option<u64>,
}

/// Reads the host memory of this process.
pub(crate) fn of_process() -> ProcessMemory {
    fs::read_to_string("/proc/self/status").map_or_else(|_| ProcessMemory::default(), |status| parse(&status))
}

/// Resets the peak of this process. Returns false if the system does not allow it; the peak then covers the whole run.
pub(crate) fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Reads the memory in use on a device: that of this process on a CPU, that of all processes on a GPU.
pub struct MemoryReader(Option<Gpu>);

impl MemoryReader {
    /// Opens the reader of a device.
    ///
    /// # Errors
    /// The reason why the GPU's memory cannot be read, as text.
    pub fn of(info: &DeviceInfo) -> Result<Self, String> {
        match info.choice {
            DeviceChoice::Cpu => Ok(Self(None)),
            DeviceChoice::Cuda(_) => Gpu::open(info).map(|gpu| Self(Some(gpu))),
        }
    }

    /// Returns the memory in use, bytes; `None` if the system does not report it.
    pub fn now(&self) -> Option<u64> {
        match &self.0 {
            Some(gpu) => gpu.memory().ok().map(|memory| memory.used),
            None => of_process().resident,
        }
    }

    /// Resets the peak. Returns false if that is not possible.
    pub fn reset(&self) -> bool {
        self.0.is_some() || reset_peak()
    }

    /// Returns the maximum memory in use since the last reset, bytes. On a GPU, the current memory: burn's allocator
    /// does not release the memory of a finished batch.
    pub fn peak(&self) -> Option<u64> {
        match &self.0 {
            Some(_) => self.now(),
            None => of_process().peak,
        }
    }
}

fn parse(status: &str) -> ProcessMemory {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    };
    ProcessMemory {
        resident: field("VmRSS:"),
        peak: field("VmHWM:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_file_is_parsed() {
        let status = "Name:\tkaskade\nVmPeak:\t  99 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let memory = parse(status);
        assert_eq!((memory.resident, memory.peak), (Some(1 << 20), Some(2 << 20)));
        assert_eq!(parse("VmRSS: many kB\nVmHWM: 12\n"), ProcessMemory::default());
    }

    #[test]
    fn this_process_uses_memory() {
        let before = of_process().resident.unwrap();
        assert!(before > 100_000);
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(of_process().peak.unwrap() >= before.max(block.len() as u64));
    }
}
