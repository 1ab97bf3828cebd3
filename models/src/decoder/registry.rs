//! Registry of language models: finds the family of a checkpoint by the names in `config.json`, and reads the model.

use kaskade_policy::plan::Partition;

use super::config_values::first_size;
use super::families::{FAMILIES, Family, ReadFn};
use super::families::{gemma, gemma4, mllama, nemotron_h};
use super::multimodal::{self, Multimodal};
use super::weights::{
    Decoder, HeadLayer, LayerWeights, LinearWeights, NormWeights, PerLayerEmbeddings, StreamProjections,
};
use crate::checkpoint::text_files::CONTEXT;
use crate::checkpoint::{Checkpoint, Config, LoadError, WeightTotals};
use crate::precision::Table;
use crate::runtime::partitioning::Partitioning;

/// Task of a language model checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecoderTask {
    /// Text generation.
    Generation,
    /// Sequence classification.
    Classification,
    /// Token classification.
    TokenClassification,
    /// Text embedding.
    Embedding,
}

/// Class of a decoder: family and task.
#[derive(Clone, Copy)]
pub(crate) struct DecoderClass {
    family: &'static Family,
    /// The enclosing multimodal class, if there is one.
    multimodal: Option<&'static Multimodal>,
    /// Task of the checkpoint.
    pub(crate) task: DecoderTask,
}

impl DecoderClass {
    /// Returns the name of the class.
    pub(crate) fn name(&self) -> &'static str {
        if let Some(multimodal) = self.multimodal {
            return multimodal.class;
        }
        let name = match self.task {
            DecoderTask::Classification => self.family.classifier,
            DecoderTask::TokenClassification => self.family.token_classifier.map(|(name, _)| name),
            DecoderTask::Embedding => self.family.base_model,
            DecoderTask::Generation => None,
        };
        name.or(self.family.generator).unwrap_or(self.family.model_type)
    }

    /// Returns the name of a token classifier's output layer.
    pub(crate) fn token_layer(&self) -> &'static str {
        self.family.token_classifier.map_or("score", |(_, layer)| layer)
    }
}

/// Class name suffixes of other kinds of models, with a description of each.
const OTHER_KINDS: [(&str, &str); 4] = [
    ("ForSequenceClassification", "a classifier"),
    ("ForImageClassification", "a classifier"),
    ("ForTokenClassification", "a token classifier"),
    ("ForQuestionAnswering", "a model of questions about a text"),
];

/// Weight of a sequence classifier's output layer.
pub(crate) const SCORE: &str = "score.weight";

/// Name suffixes of causal masks and other buffers that old versions of transformers saved with the weights.
const BUFFERS: [&str; 5] = [
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "rotary_emb.inv_freq",
];

/// Returns the names of the supported language model classes.
pub(crate) fn supported() -> Vec<&'static str> {
    let names = FAMILIES.iter().flat_map(|family| {
        let tokens = family.token_classifier.map(|(name, _)| name);
        let names = [family.generator, family.classifier, tokens, family.base_model];
        names.into_iter().flatten()
    });
    let multimodal = multimodal::CLASSES.iter().map(|multimodal| multimodal.class);
    names.chain(multimodal).collect()
}

/// Reads a language model from a checkpoint. Every tensor of the checkpoint must be used.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn read_decoder(checkpoint: Checkpoint) -> Result<Decoder, LoadError> {
    Ok(read_with_totals(checkpoint)?.0)
}

/// Reads a language model like [`read_decoder`]; also returns its weight totals.
///
/// # Errors
/// Same as [`read_decoder`].
pub(crate) fn read_with_totals(mut checkpoint: Checkpoint) -> Result<(Decoder, WeightTotals), LoadError> {
    let class = generator(&checkpoint)?;
    let decoder = read_layers(&mut checkpoint, class, Partition::WHOLE)?;
    let totals = checkpoint.weights.finish(&[])?;
    // A tied head is a copy.
    let bytes = bytes(&decoder);
    Ok((decoder, WeightTotals { bytes, ..totals }))
}

