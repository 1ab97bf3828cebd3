//! The families of language models, by the architecture that `config.json` names.
//!
//! A family is added with one file and one line in `FAMILIES`.

use super::weights::{Decoder, Dense};
use super::{gpt2, gptj, llama, opt, t5};
use crate::checkpoint::{Checkpoint, Config, LoadError, Tally};
use crate::runtime::slice::Slice;

struct Family {
    /// `architectures[0]` or `model_type` of its `config.json`.
    names: [&'static str; 2],
    read: Read,
}

/// How a family reads a model.
enum Read {
    /// As a whole only.
    Whole(fn(&mut Checkpoint) -> Result<Decoder, LoadError>),
    /// With the layers of a slice only, or the whole.
    Sliced(fn(&mut Checkpoint, Slice) -> Result<Decoder, LoadError>),
}

const FAMILIES: &[Family] = &[
    Family {
        names: ["GPT2LMHeadModel", "gpt2"],
        read: Read::Sliced(gpt2::read),
    },
    Family {
        names: ["OPTForCausalLM", "opt"],
        read: Read::Sliced(opt::read),
    },
    Family {
        names: ["LlamaForCausalLM", "llama"],
        read: Read::Sliced(llama::read),
    },
    Family {
        names: ["GPTJForCausalLM", "gptj"],
        read: Read::Sliced(gptj::read),
    },
    Family {
        names: ["T5ForConditionalGeneration", "t5"],
        read: Read::Whole(t5::read),
    },
];

/// Causal masks and other buffers that old versions of transformers saved beside the weights, by the end of their names.
const BUFFERS: [&str; 4] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    "rotary_emb.inv_freq",
];

/// The architectures that can be generated with.
pub fn known() -> Vec<&'static str> {
    let name = |family: &Family| {
        let [architecture, _] = family.names;
        architecture
    };
    FAMILIES.iter().map(name).collect()
}

/// Takes a language model out of a checkpoint, whole: every tensor it needs, and none left over.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn read(checkpoint: Checkpoint) -> Result<Decoder, LoadError> {
    Ok(read_counted(checkpoint)?.0)
}

/// The same, with how many weights there are.
///
/// # Errors
/// As [`read`].
pub fn read_counted(mut checkpoint: Checkpoint) -> Result<(Decoder, Tally), LoadError> {
    let decoder = read_layers(&mut checkpoint, Slice::WHOLE)?;
    checkpoint.weights.drop_ending(&BUFFERS);
    let tally = checkpoint.weights.finish(&[])?;
    Ok((decoder, tally))
}

/// The same with the layers of a slice only: embeddings if it is the first, norm and head if it is the last.
///
/// # Errors
/// As [`read`]; [`LoadError::NotSliced`] and [`LoadError::TooManySlices`].
pub fn read_slice(mut checkpoint: Checkpoint, slice: Slice) -> Result<(Decoder, Tally), LoadError> {
    let mut decoder = read_layers(&mut checkpoint, slice)?;
    if !slice.is_first() {
        decoder.embedding = Vec::new();
        decoder.positions = None;
    }
    if !slice.is_last() {
        decoder.head = Dense::default();
    }
    Ok((decoder, checkpoint.weights.taken()))
}

fn read_layers(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let family = find(&checkpoint.config)?.ok_or_else(|| unknown(&checkpoint.config))?;
    match family.read {
        Read::Sliced(read) => read(checkpoint, slice),
        Read::Whole(read) if slice == Slice::WHOLE => read(checkpoint),
        Read::Whole(_) => {
            let [architecture, _] = family.names;
            Err(LoadError::NotSliced {
                architecture,
                of: slice.of(),
            })
        }
    }
}

/// The architecture of a checkpoint, if it is a language model's.
///
/// # Errors
/// [`LoadError::BadKey`] where `config.json` names it in no way.
pub fn architecture(config: &Config) -> Result<Option<&'static str>, LoadError> {
    let family = find(config)?;
    Ok(family.map(|family| {
        let [architecture, _] = family.names;
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

fn find(config: &Config) -> Result<Option<&'static Family>, LoadError> {
    let mut names = names(config)?;
    Ok(names.find_map(|name| {
        let mut families = FAMILIES.iter();
        families.find(|family| family.names.contains(&name.as_str()))
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
        known: known(),
    }
}
