//! The registry of language models: their families, by the names in `config.json`.
//!
//! A family is added with one file and one line in `FAMILIES`.

use super::head::HeadForm;
use super::weights::{Decoder, LayerWeights, LinearWeights, NormWeights};
use super::{
    bart, bloom, cohere, falcon, gemma, gpt_neo, gpt_neox, gpt2, gptj, granite, llama, mistral, mixtral, mpt,
    olmo, opt, phi, phi3, qwen, smollm3, stablelm, starcoder2, t5,
};
use crate::checkpoint::{Checkpoint, Config, LoadError, WeightTotals};
use crate::precision::Table;
use crate::runtime::slice::Slice;

/// A family of language models.
struct Family {
    /// The class that generates text.
    generator: &'static str,
    /// The sequence classifier and the base model, in this order, if they are supported.
    readers: Option<[&'static str; 2]>,
    /// `model_type` of its `config.json`.
    model_type: &'static str,
    /// Prefix of the base model's tensors.
    base: &'static str,
    /// Where its projection to logits is.
    head: HeadForm,
    read: ReadFn,
}

/// How a family is read.
enum ReadFn {
    /// As a whole only, with its head.
    Whole(fn(&mut Checkpoint) -> Result<Decoder, LoadError>),
    /// With the layers of a slice, or as a whole, without its head.
    Sliced(fn(&mut Checkpoint, Slice) -> Result<Decoder, LoadError>),
}

/// What a checkpoint of a language model answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecoderTask {
    /// Text that continues the prompt.
    Generation,
    /// Classes of a text.
    Classification,
    /// A vector of a text.
    Embedding,
}

/// A checkpoint's family and its task.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    family: &'static Family,
    /// What the checkpoint answers.
    pub(crate) task: DecoderTask,
}

impl Found {
    /// Name of the class.
    pub(crate) fn name(&self) -> &'static str {
        match (self.task, self.family.readers) {
            (DecoderTask::Classification, Some([classifier, _])) => classifier,
            (DecoderTask::Embedding, Some([_, base])) => base,
            _ => self.family.generator,
        }
    }
}

/// A family whose classes have the usual names.
macro_rules! family {
    ($prefix:literal, $model_type:literal, $base:literal, $head:expr, $read:path) => {
        family!(
            $prefix,
            concat!($prefix, "ForCausalLM"),
            $model_type,
            $base,
            $head,
            $read
        )
    };
    ($prefix:literal, $generator:expr, $model_type:literal, $base:literal, $head:expr, $read:path) => {
        Family {
            generator: $generator,
            readers: Some([
                concat!($prefix, "ForSequenceClassification"),
                concat!($prefix, "Model"),
            ]),
            model_type: $model_type,
            base: $base,
            head: $head,
            read: ReadFn::Sliced($read),
        }
    };
}

/// An encoder-decoder, which is read as a whole.
const fn encoder_decoder(
    generator: &'static str,
    model_type: &'static str,
    base: &'static str,
    read: fn(&mut Checkpoint) -> Result<Decoder, LoadError>,
) -> Family {
    Family {
        generator,
        readers: None,
        model_type,
        base,
        head: HeadForm::SEPARATE,
        read: ReadFn::Whole(read),
    }
}