/// Reads only the layers of a partition; embeddings belong to the first partition, norm and head to the last.
///
/// # Errors
/// The errors of [`read_decoder`]; [`LoadError::NotPartitioned`] and [`LoadError::TooManyPartitions`].
pub(crate) fn read_partition(
    mut checkpoint: Checkpoint,
    partition: Partition,
) -> Result<(Decoder, WeightTotals), LoadError> {
    let class = generator(&checkpoint)?;
    let decoder = read_layers(&mut checkpoint, class, partition)?;
    let totals = totals(&decoder);
    Ok((decoder, totals))
}

/// Keys of the number of layers, then of the width; names differ between families.
const LAYERS: [&str; 4] = ["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const WIDTH: [&str; 4] = ["hidden_size", "n_embd", "d_model", "n_embed"];

/// Returns how a language model can be split; `None` if it can only be loaded as a whole.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(crate) fn partitioning(config: &Config, class: DecoderClass) -> Result<Option<Partitioning>, LoadError> {
    if matches!(class.family.read, ReadFn::Whole(_)) {
        return Ok(None);
    }
    let text = class.multimodal.map(|multimodal| multimodal.text_of(config));
    let config = &text.unwrap_or_else(|| Ok(config.clone()))?;
    let layers = match class.family.model_type {
        "gemma3n_text" => return Ok(None),
        "gemma4_text" if !gemma4::splits(config)? => return Ok(None),
        "nemotron_h" => nemotron_h::layer_count(config)?,
        "mllama_text_model" => mllama::layer_count(config)?,
        _ => first_size(config, &LAYERS)?.map_or_else(|| config.size(LAYERS[0]), Ok)?,
    };
    Ok(Some(Partitioning {
        layers,
        width: first_size(config, &WIDTH)?.map_or_else(|| config.size(WIDTH[0]), Ok)?,
        tokens: first_size(config, &CONTEXT)?,
    }))
}

/// Counts the weights in a decoder.
pub(crate) fn totals(decoder: &Decoder) -> WeightTotals {
    WeightTotals {
        parameters: parameters(decoder) as u64,
        bytes: bytes(decoder),
    }
}

/// Returns all layers of a decoder, including its encoder.
fn layers(decoder: &Decoder) -> impl Iterator<Item = &LayerWeights> {
    let encoder = decoder.encoder.iter();
    let encoders = encoder.flat_map(|encoder| &encoder.layers);
    decoder.layers.iter().chain(encoders)
}

/// Returns the number of weights of the norms outside layers, which are f32.
fn outer_norms(decoder: &Decoder) -> usize {
    let encoder = decoder.encoder.as_ref();
    let inputs = encoder.and_then(|encoder| encoder.inputs.norm.as_ref());
    let inputs = decoder.embedding_norm.iter().chain(inputs);
    inputs.map(NormWeights::elements).sum::<usize>()
        + decoder.final_norm.elements()
        + encoder.map_or(0, |encoder| encoder.final_norm.elements())
}

/// Returns the position tables of a decoder and its encoder, and the encoder's embedding.
fn tables(decoder: &Decoder) -> impl Iterator<Item = &Table> {
    let encoder = decoder.encoder.iter().map(|encoder| &encoder.inputs);
    let encoder = encoder.flat_map(|inputs| inputs.positions.iter().chain(&inputs.embedding));
    decoder.positions.iter().chain(encoder)
}

/// Returns the number of weights in a decoder.
fn parameters(decoder: &Decoder) -> usize {
    decoder.embedding.elements()
        + tables(decoder).map(Table::elements).sum::<usize>()
        + decoder.head.elements()
        + decoder.head_layer.as_ref().map_or(0, HeadLayer::elements)
        + outer_norms(decoder)
        + decoder
            .per_layer_embeddings
            .as_ref()
            .map_or(0, PerLayerEmbeddings::elements)
        + decoder.streams.as_ref().map_or(0, StreamProjections::elements)
        + layers(decoder).map(LayerWeights::elements).sum::<usize>()
}

