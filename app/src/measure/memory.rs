//! Memory of a model, or of a partition of it, on its device: `w_i(b)` (HybridServe §V-B).
//!
//! On the processor that is what a process gains by loading the model and running a batch, so every measurement has a process of its own:
//! in one that has held another model, freed memory would be reused without being counted.

use kaskade_models::memory::MemoryReader;
use kaskade_models::{
    DeviceError, Inputs, Model, ModelError, Partition, SampleError, SampleSize, device, sample_request,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::family::{FamilyError, VariantSpec};

/// Memory cannot be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device has no reader.
    #[error("{0}")]
    Unsupported(String),
    /// The reader gives no reading.
    #[error("the system does not report how much memory is in use")]
    NoReading,
    /// The peak of a process cannot be measured more than once.
    #[error("the system cannot reset the peak memory counter of a process")]
    NoReset,
    /// The reader gives no peak.
    #[error("the system does not report a peak")]
    NoPeak,
    /// The model refuses a synthetic request.
    #[error("the model refuses a synthetic request")]
    Refused(#[source] ModelError),
    /// No synthetic request can be made.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Measurements of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MeasuredMemory {
    /// The variant.
    pub variant: String,
    /// Which partition of it, from 0.
    pub partition: u32,
    /// Of how many.
    pub of: u32,
    /// Weights of the partition.
    pub parameters: u64,
    /// Taken by loading it, bytes.
    pub loaded_bytes: u64,
    /// Taken while a batch runs, loading included, by batch size.
    pub batches: Vec<BatchMemory>,
}

/// Memory at one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchMemory {
    /// Requests in the batch.
    pub batch: u32,
    /// The most in use while it ran, loading included, bytes.
    pub bytes: u64,
}

/// Measures in this process, which should have done nothing else. The requests are synthetic, as long as the model takes them, a text of
/// 16 words: what a request holds does not matter here, how much does.
///
/// # Errors
/// When the device cannot be read, or the model not be loaded or run.
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
    // Memory that the process had already is not counted, so the weights are the minimum.
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
