//! The registry of language model architectures, by the name in `config.json`.
//!
//! An architecture is added with one file and one line in `ARCHITECTURES`.

use super::weights::{Decoder, LinearWeights};
use super::{gpt2, gptj, llama, opt, t5};
use crate::checkpoint::{Checkpoint, Config, LoadError, WeightTotals};
use crate::runtime::slice::Slice;

struct Architecture {
    /// `architectures[0]` or `model_type` of its `config.json`.
    names: [&'static str; 2],
    read: ReadFn,
}

/// How an architecture is read.
enum ReadFn {
    /// As a whole only.
    Whole(fn(&mut Checkpoint) -> Result<Decoder, LoadError>),
    /// With the layers of a slice, or as a whole.
    Sliced(fn(&mut Checkpoint, Slice) -> Result<Decoder, LoadError>),
}

const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        names: ["GPT2LMHeadModel", "gpt2"],
        read: ReadFn::Sliced(gpt2::read),
    },
    Architecture {
        names: ["OPTForCausalLM", "opt"],
        read: ReadFn::Sliced(opt::read),
    },
    Architecture {
        names: ["LlamaForCausalLM", "llama"],
        read: ReadFn::Sliced(llama::read),
    },
    Architecture {
        names: ["GPTJForCausalLM", "gptj"],
        read: ReadFn::Sliced(gptj::read),
    },
    Architecture {
        names: ["T5ForConditionalGeneration", "t5"],
        read: ReadFn::Whole(t5::read),
    },
];

/// Causal masks and other buffers that old versions of transformers saved with the weights, by name suffix.
const BUFFERS: [&str; 4] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    "rotary_emb.inv_freq",
];

/// The supported language model architectures.
pub(crate) fn supported() -> Vec<&'static str> {
    let name = |entry: &Architecture| {
        let [architecture, _] = entry.names;
        architecture
    };
    ARCHITECTURES.iter().map(name).collect()
}

/// Reads a language model from a checkpoint. Every tensor of the checkpoint must be used.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn read_decoder(checkpoint: Checkpoint) -> Result<Decoder, LoadError> {
    Ok(read_with_totals(checkpoint)?.0)
}

/// Reads a language model like [`read_decoder`], and returns how many weights it has.
///
/// # Errors
/// As [`read_decoder`].
pub(crate) fn read_with_totals(mut checkpoint: Checkpoint) -> Result<(Decoder, WeightTotals), LoadError> {
    let decoder = read_layers(&mut checkpoint, Slice::WHOLE)?;
    checkpoint.weights.ignore_suffixes(&BUFFERS);
    let totals = checkpoint.weights.finish(&[])?;
    Ok((decoder, totals))
}

/// Reads the layers of a slice only; embeddings belong to the first slice, norm and head to the last.
///
/// # Errors
/// As [`read_decoder`]; [`LoadError::NotSliced`] and [`LoadError::TooManySlices`].
pub(crate) fn read_slice(
    mut checkpoint: Checkpoint,
    slice: Slice,
) -> Result<(Decoder, WeightTotals), LoadError> {
    let mut decoder = read_layers(&mut checkpoint, slice)?;
    if !slice.is_first() {
        decoder.embedding = Vec::new();
        decoder.positions = None;
    }
    if !slice.is_last() {
        decoder.head = LinearWeights::default();
    }
    Ok((decoder, checkpoint.weights.totals()))
}

fn read_layers(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let entry = find(&checkpoint.config)?.ok_or_else(|| unknown(&checkpoint.config))?;
    match entry.read {
        ReadFn::Sliced(read) => read(checkpoint, slice),
        ReadFn::Whole(read) if slice == Slice::WHOLE => read(checkpoint),
        ReadFn::Whole(_) => {
            let [architecture, _] = entry.names;
            Err(LoadError::NotSliced {
                architecture,
                of: slice.of(),
            })
        }
    }
}

/// Returns the architecture of a checkpoint if it is a language model.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub fn architecture(config: &Config) -> Result<Option<&'static str>, LoadError> {
    let entry = find(config)?;
    Ok(entry.map(|entry| {
        let [architecture, _] = entry.names;
        architecture
    }))
}

fn names(config: &Config) -> Result<impl Iterator<Item = String> + use<>, LoadError> {
    let named = config
        .optional::<Vec<String>>("architectures")?
        .unwrap_or_default();
    let model_type = config.optional::<String>("model_type")?;
    Ok(named.into_iter().take(1).chain(model_type))
}

fn find(config: &Config) -> Result<Option<&'static Architecture>, LoadError> {
    let mut names = names(config)?;
    Ok(names.find_map(|name| {
        let mut entries = ARCHITECTURES.iter();
        entries.find(|entry| entry.names.contains(&name.as_str()))
    }))
}

fn unknown(config: &Config) -> LoadError {
    let name = names(config).ok().and_then(|mut names| names.next());
    LoadError::UnknownArchitecture {
        file: config.file().to_owned(),
        found: name.map_or_else(
            || "in neither `architectures` nor `model_type`".into(),
            |name| format!("`{name}`"),
        ),
        known: supported(),
    }
}
