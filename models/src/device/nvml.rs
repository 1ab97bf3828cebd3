//! What the driver's management library (NVML) tells of one GPU. The library is loaded at run time, so this works in every
//! build and is simply absent where there is no driver.

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
