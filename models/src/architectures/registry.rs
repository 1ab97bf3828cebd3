//! The registry of architectures: finds and loads the architecture of a checkpoint.
//!
//! An architecture is added with one file and one line in `TEXT_FAMILIES` or `OTHERS`; language models are in the registry of
//! `decoder/`.

use std::path::Path;

use super::text_encoder;
use super::text_form::TextForm;
use super::text_head::TextTask;
use super::{albert, bert, cnn, deberta, distilbert, electra, grid, mlp, modernbert, mpnet, roberta, vit};
use crate::checkpoint::{Checkpoint, Config, LoadError, WeightTotals};
use crate::decoder::registry as decoders;
use crate::device::Device;
use crate::language::{self, Generation};
use crate::precision::WeightType;
use crate::runtime::loaded::{Built, Loaded, ModelInfo, Task};
use crate::runtime::slice::Slice;

/// A supported architecture.
struct Architecture {
    /// `architectures[0]` or `model_type` of its `config.json`.
    name: &'static str,
    /// Builds the model from a checkpoint.
    build: Build,
    /// Name prefixes of tensors that its checkpoints contain but the model does not use.
    unused: &'static [&'static str],
}

/// How an architecture builds a model.
#[derive(Clone, Copy)]
enum Build {
    /// As a whole only.
    Whole(fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>),
    /// A slice of its layers, or the whole.
    Sliced(fn(&mut Checkpoint, &Device, Slice) -> Result<Built, LoadError>),
    /// Likewise, from the description of a text encoder.
    Text(fn(&Config) -> Result<TextForm, LoadError>, TextTask),
}

/// A family of text encoders: the names of its classes, and its description.
struct TextFamily {
    /// The sequence classifier, the question answering model and the base model, in this order.
    classes: [&'static str; 3],
    form: fn(&Config) -> Result<TextForm, LoadError>,
    /// As [`Architecture::unused`].
    unused: &'static [&'static str],
}

impl TextFamily {
    fn architectures(&'static self) -> impl Iterator<Item = Architecture> {
        let tasks = [
            TextTask::Classification,
            TextTask::QuestionAnswering,
            TextTask::Embedding,
        ];
        self.classes
            .into_iter()
            .zip(tasks)
            .map(|(name, task)| Architecture {
                name,
                build: Build::Text(self.form, task),
                unused: if task == TextTask::Classification {
                    &[]
                } else {
                    self.unused
                },
            })
    }
}

/// The names of a family's classes from its prefix.
macro_rules! family {
    ($prefix:literal, $form:path, $unused:expr) => {
        TextFamily {
            classes: [
                concat!($prefix, "ForSequenceClassification"),
                concat!($prefix, "ForQuestionAnswering"),
                concat!($prefix, "Model"),
            ],
            form: $form,
            unused: $unused,
        }
    };
}

/// Poolers that base models have, and that old versions of transformers saved for question answering.
const TEXT_FAMILIES: &[TextFamily] = &[
    family!("Bert", bert::form, &["bert.pooler.", "pooler."]),
    family!("DistilBert", distilbert::form, &[]),
    family!("Roberta", roberta::form, &["roberta.pooler.", "pooler."]),
    family!("XLMRoberta", roberta::form, &["roberta.pooler.", "pooler."]),
    family!("Camembert", roberta::form, &["roberta.pooler.", "pooler."]),
    family!("Electra", electra::form, &[]),
    family!("Albert", albert::form, &["albert.pooler.", "pooler."]),
    family!("MPNet", mpnet::form, &["mpnet.pooler.", "pooler."]),
    family!("DebertaV2", deberta::form, &["pooler."]),
    family!("ModernBert", modernbert::form, &[]),
];

const OTHERS: [Architecture; 6] = [
    Architecture {
        name: "ViTForImageClassification",
        build: Build::Sliced(vit::image_classification),
        unused: &["vit.pooler."],
    },
    Architecture {
        name: "DeiTForImageClassification",
        build: Build::Sliced(vit::deit_classification),
        unused: &["deit.pooler."],
    },
    Architecture {
        name: "DeiTForImageClassificationWithTeacher",
        build: Build::Sliced(vit::deit_classification_with_teacher),
        unused: &["deit.pooler."],
    },
    Architecture {
        name: cnn::MODEL_TYPE,
        build: Build::Whole(cnn::build),
        unused: &[],
    },
    Architecture {
        name: grid::MODEL_TYPE,
        build: Build::Whole(grid::build),
        unused: &[],
    },
    Architecture {
        name: mlp::MODEL_TYPE,
        build: Build::Whole(mlp::build),
        unused: &[],
    },
];

