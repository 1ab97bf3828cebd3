//! What a model, or a slice of it, takes of its device's memory: `w_i(b)` (HybridServe §V-B).
//!
//! On the processor that is what a process gains by loading the model and running a batch, so every measurement has a process of its own:
//! in one that has held another model, freed memory would be taken again without being seen.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};
use kaskade::models::memory::MemoryReader;
use kaskade::models::{Datatype, Extent, InputSpec, Inputs, Model, Signature, Slice, Tensor, device};
use serde::{Deserialize, Serialize};

use crate::family::Member;

/// Words of the text that a model of texts is measured with.
const WORDS: usize = 16;

/// What was seen of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Weighed {
    /// The variant.
    pub(crate) variant: String,
    /// Which slice of it, from 0.
    pub(crate) slice: usize,
    /// Of how many.
    pub(crate) of: usize,
    /// Weights of the slice.
    pub(crate) parameters: u64,
    /// Taken by loading it, bytes.
    pub(crate) loaded_bytes: u64,
    /// Taken while a batch runs, loading included, by batch size.
    pub(crate) batches: Vec<BatchMemory>,
}

/// Memory at one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BatchMemory {
    /// Requests in the batch.
    pub(crate) batch: u32,
    /// The most in use while it ran, loading included, bytes.
    pub(crate) bytes: u64,
}

/// Measures in this process, which should have done nothing else. The requests are made up, as long as the model takes them, a text of
/// 16 words: what a request holds does not matter here, how much does.
///
/// # Errors
/// When the device cannot be read, or the model not be loaded or run.
pub(crate) fn here(member: &Member, slice: Slice, batches: &[u32]) -> anyhow::Result<Weighed> {
    let opened = device::open(member.device)?;
    let gauge = MemoryReader::of(&device::describe(member.device, &opened)).map_err(anyhow::Error::msg)?;
    let now = || {
        gauge
            .now()
            .context("the system does not tell how much memory is in use")
    };
    let before = now()?;
    let mut loaded = member.load_slice(member.device, slice)?;
    // What was in the process's hands already is not seen to be taken: the weights themselves are the least.
    let least = loaded.info.parameters * 4;
    let loaded_bytes = now()?.saturating_sub(before).max(least);
    let request = request(&loaded.model.signature())?;
    let mut measured = Vec::new();
    for batch in batches {
        ensure!(
            gauge.reset(),
            "the system does not measure the peak of a process anew"
        );
        run(loaded.model.as_mut(), &vec![request.clone(); *batch as usize])?;
        let peak = gauge.peak().context("the system does not tell a peak")?;
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

/// The same in a process of its own.
///
/// # Errors
/// What that process says.
pub(crate) fn apart(app: &Path, variant: &str, slice: Slice, batches: &[u32]) -> anyhow::Result<Weighed> {
    let batches: Vec<String> = batches.iter().map(u32::to_string).collect();
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let told = Command::new(program)
        .arg("weigh")
        .arg("--app")
        .arg(app)
        .args(["--variant", variant, "--json", "--batches", &batches.join(",")])
        .args(["--slice", &format!("{}/{}", slice.index(), slice.of())])
        .output()
        .context("a process to measure memory in cannot be started")?;
    let said = String::from_utf8_lossy(&told.stderr);
    // It says who it is, as this process will.
    let said = said.trim();
    let said = said.strip_prefix("kaskade: ").unwrap_or(said);
    ensure!(told.status.success(), "memory of `{variant}`: {said}");
    serde_json::from_slice(&told.stdout).context("the process that measured memory said something else")
}

fn run(model: &mut dyn Model, requests: &[Inputs]) -> anyhow::Result<()> {
    for result in model.run(requests) {
        result.context("the model does not answer a made-up request")?;
    }
    Ok(())
}

/// The longest request that the model takes, of ones. Where every input may be left out, one of tokens rather than a text, whose length
/// would depend on its tokenizer. A language model is asked for one token after as many as it takes.
fn request(signature: &Signature) -> anyhow::Result<Inputs> {
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

fn input(spec: &InputSpec) -> anyhow::Result<Tensor> {
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
        other => anyhow::bail!("input `{}` is {other:?}; nothing is made up of that", spec.name),
    };
    Ok(tensor)
}
