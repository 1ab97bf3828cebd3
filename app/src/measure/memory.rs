//! Measures the memory of a model or a partition on its device: `w_i(b)` (HybridServe §V-B).
//!
//! On the CPU this is the memory that a process gains by loading the model and running a batch. Every measurement
//! therefore needs a new process: a process that has held another model would reuse freed memory without counting it.

use kaskade_models::memory::MemoryReader;
use kaskade_models::{
    DeviceError, Inputs, Model, ModelError, Partition, SampleError, SampleSize, device, sample_request,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::family::{FamilyError, VariantSpec};

/// Error of measuring memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The memory of the device cannot be read.
    #[error("{0}")]
    Unsupported(String),
    /// The current memory cannot be read.
    #[error("the system does not report how much memory is in use")]
    NoReading,
    /// The peak memory of a process cannot be reset, so only one peak can be measured.
    #[error("the system cannot reset the peak memory counter of a process")]
    NoReset,
    /// The peak memory cannot be read.
    #[error("the system does not report a peak")]
    NoPeak,
    /// The model refuses a synthetic request.
    #[error("the model refuses a synthetic request")]
    Refused(#[source] ModelError),
    /// No synthetic request can be created.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Memory of a model or partition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredMemory {
    /// The variant.
    pub variant: String,
    /// Index of the partition, from 0.
    pub partition: u32,
    /// Number of partitions.
    pub of: u32,
    /// Number of parameters of the partition.
    pub parameters: u64,
    /// Memory used by loading, bytes.
    pub loaded_bytes: u64,
    /// Memory used while a batch runs, loading included, by batch size.
    pub batches: Vec<BatchMemory>,
}

/// Memory at one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchMemory {
    /// Batch size, requests.
    pub batch: u32,
    /// Peak memory, loading included, bytes.
    pub bytes: u64,
}

/// Measures in this process, which should have done nothing else. The requests are synthetic and as long as the model
/// accepts, or texts of 16 words: only their size matters.
///
/// # Errors
/// [`MemoryError`] if the memory cannot be read, or the model cannot be loaded or run.
pub fn here(
    member: &VariantSpec,
    partition: Partition,
    batches: &[u32],
) -> Result<MeasuredMemory, MemoryError> {
    let opened = device::open(member.device)?;
    let reader =
        MemoryReader::of(&device::describe(member.device, &opened)).map_err(MemoryError::Unsupported)?;
    let now = || reader.now().ok_or(MemoryError::NoReading);
    let before = now()?;
    let mut loaded = member.load_partition(member.device, partition)?;
    // Memory that the process already had is not counted, so the size of the weights is the minimum.
    let least = loaded.info.parameters * 4;
    let loaded_bytes = now()?.saturating_sub(before).max(least);
    let request = sample_request(&loaded.model.signature(), SampleSize::LONGEST)?;
    let mut measured = Vec::new();
    for batch in batches {
        if !reader.reset() {
            return Err(MemoryError::NoReset);
        }
        run(loaded.model.as_mut(), &vec![request.clone(); *batch as usize])?;
        let peak = reader.peak().ok_or(MemoryError::NoPeak)?;
        measured.push(BatchMemory {
            batch: *batch,
            bytes: peak.saturating_sub(before).max(loaded_bytes),
        });
    }
    Ok(MeasuredMemory {
        variant: member.name.clone(),
        partition: partition.index,
        of: partition.of,
        parameters: loaded.info.parameters,
        loaded_bytes,
        batches: measured,
    })
}

fn run(model: &mut dyn Model, requests: &[Inputs]) -> Result<(), MemoryError> {
    for result in model.run(requests) {
        result.map_err(MemoryError::Refused)?;
    }
    Ok(())
}