/// All architectures of this registry.
fn architectures() -> impl Iterator<Item = Architecture> {
    TEXT_FAMILIES
        .iter()
        .flat_map(TextFamily::architectures)
        .chain(OTHERS)
}

/// Options for loading a checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadOptions {
    /// Name of the model; by default that of the directory.
    pub name: Option<String>,
    /// Slice of its layers.
    pub slice: Slice,
    /// Settings for language models.
    pub generation: Generation,
    /// Type of the weights of linear layers and embeddings; `None`: as stored on the CPU, f32 on other devices.
    pub dtype: Option<WeightType>,
}

/// Returns the architecture of a Hugging Face directory. Reads only its `config.json`.
///
/// # Errors
/// [`LoadError::UnknownArchitecture`] if this build does not support it; otherwise [`LoadError`], naming the file.
pub fn architecture(dir: &Path) -> Result<&'static str, LoadError> {
    let config = Config::of_directory(dir)?;
    match decoders::architecture(&config)? {
        Some(name) => Ok(name),
        None => Ok(find(&config)?.name),
    }
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
    mut checkpoint: Checkpoint,
    device: &Device,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    let name = options.name.clone().unwrap_or_else(|| checkpoint.name.clone());
    let requested = weight_type(device, options.dtype).map_err(|reason| LoadError::NotServed {
        name: name.clone(),
        reason,
    })?;
    checkpoint.weights.request(requested);
    if let Some(architecture) = decoders::architecture(&checkpoint.config)? {
        let (model, totals) = language::load(checkpoint, device, options.slice, &options.generation)?;
        let built = Built {
            model,
            task: Task::Generation,
            labels: Vec::new(),
        };
        return Ok(describe(built, name, architecture, totals));
    }
    let whole = options.slice == Slice::WHOLE;
    let entry = find(&checkpoint.config)?;
    let built = match entry.build {
        Build::Whole(build) if whole => build(&mut checkpoint, device)?,
        Build::Sliced(build) => build(&mut checkpoint, device, options.slice)?,
        Build::Text(form, task) => text_encoder::build(form, task, &mut checkpoint, device, options.slice)?,
        Build::Whole(_) => {
            return Err(LoadError::NotSliced {
                architecture: entry.name,
                of: options.slice.of(),
            });
        }
    };
    let totals = if whole {
        checkpoint.weights.finish(entry.unused)?
    } else {
        // The other slices use the remaining tensors.
        checkpoint.weights.totals()
    };
    Ok(describe(built, name, entry.name, totals))
}

/// Returns the type to request of a checkpoint: only the CPU has kernels for others than f32.
///
/// # Errors
/// The reason why a type cannot be had.
fn weight_type(device: &Device, dtype: Option<WeightType>) -> Result<Option<WeightType>, String> {
    if *device == Device::Cpu {
        return Ok(dtype);
    }
    match dtype {
        None | Some(WeightType::F32) => Ok(Some(WeightType::F32)),
        Some(dtype) => Err(format!(
            "`dtype = \"{dtype}\"` needs the CPU; this device computes with f32"
        )),
    }
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
        },
    }
}

/// All supported architectures.
pub(crate) fn supported() -> Vec<&'static str> {
    let entries = architectures().map(|entry| entry.name);
    entries.chain(decoders::supported()).collect()
}

/// Finds the architecture by `architectures[0]`, else by `model_type`.
fn find(config: &Config) -> Result<Architecture, LoadError> {
    let named = config
        .optional::<Vec<String>>("architectures")?
        .unwrap_or_default()
        .into_iter()
        .next();
    let model_type = config.optional::<String>("model_type")?;
    named
        .iter()
        .chain(&model_type)
        .find_map(|name| architectures().find(|entry| entry.name == name))
        .ok_or_else(|| LoadError::UnknownArchitecture {
            file: config.file().to_owned(),
            found: match (named, model_type) {
                (Some(name), _) => format!("`{name}`"),
                (None, Some(name)) => format!("`{name}` (by model_type)"),
                (None, None) => "in neither `architectures` nor `model_type`".into(),
            },
            known: supported(),
        })
}
