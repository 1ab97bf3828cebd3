//! Memory of the device and of this process, and the machine's load.

use std::fs;

use serde::Serialize;

use crate::device::DeviceInfo;
use crate::device::nvml::{Gpu, GpuMemory};

/// Memory readings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryReport {
    /// The GPU's, all processes together; nothing where NVML does not tell.
    pub gpu: Option<GpuMemory>,
    /// Why the GPU's is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_unknown: Option<String>,
    /// This process's, in host memory.
    pub process: ProcessMemory,
}

/// Host memory of this process, bytes; nothing where the system does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ProcessMemory {
    /// Resident now.
    pub resident: Option<u64>,
    /// The most that was resident since the last `reset_peak`.
    pub peak: Option<u64>,
}

pub(super) fn read(info: &DeviceInfo) -> MemoryReport {
    let gpu = Gpu::open(info).and_then(|gpu| gpu.memory().map_err(|error| error.to_string()));
    let (gpu, gpu_unknown) = match gpu {
        Ok(memory) => (Some(memory), None),
        Err(reason) => (None, Some(reason)),
    };
    MemoryReport {
        gpu,
        gpu_unknown,
        process: of_process(),
    }
}

pub(super) fn of_process() -> ProcessMemory {
    fs::read_to_string("/proc/self/status").map_or_else(|_| ProcessMemory::default(), |status| parse(&status))
}

/// Starts the peak of this process anew. False where the system does not allow it: then a peak is that of the whole
/// process.
pub(super) fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// Processes that want the processor, averaged over the last minute.
pub(super) fn load() -> Option<f64> {
    let averages = fs::read_to_string("/proc/loadavg").ok()?;
    averages.split_whitespace().next()?.parse().ok()
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
    fn a_status_is_read() {
        let status = "Name:\tkaskade\nVmPeak:\t  99 kB\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let memory = parse(status);
        assert_eq!((memory.resident, memory.peak), (Some(1 << 20), Some(2 << 20)));
        assert_eq!(parse("VmRSS: many kB\nVmHWM: 12\n"), ProcessMemory::default());
    }

    #[test]
    fn this_process_takes_memory() {
        let before = of_process().resident.unwrap();
        assert!(before > 100_000);
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(of_process().peak.unwrap() >= before.max(block.len() as u64));
    }
}
