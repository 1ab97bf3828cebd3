//! Registry of architectures: finds and loads the architecture of a checkpoint.
//!
//! To add a family, add a file in `text_families` or `vision` and a line in its list. Language models are in the
//! registry of `decoder/`.

use std::path::Path;

use kaskade_policy::plan::Partition;

use super::architecture::{Architecture, Build};
use super::image_families::IMAGES;
use super::static_embedding::STATIC;
use super::text_encoder::head::{HeadKind, TextTask};
use super::{dual, text_decoder, text_encoder, text_families, vit};
use crate::checkpoint::{
    Checkpoint, Config, GenerationConfig, LoadError, SentenceModules, TokenRules, WeightTotals, quantised,
    static_embedding,
};
use crate::decoder::registry::{self as decoders, DecoderClass, DecoderTask};
use crate::device::Device;
use crate::language::{self, Generation};
use crate::precision::WeightType;
use crate::runtime::loaded::{Built, Loaded, ModelInfo, Task};
use crate::runtime::partitioning::Partitioning;
use crate::tasks::embedding::{Pooling, Similarity};
use crate::tasks::entities::AggregationStrategy;

/// Tensor name prefixes of heads that are not supported, or that a sentence-transformers directory does not use.
const OTHER_HEADS: [&str; 16] = [
    "classifier.",
    "cls.",
    "decoder.",
    "discriminator_predictions.",
    "generator_lm_head.",
    "generator_predictions.",
    "head.",
    "lm_head.",
    "lm_loss.",
    "lm_predictions.",
    "logits_proj.",
    "predictions.",
    "qa_classifier.",
    "qa_outputs.",
    "sequence_summary.",
    "vocab_",
];

/// Returns all architectures of this registry.
fn architectures() -> impl Iterator<Item = Architecture> {
    let texts = text_families::classes().map(|class| Architecture {
        name: class.name,
        model_type: class.model_type,
        head: class.head,
        build: Build::Text(class.read, class.task),
        unused: class.unused,
    });
    texts.chain(STATIC).chain(IMAGES)
}

/// Options for loading a checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadOptions {
    /// Name of the model; by default the name of the directory.
    pub name: Option<String>,
    /// Partition of the layers to load.
    pub partition: Partition,
    /// Settings for language models.
    pub generation: Generation,
    /// Type of the weights of linear layers and embeddings; `None`: as stored, but bf16 for quantised weights on a
    /// GPU.
    pub dtype: Option<WeightType>,
    /// Default aggregation strategy of a token classifier.
    pub aggregation_strategy: AggregationStrategy,
}

/// Returns the architecture of a Hugging Face directory. Reads `config.json`, and the header of the weights only if it
/// names no class.
///
/// # Errors
/// [`LoadError::UnknownArchitecture`] for an unsupported architecture; [`LoadError::BadKey`] for an unsupported
/// quantisation scheme; otherwise [`LoadError`], naming the file.
pub fn architecture(dir: &Path) -> Result<&'static str, LoadError> {
    Ok(match of_directory(dir)?.1 {
        Entry::Decoder(class) => class.name(),
        Entry::Other(entry) => entry.name,
    })
}

/// Returns how a checkpoint, in a Hugging Face directory or a GGUF file, can be split into partitions; `None` if it
/// can only be loaded as a whole. Reads the same files as [`architecture`].
///
/// # Errors
/// The errors of [`architecture`], and [`LoadError`] for a size that is missing or invalid.
pub fn partitioning(dir: &Path) -> Result<Option<Partitioning>, LoadError> {
    let (config, entry) = of_directory(dir)?;
    match entry {
        Entry::Decoder(class) => {
            let generates = class.task == DecoderTask::Generation;
            if generates && GenerationConfig::open(dir, &config)?.rules != TokenRules::default() {
                return Ok(None);
            }
            decoders::partitioning(&config, class)
        }
        Entry::Other(entry) => match entry.build {
            Build::Text(read, _) => read(&config).map(|text| Some(text.partitioning())),
            Build::Image(vit) => vit.partitioning(&config).map(Some),
            Build::Whole(_) | Build::Dual(_) => Ok(None),
        },
    }
}

/// Task and inputs of a checkpoint, determined without its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointKind {
    /// Meaning of its outputs.
    pub task: Task,
    /// Whether the model reads texts, which requires a tokenizer.
    pub reads_texts: bool,
}

