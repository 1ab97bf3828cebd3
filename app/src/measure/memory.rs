//! Memory of a model, or of a partition of it, on its device: `w_i(b)` (HybridServe §V-B).
//!
//! On the processor that is what a process gains by loading the model and running a batch, so every measurement has a process of its own:
//! in one that has held another model, freed memory would be reused without being counted.

use kaskade_models::memory::MemoryReader;
use kaskade_models::{
    Datatype, DeviceError, Extent, InputSpec, Inputs, Model, ModelError, Signature, Slice, Tensor,
    TensorError, device,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::family::{FamilyError, Member};

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
    #[error("the system does not measure the peak of a process anew")]
    NoReset,
    /// The reader gives no peak.
    #[error("the system does not report a peak")]
    NoPeak,
    /// The model refuses a made-up request.
    #[error("the model does not answer a made-up request")]
    Refused(#[source] ModelError),
    /// An input is of a type for which no request is made up.
    #[error("input `{input}` is {datatype:?}; nothing is made up of that")]
    Input {
        /// The input.
        input: String,
        /// Its type.
        datatype: Datatype,
    },
    /// The model cannot be loaded.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A made-up request is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Words of the text that a model of texts is measured with.
const WORDS: usize = 16;

/// Measurements of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Weighed {
    /// The variant.
    pub variant: String,
    /// Which slice of it, from 0.
    pub slice: usize,
    /// Of how many.
    pub of: usize,
    /// Weights of the slice.
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

/// Measures in this process, which should have done nothing else. The requests are made up, as long as the model takes them, a text of
/// 16 words: what a request holds does not matter here, how much does.
///
/// # Errors
/// When the device cannot be read, or the model not be loaded or run.
pub fn here(member: &Member, slice: Slice, batches: &[u32]) -> Result<Weighed, MemoryError> {
    let opened = device::open(member.device)?;
    let reader =
        MemoryReader::of(&device::describe(member.device, &opened)).map_err(MemoryError::Unsupported)?;
    let now = || reader.now().ok_or(MemoryError::NoReading);
    let before = now()?;
    let mut loaded = member.load_slice(member.device, slice)?;
    // Memory that the process had already is not counted, so the weights are the minimum.
    let least = loaded.info.parameters * 4;
    let loaded_bytes = now()?.saturating_sub(before).max(least);
    let request = request(&loaded.model.signature())?;
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
    Ok(Weighed {
        variant: member.name.clone(),
        slice: slice.index(),
        of: slice.of(),
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

/// The longest request that the model takes, of ones. Where every input may be left out, one of tokens rather than a text, whose length
/// would depend on its tokenizer. A language model generates one token after as many as it takes.
fn request(signature: &Signature) -> Result<Inputs, MemoryError> {
    let named = |name: &str| signature.inputs.iter().find(|input| input.name == name);
    if let (Some(ids), Some(_)) = (named("input_ids"), named("max_tokens")) {
        let most = ids.shape.iter().map(|extent| match extent {
            Extent::Exactly(size) | Extent::UpTo(size) => size - 1,
        });
        let most: usize = most.product();
        return Ok(vec![
            Tensor::from_i64("input_ids", &[most], &vec![1; most])?,
            Tensor::from_i64("max_tokens", &[1], &[1])?,
        ]);
    }
    let needed: Vec<&InputSpec> = signature.inputs.iter().filter(|input| !input.optional).collect();
    let tokens = signature
        .inputs
        .iter()
        .find(|input| input.datatype != Datatype::Bytes);
    let either = if needed.is_empty() {
        tokens.or(signature.inputs.first())
    } else {
        None
    };
    needed.into_iter().chain(either).map(input).collect()
}

fn input(spec: &InputSpec) -> Result<Tensor, MemoryError> {
    let shape: Vec<usize> = spec
        .shape
        .iter()
        .map(|extent| match extent {
            Extent::Exactly(size) | Extent::UpTo(size) => *size,
        })
        .collect();
    let elements = shape.iter().product();
    let tensor = match spec.datatype {
        Datatype::F32 => Tensor::from_f32(&spec.name, &shape, &vec![1.0; elements])?,
        Datatype::I64 => Tensor::from_i64(&spec.name, &shape, &vec![1; elements])?,
        Datatype::Bytes => {
            let text = vec!["film"; WORDS].join(" ");
            Tensor::from_texts(&spec.name, &vec![text.as_str(); elements.max(1)])?
        }
        datatype => {
            return Err(MemoryError::Input {
                input: spec.name.clone(),
                datatype,
            });
        }
    };
    Ok(tensor)
}