const FAMILIES: &[Family] = &[
    family!(
        "GPT2",
        "GPT2LMHeadModel",
        "gpt2",
        "transformer.",
        HeadForm::TIED,
        gpt2::read
    ),
    family!("OPT", "opt", "model.", HeadForm::TIED, opt::read),
    family!("Llama", "llama", "model.", HeadForm::SEPARATE, llama::read),
    family!("Mistral", "mistral", "model.", HeadForm::SEPARATE, mistral::read),
    family!("Qwen2", "qwen2", "model.", HeadForm::SEPARATE, qwen::read_2),
    family!("Qwen3", "qwen3", "model.", HeadForm::SEPARATE, qwen::read_3),
    family!("Mixtral", "mixtral", "model.", HeadForm::SEPARATE, mixtral::read),
    family!(
        "Qwen2Moe",
        "qwen2_moe",
        "model.",
        HeadForm::SEPARATE,
        qwen::read_2_moe
    ),
    family!(
        "Qwen3Moe",
        "qwen3_moe",
        "model.",
        HeadForm::SEPARATE,
        qwen::read_3_moe
    ),
    Family {
        generator: "OlmoeForCausalLM",
        readers: None,
        model_type: "olmoe",
        base: "model.",
        head: HeadForm::SEPARATE,
        read: ReadFn::Sliced(olmo::read_moe),
    },
    family!("Phi3", "phi3", "model.", HeadForm::SEPARATE, phi3::read),
    family!("Phi", "phi", "model.", HeadForm::BIASED, phi::read),
    family!("Granite", "granite", "model.", HeadForm::SEPARATE, granite::read),
    family!("Olmo", "olmo", "model.", HeadForm::SEPARATE, olmo::read_1),
    family!("Olmo2", "olmo2", "model.", HeadForm::SEPARATE, olmo::read_2),
    family!("Olmo3", "olmo3", "model.", HeadForm::SEPARATE, olmo::read_3),
    family!(
        "StableLm",
        "stablelm",
        "model.",
        HeadForm::SEPARATE,
        stablelm::read
    ),
    family!(
        "Starcoder2",
        "starcoder2",
        "model.",
        HeadForm::TIED,
        starcoder2::read
    ),
    family!("SmolLM3", "smollm3", "model.", HeadForm::TIED, smollm3::read),
    family!("Cohere", "cohere", "model.", HeadForm::TIED, cohere::read_1),
    family!("Cohere2", "cohere2", "model.", HeadForm::TIED, cohere::read_2),
    family!("Falcon", "falcon", "transformer.", HeadForm::TIED, falcon::read),
    family!("GPTNeo", "gpt_neo", "transformer.", HeadForm::TIED, gpt_neo::read),
    family!("Bloom", "bloom", "transformer.", HeadForm::TIED, bloom::read),
    family!("Mpt", "mpt", "transformer.", HeadForm::TIED, mpt::read),
    family!("Gemma", "gemma", "model.", HeadForm::TIED, gemma::read_1),
    family!("Gemma2", "gemma2", "model.", HeadForm::TIED, gemma::read_2),
    family!(
        "Gemma3Text",
        "Gemma3ForCausalLM",
        "gemma3_text",
        "model.",
        HeadForm::TIED,
        gemma::read_3
    ),
    family!(
        "GPTNeoX",
        "gpt_neox",
        "gpt_neox.",
        HeadForm::EMBED_OUT,
        gpt_neox::read
    ),
    family!("GPTJ", "gptj", "transformer.", HeadForm::BIASED, gptj::read),
    encoder_decoder("T5ForConditionalGeneration", "t5", "", t5::read),
    encoder_decoder("MT5ForConditionalGeneration", "mt5", "", t5::read),
    Family {
        // There is no base model: it would give the decoder's states.
        readers: Some(["BartForSequenceClassification"; 2]),
        ..encoder_decoder("BartForConditionalGeneration", "bart", "model.", bart::read_bart)
    },
    encoder_decoder(
        "MBartForConditionalGeneration",
        "mbart",
        "model.",
        bart::read_mbart,
    ),
    encoder_decoder(
        "PLBartForConditionalGeneration",
        "plbart",
        "model.",
        bart::read_plbart,
    ),
    encoder_decoder(
        "PegasusForConditionalGeneration",
        "pegasus",
        "model.",
        bart::read_pegasus,
    ),
    encoder_decoder("MarianMTModel", "marian", "model.", bart::read_marian),
    encoder_decoder(
        "M2M100ForConditionalGeneration",
        "m2m_100",
        "model.",
        bart::read_m2m_100,
    ),
    encoder_decoder(
        "BlenderbotForConditionalGeneration",
        "blenderbot",
        "model.",
        bart::read_blenderbot,
    ),
];