/// Returns the memory of a decoder's weights after its linear layers are packed, bytes.
fn bytes(decoder: &Decoder) -> u64 {
    let kind = decoder.weight_type;
    let bytes = decoder.embedding.bytes()
        + tables(decoder).map(Table::bytes).sum::<usize>()
        + decoder.head.bytes(kind.of_embeddings())
        + decoder.head_layer.as_ref().map_or(0, |layer| layer.bytes(kind))
        + size_of::<f32>() * outer_norms(decoder)
        + decoder
            .per_layer_embeddings
            .as_ref()
            .map_or(0, |layers| layers.bytes(kind))
        + decoder.streams.as_ref().map_or(0, |streams| streams.bytes(kind))
        + layers(decoder).map(|layer| layer.bytes(kind)).sum::<usize>();
    bytes as u64
}

/// Reads the layers of a partition. The first partition has the embeddings; the last partition of a generative model
/// has the head.
pub(crate) fn read_layers(
    checkpoint: &mut Checkpoint,
    class: DecoderClass,
    partition: Partition,
) -> Result<Decoder, LoadError> {
    let family = class.family;
    checkpoint.weights.expect_base(family.base);
    if let Some(multimodal) = class.multimodal {
        multimodal.keep_text(checkpoint, family)?;
    }
    let mut decoder = match family.read {
        ReadFn::Partitioned(read) => {
            let mut decoder = read(checkpoint, partition)?;
            let projects = decoder.head.outputs > 0;
            if projects && class.task != DecoderTask::Generation {
                let reason =
                    "classifiers and embeddings of models with projected embeddings are not supported";
                return Err(checkpoint.config.invalid_value("word_embed_proj_dim", reason));
            }
            if partition.is_last() && class.task == DecoderTask::Generation && !projects {
                let (config, width) = (&checkpoint.config, decoder.model_config.width);
                let embedding = decoder.embedding.values();
                decoder.head = family
                    .head
                    .take(config, &mut checkpoint.weights, embedding, width)?;
                decoder.head_layer = family.head.take_layer(config, &mut checkpoint.weights, width)?;
            }
            decoder
        }
        ReadFn::Whole(read) if partition == Partition::WHOLE => read(checkpoint)?,
        ReadFn::Whole(_) => {
            return Err(LoadError::NotPartitioned {
                architecture: class.name(),
                of: partition.of,
            });
        }
    };
    if !partition.is_first() {
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
    enable_bidirectional_attention(&mut decoder, &checkpoint.config, class)?;
    if let Some(ends) = checkpoint.generation.eos_token_ids.clone() {
        decoder.model_config.eos_token_ids = ends;
    }
    decoder.model_config.rules = checkpoint.generation.rules.clone();
    Ok(decoder.stored_as(checkpoint.weights.weight_type()))
}

/// Enables bidirectional attention if `is_causal` is false, as in transformers: within the window, where there is one.
///
/// # Errors
/// [`LoadError::BadKey`] if the model generates, or if it has an encoder, recurrent mixers, chunks or ALiBi.
fn enable_bidirectional_attention(
    decoder: &mut Decoder,
    config: &Config,
    class: DecoderClass,
) -> Result<(), LoadError> {
    let key = "is_causal";
    if config.optional::<bool>(key)?.unwrap_or(true) {
        return Ok(());
    }
    if class.task == DecoderTask::Generation {
        let reason = "a language model generates with a causal mask only; with this setting, classifiers and embeddings are supported";
        return Err(config.invalid_value(key, reason));
    }
    let model_config = &mut decoder.model_config;
    let is_directed = model_config.relative_bias.is_some() || model_config.chunk.is_some();
    let is_mixed = decoder.layers.iter().any(|layer| layer.recurrent.is_some());
    if is_directed || is_mixed || decoder.encoder.is_some() {
        let reason = "only models with attention alone, without chunks, ALiBi and an encoder, are supported without a causal mask";
        return Err(config.invalid_value(key, reason));
    }
    model_config.bidirectional = true;
    Ok(())
}

/// Returns the architecture of a checkpoint if it is a language model.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub fn architecture(config: &Config) -> Result<Option<&'static str>, LoadError> {
    Ok(of_config(config)?.map(|class| class.name()))
}

