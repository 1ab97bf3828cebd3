//! What the driver's management library (NVML) tells of one GPU. The library is loaded at run time, so this works in every
//! build and is simply absent where there is no driver.

use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;

use super::{DeviceChoice, DeviceInfo};

/// One GPU as NVML knows it.
pub struct Gpu {
    nvml: Nvml,
    key: Key,
}

/// CUDA and NVML count GPUs differently under `CUDA_VISIBLE_DEVICES`; the bus address is the same for both.
enum Key {
    Address(String),
    Index(u32),
}

/// Memory of a GPU, all processes together, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// All of it.
    pub total: u64,
    /// Not in use.
    pub free: u64,
    /// In use, by whomever.
    pub used: u64,
}

/// How busy kernels have kept a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelUtilisation {
    /// Share of the time in which a kernel ran, in [0, 1].
    pub share: f64,
    /// When the newest sample was taken, microseconds of the driver's clock.
    pub newest: u64,
}

impl KernelUtilisation {
    /// Of samples (time, percent), as far as they are newer than `after`; `None` where none is.
    fn of(samples: impl Iterator<Item = (u64, f64)>, after: u64) -> Option<Self> {
        let (mut sum, mut count, mut newest) = (0.0, 0_u32, after);
        for (time, percent) in samples.filter(|(time, _)| *time > after) {
            sum += percent / 100.0;
            count += 1;
            newest = newest.max(time);
        }
        (count > 0).then(|| Self {
            share: (sum / f64::from(count)).clamp(0.0, 1.0),
            newest,
        })
    }
}

impl Gpu {
    /// The GPU behind an opened device.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn open(info: &DeviceInfo) -> Result<Self, String> {
        let DeviceChoice::Cuda(index) = info.choice else {
            return Err(format!("{} is not a GPU", info.choice));
        };
        let nvml = Nvml::init().map_err(|error| error.to_string())?;
        let key = info
            .pci_address
            .clone()
            .map_or(Key::Index(u32::from(index)), Key::Address);
        let gpu = Self { nvml, key };
        gpu.device().map_err(|error| error.to_string())?;
        Ok(gpu)
    }

    /// Energy since the driver was loaded, millijoules. Volta and later count it.
    ///
    /// # Errors
    /// [`NvmlError::NotSupported`] where the GPU does not count, and whatever else NVML says.
    pub fn energy_mj(&self) -> Result<u64, NvmlError> {
        self.device()?.total_energy_consumption()
    }

    /// Power now, milliwatts.
    ///
    /// # Errors
    /// What NVML says.
    pub fn power_mw(&self) -> Result<u32, NvmlError> {
        self.device()?.power_usage()
    }

    /// Memory now.
    ///
    /// # Errors
    /// What NVML says.
    pub fn memory(&self) -> Result<GpuMemory, NvmlError> {
        let memory = self.device()?.memory_info()?;
        Ok(GpuMemory {
            total: memory.total,
            free: memory.free,
            used: memory.used,
        })
    }

    /// How busy kernels have kept the GPU since `after`, by the driver's own samples (about every sixth of a second), and when the newest
    /// of them was taken: what to give as `after` the next time. 0 looks back as far as the driver remembers.
    ///
    /// # Errors
    /// What NVML says; [`NvmlError::NotFound`] where there is no sample since.
    pub fn kernel_utilisation(&self, after: u64) -> Result<KernelUtilisation, NvmlError> {
        let samples = self.device()?.samples(Sampling::GpuUtilization, after)?;
        let samples = samples.into_iter().map(|sample| {
            let percent = match sample.value {
                SampleValue::F64(value) => value,
                SampleValue::U32(value) => f64::from(value),
                SampleValue::U64(value) => value as f64,
                SampleValue::I64(value) => value as f64,
            };
            (sample.timestamp, percent)
        });
        KernelUtilisation::of(samples, after).ok_or(NvmlError::NotFound)
    }

    /// The driver's version, such as `580.159.03`.
    ///
    /// # Errors
    /// What NVML says.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.nvml.sys_driver_version()
    }

    // A handle borrows the library, so it is looked up each time: that takes microseconds, and it is done ten times a second.
    fn device(&self) -> Result<Device<'_>, NvmlError> {
        match &self.key {
            Key::Address(address) => self.nvml.device_by_pci_bus_id(address.as_str()),
            Key::Index(index) => self.nvml.device_by_index(*index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_samples_since_then_count() {
        let samples = [(5, 100.0), (10, 20.0), (20, 60.0)];
        let since = |after| KernelUtilisation::of(samples.into_iter(), after);
        let found = since(5).unwrap();
        assert!((found.share - 0.4).abs() < 1e-12 && found.newest == 20);
        assert_eq!(since(20), None);
        assert!((since(0).unwrap().share - 0.6).abs() < 1e-12);
    }
}