/// The output layer of a sequence classifier.
pub(crate) const SCORE: &str = "score.weight";

/// Causal masks and other buffers that old versions of transformers saved with the weights, by name suffix.
const BUFFERS: [&str; 5] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "rotary_emb.inv_freq",
];

/// The supported classes of language models.
pub(crate) fn supported() -> Vec<&'static str> {
    let names = FAMILIES.iter().flat_map(|family| {
        let readers = family.readers.iter().flatten().copied();
        std::iter::once(family.generator).chain(readers)
    });
    names.collect()
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
    let found = generator(&checkpoint)?;
    let decoder = read_layers(&mut checkpoint, found, Slice::WHOLE)?;
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
    let found = generator(&checkpoint)?;
    let decoder = read_layers(&mut checkpoint, found, slice)?;
    let totals = totals(&decoder);
    Ok((decoder, totals))
}

/// Counts the weights that a decoder holds.
pub(crate) fn totals(decoder: &Decoder) -> WeightTotals {
    WeightTotals {
        parameters: parameters(decoder) as u64,
        bytes: bytes(decoder),
    }
}

/// All layers of a decoder, those of its encoder included.
fn layers(decoder: &Decoder) -> impl Iterator<Item = &LayerWeights> {
    let encoder = decoder.encoder.iter();
    let encoders = encoder.flat_map(|encoder| &encoder.layers);
    decoder.layers.iter().chain(encoders)
}

/// Number of weights of the norms beside the layers, which are f32.
fn outer_norms(decoder: &Decoder) -> usize {
    let encoder = decoder.encoder.as_ref();
    let inputs = encoder.and_then(|encoder| encoder.inputs.norm.as_ref());
    let inputs = decoder.embedding_norm.iter().chain(inputs);
    inputs.map(NormWeights::elements).sum::<usize>()
        + decoder.final_norm.elements()
        + encoder.map_or(0, |encoder| encoder.final_norm.elements())
}

/// The positions of a decoder and of its encoder.
fn positions(decoder: &Decoder) -> impl Iterator<Item = &Table> {
    let encoder = decoder.encoder.as_ref();
    let encoder = encoder.and_then(|encoder| encoder.inputs.positions.as_ref());
    decoder.positions.iter().chain(encoder)
}

/// Number of weights that a decoder holds.
fn parameters(decoder: &Decoder) -> usize {
    decoder.embedding.elements()
        + positions(decoder).map(Table::elements).sum::<usize>()
        + decoder.head.elements()
        + outer_norms(decoder)
        + layers(decoder).map(LayerWeights::elements).sum::<usize>()
}

/// Memory of the weights that a decoder holds once its linear layers are prepared, bytes.
fn bytes(decoder: &Decoder) -> u64 {
    let kind = decoder.weight_type;
    let bytes = decoder.embedding.bytes()
        + positions(decoder).map(Table::bytes).sum::<usize>()
        + decoder.head.bytes(kind.of_embeddings())
        + size_of::<f32>() * outer_norms(decoder)
        + layers(decoder).map(|layer| layer.bytes(kind)).sum::<usize>();
    bytes as u64
}