/// Finds family and task of a configuration by its class: `architectures[0]`. Without a class, `model_type` determines
/// a family that generates.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key; [`LoadError::MissingKey`] and [`LoadError::BadKey`] if a multimodal
/// model has no language model of a supported family.
pub(crate) fn of_config(config: &Config) -> Result<Option<DecoderClass>, LoadError> {
    let Some(class) = config.class()? else {
        return of_type(config);
    };
    if let Some(multimodal) = multimodal::of_class(&class) {
        return inside(multimodal, config).map(Some);
    }
    if class == "Gemma3TextModel" && gemma::is_encoder(config)? {
        return Ok(None);
    }
    let found = FAMILIES.iter().find_map(|family| {
        let names = [
            (family.generator, DecoderTask::Generation),
            (family.classifier, DecoderTask::Classification),
            (
                family.token_classifier.map(|(name, _)| name),
                DecoderTask::TokenClassification,
            ),
            (family.base_model, DecoderTask::Embedding),
        ];
        let (_, task) = names
            .into_iter()
            .find(|(name, _)| *name == Some(class.as_str()))?;
        Some(DecoderClass {
            family,
            multimodal: None,
            task,
        })
    });
    Ok(found)
}

/// Finds family and task of a checkpoint. A sentence-transformers directory means embeddings unless its class is a
/// classifier and its modules do not pool tokens; without a class, the presence of a classification head decides.
///
/// # Errors
/// [`LoadError::BadKey`] for a malformed key.
pub(crate) fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Option<DecoderClass>, LoadError> {
    let config = &checkpoint.config;
    let by_class = of_config(config)?;
    let heads = [DecoderTask::Classification, DecoderTask::TokenClassification];
    let states_head = by_class.is_some_and(|class| heads.contains(&class.task));
    let is_embedding = checkpoint.sentence.is_some() && (!states_head || checkpoint.pools_tokens());
    let has_score = config.class()?.is_none() && checkpoint.weights.contains(SCORE);
    if !is_embedding && !has_score {
        return Ok(by_class);
    }
    let found = match by_class {
        Some(class) => Some(class),
        None => of_type(config)?,
    };
    let task = if is_embedding {
        DecoderTask::Embedding
    } else {
        DecoderTask::Classification
    };
    let has_class = |class: &DecoderClass| match task {
        DecoderTask::Embedding => class.family.base_model.is_some(),
        _ => class.family.classifier.is_some(),
    };
    Ok(found
        .filter(has_class)
        .map(|class| DecoderClass { task, ..class }))
}

/// Finds the family of `model_type`, for generation.
fn of_type(config: &Config) -> Result<Option<DecoderClass>, LoadError> {
    let Some(model_type) = config.optional::<String>("model_type")? else {
        return Ok(None);
    };
    if let Some(multimodal) = multimodal::of_type(&model_type) {
        return inside(multimodal, config).map(Some);
    }
    if model_type == "gemma3_text" && gemma::is_encoder(config)? {
        return Ok(None);
    }
    let family = FAMILIES.iter().find(|family| family.model_type == model_type);
    Ok(family.map(|family| DecoderClass {
        family,
        multimodal: None,
        task: match family.generator {
            Some(_) => DecoderTask::Generation,
            None => DecoderTask::TokenClassification,
        },
    }))
}

/// Finds the family of a multimodal class's language model.
fn inside(multimodal: &'static Multimodal, config: &Config) -> Result<DecoderClass, LoadError> {
    Ok(DecoderClass {
        family: multimodal.family(config)?,
        multimodal: Some(multimodal),
        task: DecoderTask::Generation,
    })
}

/// Finds the family of a checkpoint, for generation.
fn generator(checkpoint: &Checkpoint) -> Result<DecoderClass, LoadError> {
    let (class, kind) = if let Some(class) = of_checkpoint(checkpoint)? {
        let kind = match class.task {
            DecoderTask::Generation => return Ok(class),
            DecoderTask::Classification => "a classifier",
            DecoderTask::TokenClassification => "a token classifier",
            DecoderTask::Embedding => "a model of embeddings",
        };
        (class.name().to_owned(), kind)
    } else {
        let class = checkpoint.config.class()?.unwrap_or_default();
        let other = OTHER_KINDS.iter().find(|(ending, _)| class.ends_with(*ending));
        let Some((_, kind)) = other else {
            return Err(checkpoint.config.unknown_architecture(supported()));
        };
        (class, *kind)
    };
    Err(LoadError::NoLanguageModel {
        file: checkpoint.config.file().to_owned(),
        found: class,
        kind,
    })
}