/// Returns the kind of an opened checkpoint. Reads no weights, except for an image classifier, which is loaded on the
/// CPU.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn kind_of(checkpoint: Checkpoint) -> Result<CheckpointKind, LoadError> {
    let texts = |task| CheckpointKind {
        task,
        reads_texts: true,
    };
    if let Some(class) = decoders::of_checkpoint(&checkpoint)? {
        let text_task = match class.task {
            DecoderTask::Generation => return Ok(texts(Task::Generation)),
            DecoderTask::Classification => TextTask::Classification,
            DecoderTask::TokenClassification => TextTask::TokenClassification,
            DecoderTask::Embedding => TextTask::Embedding(Pooling::Mean),
        };
        return task_of_text(text_task, checkpoint).map(texts);
    }
    match of_checkpoint(&checkpoint)?.build {
        Build::Text(_, task) => task_of_text(task, checkpoint).map(texts),
        Build::Dual(_) => Ok(texts(Task::Embedding)),
        Build::Whole(_) if static_embedding::is_static(&checkpoint.config)? => Ok(texts(Task::Embedding)),
        Build::Whole(_) | Build::Image(_) => {
            let loaded = load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())?;
            Ok(CheckpointKind {
                task: loaded.info.task,
                reads_texts: false,
            })
        }
    }
}

/// Returns the task of a text model.
fn task_of_text(task: TextTask, checkpoint: Checkpoint) -> Result<Task, LoadError> {
    let strategy = AggregationStrategy::default();
    let head = HeadKind::read(task, &checkpoint.config, checkpoint.sentence, strategy)?;
    Ok(head.described().0)
}

/// Returns whether a checkpoint, in a Hugging Face directory or a GGUF file, reads texts, which requires a tokenizer.
/// Reads the same files as [`architecture`].
///
/// # Errors
/// Same as [`architecture`].
pub fn reads_texts(dir: &Path) -> Result<bool, LoadError> {
    let (config, entry) = of_directory(dir)?;
    match entry {
        Entry::Decoder(_) => Ok(true),
        Entry::Other(entry) => match entry.build {
            Build::Text(..) | Build::Dual(_) => Ok(true),
            Build::Image(_) => Ok(false),
            Build::Whole(_) => static_embedding::is_static(&config),
        },
    }
}

/// Registry entry of a checkpoint: a language model, or an architecture of this registry.
enum Entry {
    Decoder(DecoderClass),
    Other(Box<Architecture>),
}

/// Finds the entry of a directory, and returns it with the configuration.
fn of_directory(dir: &Path) -> Result<(Config, Entry), LoadError> {
    let config = Config::of_directory(dir)?;
    if config.class()?.is_none() || SentenceModules::open(dir)?.is_some() {
        let checkpoint = Checkpoint::open(dir)?;
        let entry = match decoders::of_checkpoint(&checkpoint)? {
            Some(class) => Entry::Decoder(class),
            None => Entry::Other(Box::new(of_checkpoint(&checkpoint)?)),
        };
        return Ok((checkpoint.config, entry));
    }
    quantised::check(&config)?;
    let entry = match decoders::of_config(&config)? {
        Some(class) => Entry::Decoder(class),
        None => Entry::Other(Box::new(of_class(&config)?.ok_or_else(|| unknown(&config))?)),
    };
    Ok((config, entry))
}

/// Loads a Hugging Face directory onto a device.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn load(dir: &Path, device: &Device, options: &LoadOptions) -> Result<Loaded, LoadError> {
    load_checkpoint(Checkpoint::open(dir)?, device, options)
}

/// Loads an opened checkpoint onto a device.
///
/// # Errors
/// [`LoadError`], naming the file and within it the key or tensor.
pub fn load_checkpoint(
    checkpoint: Checkpoint,
    device: &Device,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    let prompts = checkpoint.prompts();
    let similarity = checkpoint.sentence.as_ref().map(|modules| modules.similarity);
    let mut loaded = build(checkpoint, device, options)?;
    if loaded.info.task == Task::Embedding {
        loaded.info.prompts = prompts;
        loaded.info.similarity = similarity.unwrap_or_default();
    }
    Ok(loaded)
}