/// Reads the layers of a slice. The first slice keeps the embeddings; the last one of a model that generates has the head.
pub(crate) fn read_layers(
    checkpoint: &mut Checkpoint,
    found: Found,
    slice: Slice,
) -> Result<Decoder, LoadError> {
    let family = found.family;
    checkpoint.weights.expect_base(family.base);
    let mut decoder = match family.read {
        ReadFn::Sliced(read) => {
            let mut decoder = read(checkpoint, slice)?;
            if slice.is_last() && found.task == DecoderTask::Generation {
                let (config, width) = (&checkpoint.config, decoder.model_config.width);
                let vocabulary = decoder.embedding.elements() / width.max(1);
                decoder.head = family
                    .head
                    .take(config, &mut checkpoint.weights, vocabulary, width)?;
            }
            decoder
        }
        ReadFn::Whole(read) if slice == Slice::WHOLE => read(checkpoint)?,
        ReadFn::Whole(_) => {
            return Err(LoadError::NotSliced {
                architecture: found.name(),
                of: slice.of(),
            });
        }
    };
    if !slice.is_first() {
        if decoder.head.shared {
            let mut copy = LinearWeights::tied(decoder.embedding.values(), decoder.model_config.width);
            copy.bias = std::mem::take(&mut decoder.head.bias);
            decoder.head = copy;
        }
        decoder.embedding = Table::default();
        decoder.embedding_norm = None;
        decoder.positions = None;
    }
    checkpoint.weights.ignore_suffixes(&BUFFERS);
    if let Some(ends) = checkpoint.generation.eos_token_ids.clone() {
        decoder.model_config.eos_token_ids = ends;
    }
    decoder.model_config.rules = checkpoint.generation.rules.clone();
    Ok(decoder.stored_as(checkpoint.weights.weight_type()))
}

/// Returns the architecture of a checkpoint if it is a language model.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub fn architecture(config: &Config) -> Result<Option<&'static str>, LoadError> {
    Ok(of_config(config)?.map(|found| found.name()))
}

/// Finds the family and the task of a configuration by its class: `architectures[0]`. Without one, `model_type` names a
/// family, which generates.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub(crate) fn of_config(config: &Config) -> Result<Option<Found>, LoadError> {
    let Some(class) = config.class()? else {
        let found = of_type(config)?.map(|family| Found {
            family,
            task: DecoderTask::Generation,
        });
        return Ok(found);
    };
    let found = FAMILIES.iter().find_map(|family| {
        let [classifier, base] = family.readers.unwrap_or_default();
        let task = match class.as_str() {
            name if name == family.generator => DecoderTask::Generation,
            name if name == classifier => DecoderTask::Classification,
            name if name == base => DecoderTask::Embedding,
            _ => return None,
        };
        Some(Found { family, task })
    });
    Ok(found)
}

/// Finds the family and the task of a checkpoint. A directory of sentence-transformers gives embeddings unless its class is
/// a classifier; without a class the tensor of a classifier's head decides.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub(crate) fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<Found>, LoadError> {
    let config = &checkpoint.config;
    let by_class = of_config(config)?;
    let states_head = by_class.is_some_and(|found| found.task == DecoderTask::Classification);
    let is_embedding = checkpoint.sentence.is_some() && !states_head;
    let has_score = config.class()?.is_none() && checkpoint.weights.contains(SCORE);
    if !is_embedding && !has_score {
        return Ok(by_class);
    }
    let family = match by_class {
        Some(found) => Some(found.family),
        None => of_type(config)?,
    };
    let task = if is_embedding {
        DecoderTask::Embedding
    } else {
        DecoderTask::Classification
    };
    Ok(family
        .filter(|family| family.readers.is_some())
        .map(|family| Found { family, task }))
}

fn of_type(config: &Config) -> Result<Option<&'static Family>, LoadError> {
    let model_type = config.optional::<String>("model_type")?;
    Ok(model_type.and_then(|name| FAMILIES.iter().find(|family| family.model_type == name)))
}

/// Finds the family of a checkpoint that generates text.
fn generator(checkpoint: &Checkpoint) -> Result<Found, LoadError> {
    match of_checkpoint(checkpoint)? {
        Some(found) if found.task == DecoderTask::Generation => Ok(found),
        Some(found) => Err(LoadError::NotServed {
            name: checkpoint.name.clone(),
            reason: format!("`{}` does not generate text", found.name()),
        }),
        None => Err(checkpoint.config.unknown_architecture(supported())),
    }
}
