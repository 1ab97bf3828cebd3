//! Readings of a GPU from the NVIDIA Management Library (NVML).
//!
//! The library is loaded at run time; without a driver, opening a GPU fails. Without the feature `cuda`, this module
//! contains no code for GPUs and opening one always fails.

#[cfg(feature = "cuda")]
mod driver;
#[cfg(not(feature = "cuda"))]
#[path = "nvml/without_cuda.rs"]
mod driver;

use serde::Serialize;

pub use driver::{Gpu, NvmlError};

/// Memory of a GPU, all processes, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// Total memory.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Used memory.
    pub used: u64,
}

/// Kernel utilisation of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelUtilisation {
    /// Fraction of time in which a kernel ran, in [0, 1].
    pub share: f64,
    /// Time of the newest sample by the driver's clock, microseconds.
    pub newest: u64,
}

impl KernelUtilisation {
    /// Averages the samples (time, percent) that are newer than `after`; `None` if there are none.
    #[cfg(any(test, feature = "cuda"))]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newer_samples_count() {
        let samples = [(5, 100.0), (10, 20.0), (20, 60.0)];
        let since = |after| KernelUtilisation::of(samples.into_iter(), after);
        let found = since(5).unwrap();
        assert!((found.share - 0.4).abs() < 1e-12 && found.newest == 20);
        assert_eq!(since(20), None);
        assert!((since(0).unwrap().share - 0.6).abs() < 1e-12);
    }
}
