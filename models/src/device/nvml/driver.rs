//! NVML driver: the GPUs that NVML lists, and their readings.

use nvml_wrapper::enum_wrappers::device::Sampling;
use nvml_wrapper::enums::device::SampleValue;
pub use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::super::{DeviceChoice, DeviceInfo};
use super::{GpuMemory, KernelUtilisation};

/// Handle of a GPU in NVML.
pub struct Gpu {
    nvml: Nvml,
    key: Key,
}

/// Key of a GPU. CUDA and NVML number GPUs differently under `CUDA_VISIBLE_DEVICES`; the bus address is the same in
/// both.
enum Key {
    Address(String),
    Index(u32),
}

impl Gpu {
    /// Opens the GPU of an opened device.
    ///
    /// # Errors
    /// The reason as text.
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

    /// Returns the energy since the driver was loaded, millijoules. Supported since Volta.
    ///
    /// # Errors
    /// [`NvmlError::NotSupported`] if the GPU has no counter, and other NVML errors.
    pub(crate) fn energy_mj(&self) -> Result<u64, NvmlError> {
        self.device()?.total_energy_consumption()
    }

    /// Returns the current power, milliwatts.
    ///
    /// # Errors
    /// NVML errors.
    pub(crate) fn power_mw(&self) -> Result<u32, NvmlError> {
        self.device()?.power_usage()
    }

    /// Returns the current memory.
    ///
    /// # Errors
    /// NVML errors.
    pub fn memory(&self) -> Result<GpuMemory, NvmlError> {
        let memory = self.device()?.memory_info()?;
        Ok(GpuMemory {
            total: memory.total,
            free: memory.free,
            used: memory.used,
        })
    }

    /// Returns the kernel utilisation since `after`, from the driver's samples (about six per second), and the time of
    /// the newest sample, to pass as `after` in the next call. 0 covers all samples that the driver has.
    ///
    /// # Errors
    /// NVML errors; [`NvmlError::NotFound`] if there is no newer sample.
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

    /// Returns the version of the driver, such as `580.159.03`.
    ///
    /// # Errors
    /// NVML errors.
    pub(crate) fn driver_version(&self) -> Result<String, NvmlError> {
        self.nvml.sys_driver_version()
    }

    // An NVML handle borrows the library, so this looks up the device on every call, which takes microseconds.
    fn device(&self) -> Result<Device<'_>, NvmlError> {
        match &self.key {
            Key::Address(address) => self.nvml.device_by_pci_bus_id(address.as_str()),
            Key::Index(index) => self.nvml.device_by_index(*index),
        }
    }
}
