//! Replacement for programs without the CUDA back end: no GPU can be opened.

use super::super::{DeviceChoice, DeviceInfo};
use super::{GpuMemory, KernelUtilisation};

/// Error of a GPU; cannot occur.
pub type NvmlError = std::convert::Infallible;

/// Handle of a GPU; cannot exist without the feature `cuda`.
pub enum Gpu {}

impl Gpu {
    /// Always fails, because GPUs need the feature `cuda`.
    ///
    /// # Errors
    /// The reason as text.
    pub fn open(info: &DeviceInfo) -> Result<Self, String> {
        match info.choice {
            DeviceChoice::Cpu => Err(format!("{} is not a GPU", info.choice)),
            DeviceChoice::Cuda(_) => Err("this program was built without `--features cuda`".into()),
        }
    }

    pub(crate) fn energy_mj(&self) -> Result<u64, NvmlError> {
        match *self {}
    }

    pub(crate) fn power_mw(&self) -> Result<u32, NvmlError> {
        match *self {}
    }

    /// Returns the current memory.
    ///
    /// # Errors
    /// None.
    pub fn memory(&self) -> Result<GpuMemory, NvmlError> {
        match *self {}
    }

    /// Returns the kernel utilisation.
    ///
    /// # Errors
    /// None.
    pub fn kernel_utilisation(&self, _after: u64) -> Result<KernelUtilisation, NvmlError> {
        match *self {}
    }

    pub(crate) fn driver_version(&self) -> Result<String, NvmlError> {
        match *self {}
    }
}
