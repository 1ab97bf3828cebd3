//! The registry of language model architectures, by the name in `config.json`.
//!
//! An architecture is added with one file and one line in `ARCHITECTURES`.

use super::weights::{Decoder, LayerWeights, LinearWeights};
use super::{gemma, gpt_neox, gpt2, gptj, llama, mistral, opt, phi3, qwen, t5};
use crate::checkpoint::{Checkpoint, Config, LoadError, WeightTotals};
use crate::precision::Table;
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
        names: ["MistralForCausalLM", "mistral"],
        read: ReadFn::Sliced(mistral::read),
    },
    Architecture {
        names: ["Qwen2ForCausalLM", "qwen2"],
        read: ReadFn::Sliced(qwen::read_2),
    },
    Architecture {
        names: ["Qwen3ForCausalLM", "qwen3"],
        read: ReadFn::Sliced(qwen::read_3),
    },
    Architecture {
        names: ["Phi3ForCausalLM", "phi3"],
        read: ReadFn::Sliced(phi3::read),
    },
    Architecture {
        names: ["Gemma2ForCausalLM", "gemma2"],
        read: ReadFn::Sliced(gemma::read_2),
    },
    Architecture {
        names: ["Gemma3ForCausalLM", "gemma3_text"],
        read: ReadFn::Sliced(gemma::read_3),
    },
    Architecture {
        names: ["GPTNeoXForCausalLM", "gpt_neox"],
        read: ReadFn::Sliced(gpt_neox::read),
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
const BUFFERS: [&str; 5] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
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
    // A head that shares the embedding is a copy.
    let bytes = bytes(&decoder);
    Ok((decoder, WeightTotals { bytes, ..totals }))
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
        decoder.embedding = Table::default();
        decoder.positions = None;
    }
    if !slice.is_last() {
        decoder.head = LinearWeights::default();
    }
    let totals = WeightTotals {
        parameters: parameters(&decoder) as u64,
        bytes: bytes(&decoder),
    };
    Ok((decoder, totals))
}

/// All layers of a decoder, those of its encoder included.
fn layers(decoder: &Decoder) -> impl Iterator<Item = &LayerWeights> {
    let encoder = decoder.encoder.iter();
    let encoders = encoder.flat_map(|encoder| &encoder.layers);
    decoder.layers.iter().chain(encoders)
}

/// Number of weights of the final norms, which are f32.
fn final_norms(decoder: &Decoder) -> usize {
    let encoder = decoder.encoder.as_ref();
    decoder.final_norm.elements() + encoder.map_or(0, |encoder| encoder.final_norm.elements())
}

/// Number of weights that a decoder holds.
fn parameters(decoder: &Decoder) -> usize {
    decoder.embedding.elements()
        + decoder.positions.as_ref().map_or(0, Table::elements)
        + decoder.head.elements()
        + final_norms(decoder)
        + layers(decoder).map(LayerWeights::elements).sum::<usize>()
}

/// Memory of the weights that a decoder holds once its linear layers are prepared, bytes.
fn bytes(decoder: &Decoder) -> u64 {
    let kind = decoder.weight_type;
    let bytes = decoder.embedding.bytes()
        + decoder.positions.as_ref().map_or(0, Table::bytes)
        + decoder.head.bytes(kind.of_embeddings())
        + size_of::<f32>() * final_norms(decoder)
        + layers(decoder).map(|layer| layer.bytes(kind)).sum::<usize>();
    bytes as u64
}

fn read_layers(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let entry = find(&checkpoint.config)?.ok_or_else(|| unknown(&checkpoint.config))?;
    let mut decoder = match entry.read {
        ReadFn::Sliced(read) => read(checkpoint, slice)?,
        ReadFn::Whole(read) if slice == Slice::WHOLE => read(checkpoint)?,
        ReadFn::Whole(_) => {
            let [architecture, _] = entry.names;
            return Err(LoadError::NotSliced {
                architecture,
                of: slice.of(),
            });
        }
    };
    if let Some(ends) = checkpoint.generation.eos_token_ids.clone() {
        decoder.model_config.eos_token_ids = ends;
    }
    Ok(decoder.stored_as(checkpoint.weights.weight_type()))
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

/// Returns the name that decides: `architectures[0]`; `model_type` only without it, because a class of the same type
/// may have another head, such as `LlamaForSequenceClassification`.
fn name(config: &Config) -> Result<Option<String>, LoadError> {
    let named = config
        .optional::<Vec<String>>("architectures")?
        .unwrap_or_default();
    match named.into_iter().next() {
        None => config.optional::<String>("model_type"),
        named => Ok(named),
    }
}

fn find(config: &Config) -> Result<Option<&'static Architecture>, LoadError> {
    let Some(name) = name(config)? else {
        return Ok(None);
    };
    let mut entries = ARCHITECTURES.iter();
    Ok(entries.find(|entry| entry.names.contains(&name.as_str())))
}

fn unknown(config: &Config) -> LoadError {
    let name = name(config).ok().flatten();
    LoadError::UnknownArchitecture {
        file: config.file().to_owned(),
        found: name.map_or_else(
            || "in neither `architectures` nor `model_type`".into(),
            |name| format!("`{name}`"),
        ),
        known: supported(),
    }
}
