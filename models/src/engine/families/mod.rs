//! The families of language models, by the architecture that `config.json` names.
//!
//! A family is added with one file and one line in `FAMILIES`.

mod gpt2;
mod gptj;
mod llama;
mod opt;
mod t5;

use super::model::{Decoder, Dense};
use crate::checkpoint::{Checkpoint, Config, LoadError, Tally};
use crate::slice::Slice;

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

/// The layers of a slice, of as many as `key` says.
fn layers(config: &Config, key: &str, slice: Slice) -> Result<std::ops::Range<usize>, LoadError> {
    let all = config.size(key)?;
    if slice.of() > all {
        return Err(LoadError::TooManySlices {
            file: config.file().to_owned(),
            blocks: all,
            of: slice.of(),
        });
    }
    Ok(slice.blocks(all))
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

/// `eos_token_id`: one, several or none.
fn ends(config: &Config) -> Result<Vec<u32>, LoadError> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Ends {
        One(u32),
        Several(Vec<u32>),
    }
    Ok(match config.optional("eos_token_id")? {
        None => Vec::new(),
        Some(Ends::One(end)) => vec![end],
        Some(Ends::Several(ends)) => ends,
    })
}

/// Heads that `width` is divided into evenly, each with its own keys.
fn even_heads(config: &Config, key: &str, width: usize) -> Result<super::math::Heads, LoadError> {
    let count = config.size(key)?;
    if !width.is_multiple_of(count) {
        return Err(config.refuse(key, format!("it must divide the width of {width}")));
    }
    let extent = width / count;
    Ok(super::math::Heads {
        queries: count,
        keys: count,
        extent,
        scale: 1.0 / (extent as f32).sqrt(),
    })
}

/// A small positive number.
fn epsilon(config: &Config, key: &str, absent: f64) -> Result<f32, LoadError> {
    let epsilon = config.optional::<f64>(key)?.unwrap_or(absent);
    if epsilon > 0.0 && epsilon < 1.0 {
        Ok(epsilon as f32)
    } else {
        Err(config.refuse(key, "it must lie between 0 and 1"))
    }
}

/// An activation by the name that transformers has for it.
fn activation(config: &Config, key: &str, absent: &str) -> Result<super::math::Activation, LoadError> {
    let name = config
        .optional::<String>(key)?
        .unwrap_or_else(|| absent.to_owned());
    activation_of(&name)
        .ok_or_else(|| config.refuse(key, "relu, gelu, gelu_new, gelu_pytorch_tanh and silu are served"))
}

fn activation_of(name: &str) -> Option<super::math::Activation> {
    use super::math::Activation;
    match name {
        "relu" => Some(Activation::Relu),
        "gelu" => Some(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Some(Activation::GeluTanh),
        "silu" | "swish" => Some(Activation::Silu),
        _ => None,
    }
}

/// Refuses a key that is set to something else than what is served.
fn must_be(config: &Config, key: &str, value: bool, reason: &str) -> Result<(), LoadError> {
    match config.optional::<bool>(key)? {
        Some(other) if other != value => Err(config.refuse(key, reason)),
        _ => Ok(()),
    }
}