fn build(mut checkpoint: Checkpoint, device: &Device, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let name = options.name.clone().unwrap_or_else(|| checkpoint.name.clone());
    if *device == Device::Cpu {
        checkpoint.weights.request(options.dtype);
    } else {
        let requested = checkpoint.weights.request_unquantised(options.dtype);
        requested.map_err(|dtype| LoadError::NotServed {
            name: name.clone(),
            reason: format!("`dtype = \"{dtype}\"` needs the CPU; this device has f32, bf16 and f16"),
        })?;
    }
    if let Some(class) = decoders::of_checkpoint(&checkpoint)? {
        let architecture = class.name();
        if class.task != DecoderTask::Generation {
            let (partition, strategy) = (options.partition, options.aggregation_strategy);
            let (built, totals) = text_decoder::build(checkpoint, class, device, partition, strategy)?;
            return Ok(describe(built, name, architecture, totals));
        }
        let (model, totals) = language::load(checkpoint, device, options.partition, &options.generation)?;
        let built = Built {
            model,
            task: Task::Generation,
            labels: Vec::new(),
        };
        return Ok(describe(built, name, architecture, totals));
    }
    let whole = options.partition == Partition::WHOLE;
    let entry = of_checkpoint(&checkpoint)?;
    let is_sentence = checkpoint.sentence.is_some();
    let built = match entry.build {
        Build::Whole(build) if whole => build(&mut checkpoint, device)?,
        Build::Dual(config) if whole => dual::build(&mut checkpoint, device, config)?,
        Build::Image(config) => vit::build(&mut checkpoint, device, options.partition, config)?,
        Build::Text(read, task) => {
            let (partition, strategy) = (options.partition, options.aggregation_strategy);
            text_encoder::build(read, task, &mut checkpoint, device, partition, strategy)?
        }
        Build::Whole(_) | Build::Dual(_) => {
            return Err(LoadError::NotPartitioned {
                architecture: entry.name,
                of: options.partition.of,
            });
        }
    };
    let totals = if whole {
        let others: &[&str] = if is_sentence { &OTHER_HEADS } else { &[] };
        checkpoint.weights.finish(&[entry.unused, others].concat())?
    } else {
        // The other partitions use the remaining tensors.
        checkpoint.weights.totals()
    };
    Ok(describe(built, name, entry.name, totals))
}

fn describe(built: Built, name: String, architecture: &str, totals: WeightTotals) -> Loaded {
    Loaded {
        model: built.model,
        info: ModelInfo {
            name,
            architecture: architecture.to_owned(),
            parameters: totals.parameters,
            weight_bytes: totals.bytes,
            task: built.task,
            labels: built.labels,
            prompts: Vec::new(),
            similarity: Similarity::default(),
        },
    }
}

/// Returns the names of all supported architectures.
pub(crate) fn supported() -> Vec<&'static str> {
    let mut names: Vec<&str> = architectures().map(|entry| entry.name).collect();
    for name in decoders::supported() {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Finds an architecture by its class, `architectures[0]`; Kaskade's own networks may have only a `model_type`.
fn of_class(config: &Config) -> Result<Option<Architecture>, LoadError> {
    let class = config.class()?;
    let model_type = config.optional::<String>("model_type")?;
    let mut known = class.iter().chain(&model_type);
    Ok(known.find_map(|name| architectures().find(|entry| entry.name == name)))
}

/// Returns the base model of a text encoder with a head; any other entry unchanged.
fn without_head(entry: Architecture) -> Architecture {
    if !matches!(entry.build, Build::Text(_, task) if !matches!(task, TextTask::Embedding(_))) {
        return entry;
    }
    // Families may share a `model_type`, but not the first part of their class names.
    let family = entry.name.rsplit_once("For").map(|(family, _)| family);
    let is_base = |other: &Architecture| other.head.is_none() && other.model_type == entry.model_type;
    let own = architectures().filter(is_base);
    let own = own.filter(|other| other.name.strip_suffix("Model") == family);
    let base = own.chain(architectures().filter(is_base)).next();
    base.unwrap_or(entry)
}

/// Finds the architecture of a checkpoint by its class. In a sentence-transformers directory, whose class may be any
/// of its family, returns the base model, unless the modules use the head of the class. Without a class, uses
/// `model_type` and the tensors of the head.
fn of_checkpoint(checkpoint: &Checkpoint) -> Result<Architecture, LoadError> {
    let (config, weights) = (&checkpoint.config, &checkpoint.weights);
    if let Some(entry) = of_class(config)? {
        return Ok(if checkpoint.pools_tokens() {
            without_head(entry)
        } else {
            entry
        });
    }
    let model_type = config.optional::<String>("model_type")?.unwrap_or_default();
    let mut family = architectures().filter(|entry| entry.model_type == model_type);
    let found = if checkpoint.sentence.is_some() {
        family.find(|entry| entry.head.is_none())
    } else if config.class()?.is_none() {
        let is_base = !OTHER_HEADS.iter().any(|head| weights.contains_prefix(head));
        family.find(|entry| match entry.head {
            Some(head) => weights.contains_prefix(head),
            None => is_base,
        })
    } else {
        None
    };
    found.ok_or_else(|| unknown(config))
}

fn unknown(config: &Config) -> LoadError {
    config.unknown_architecture(supported())
}
