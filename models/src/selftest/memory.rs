//! Memory of the device and of this process, and the machine's load average.

use std::fs;

use serde::Serialize;

use crate::device::DeviceInfo;
use crate::device::memory::{ProcessMemory, of_process};
use crate::device::nvml::{Gpu, GpuMemory};

/// Memory readings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryReport {
    /// Memory of the GPU, all processes; `None` if NVML does not report it.
    pub gpu: Option<GpuMemory>,
    /// Reason why the GPU's memory is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_unknown: Option<String>,
    /// Host memory of this process.
    pub process: ProcessMemory,
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

/// Load average of the last minute.
pub(super) fn load() -> Option<f64> {
    let averages = fs::read_to_string("/proc/loadavg").ok()?;
    averages.split_whitespace().next()?.parse().ok()
}
