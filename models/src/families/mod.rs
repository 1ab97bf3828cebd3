//! The families of models that burn runs, and the registry that finds a checkpoint's.
//!
//! A family is added with one file and one line in `FAMILIES`.

pub mod bert;
pub mod cnn;
pub mod encoder;
pub mod grid;
pub(crate) mod host;
mod image;
pub mod layers;
pub mod mlp;
pub(crate) mod states;
pub mod text;
pub mod vit;

use std::path::Path;

use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, LoadError};
use crate::engine;
use crate::language::{self, Generation};
use crate::model::{Inputs, Model, ModelError, Outputs};
use crate::slice::Slice;
use crate::tensor;

/// One architecture that can be served.
struct Family {
    /// `architectures[0]` or `model_type` of its `config.json`.
    architecture: &'static str,
    /// Takes its weights out of a checkpoint.
    build: Build,
    /// Beginnings of the names of tensors that its checkpoints carry and that it never computes with.
    unused: &'static [&'static str],
}

/// How a family builds a model.
enum Build {
    /// As a whole only.
    Whole(fn(&mut Checkpoint, &Device) -> Result<Built, LoadError>),
    /// A slice of its layers, or the whole.
    Sliced(fn(&mut Checkpoint, &Device, Slice) -> Result<Built, LoadError>),
}

const FAMILIES: &[Family] = &[
    Family {
        architecture: "BertForSequenceClassification",
        build: Build::Sliced(bert::sequence_classification),
        unused: &[],
    },
    Family {
        architecture: "BertForQuestionAnswering",
        build: Build::Sliced(bert::question_answering),
        // Saved by old versions of transformers; the answer is read from the tokens and not from the pooled state.
        unused: &["bert.pooler."],
    },
    Family {
        architecture: "ViTForImageClassification",
        build: Build::Sliced(vit::image_classification),
        unused: &["vit.pooler."],
    },
    Family {
        architecture: cnn::MODEL_TYPE,
        build: Build::Whole(cnn::build),
        unused: &[],
    },
    Family {
        architecture: grid::MODEL_TYPE,
        build: Build::Whole(grid::build),
        unused: &[],
    },
    Family {
        architecture: mlp::MODEL_TYPE,
        build: Build::Whole(mlp::build),
        unused: &[],
    },
];

/// A model as its family builds it; the registry adds what it knows of every checkpoint.
pub struct Built {
    /// The model.
    pub model: Box<dyn Model>,
    /// What its outputs mean.
    pub task: Task,
    /// Class names in the order of the logits; empty where the task has no classes.
    pub labels: Vec<String>,
}

/// How to load a checkpoint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LoadOptions {
    /// What to call the model; the directory's name if absent.
    pub name: Option<String>,
    /// Which part of its layers.
    pub slice: Slice,
    /// How it is served if it is a language model.
    pub generation: Generation,
}

/// A model and what is known of it.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// What is known of it.
    pub info: ModelInfo,
}

/// What is known of a model once it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name.
    pub name: String,
    /// Its architecture, as its `config.json` calls it.
    pub architecture: String,
    /// Number of weights.
    pub parameters: u64,
    /// What the weights take in the device's memory, bytes.
    pub weight_bytes: u64,
    /// What its outputs mean.
    pub task: Task,
    /// Class names in the order of the logits; empty where the task has no classes.
    pub labels: Vec<String>,
}

/// What a model's outputs mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// One class per request: `logits` FP32 `[labels]`.
    Classification,
    /// A span of the context: `start_logits` and `end_logits` FP32 `[sequence]`.
    QuestionAnswering,
    /// What is where in an image: `boxes` FP32 `[found, 4]`, and one input per object for whoever looks closer.
    Detection,
    /// A text that goes on from the request's: `text` BYTES `[1]`, and how sure the model is of it ([`crate::language`]).
    Generation,
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
    let whole = options.slice == Slice::WHOLE;
    if let Some(architecture) = engine::families::architecture(&checkpoint.config)? {
        return language::load(checkpoint, device, options, architecture);
    }
    let family = find(&checkpoint)?;
    let built = match family.build {
        Build::Whole(build) if whole => build(&mut checkpoint, device)?,
        Build::Sliced(build) => build(&mut checkpoint, device, options.slice)?,
        Build::Whole(_) => {
            return Err(LoadError::NotSliced {
                architecture: family.architecture,
                of: options.slice.of(),
            });
        }
    };
    let tally = if whole {
        checkpoint.weights.finish(family.unused)?
    } else {
        // The rest belongs to other slices.
        checkpoint.weights.taken()
    };
    Ok(Loaded {
        model: built.model,
        info: ModelInfo {
            name: options.name.clone().unwrap_or(checkpoint.name),
            architecture: family.architecture.to_owned(),
            parameters: tally.parameters,
            weight_bytes: tally.bytes,
            task: built.task,
            labels: built.labels,
        },
    })
}

/// The architectures that can be served.
pub fn known() -> Vec<&'static str> {
    let families = FAMILIES.iter().map(|family| family.architecture);
    families.chain(engine::families::known()).collect()
}

/// The family that `architectures[0]` names, else the one that `model_type` names.
fn find(checkpoint: &Checkpoint) -> Result<&'static Family, LoadError> {
    let config = &checkpoint.config;
    let named = config
        .optional::<Vec<String>>("architectures")?
        .unwrap_or_default()
        .into_iter()
        .next();
    let model_type = config.optional::<String>("model_type")?;
    named
        .iter()
        .chain(&model_type)
        .find_map(|name| FAMILIES.iter().find(|family| family.architecture == name))
        .ok_or_else(|| LoadError::UnknownArchitecture {
            file: config.file().to_owned(),
            found: match (named, model_type) {
                (Some(name), _) => format!("`{name}`"),
                (None, Some(name)) => format!("`{name}` (by model_type)"),
                (None, None) => "in neither `architectures` nor `model_type`".into(),
            },
            known: known(),
        })
}

/// One result per request, in the order of the batch.
pub(crate) type Answers = Vec<Result<Outputs, ModelError>>;

/// Answers a batch: requests that `read` refuses fail alone, the others are answered together by `forward`, which
/// gives as many results as it is given requests.
pub(crate) fn answer_batch<T>(
    batch: &[Inputs],
    read: impl Fn(&Inputs) -> Result<T, ModelError>,
    forward: impl FnOnce(&[T]) -> Result<Answers, ModelError>,
) -> Answers {
    answer_read(batch, read, |requests| one_each(&requests, forward))
}

/// The same on all cores of the CPU, as [`host::in_parts`] shares a batch out by the `size` of its requests.
pub(crate) fn answer_batch_in_parts<T: Send + Sync>(
    device: &Device,
    batch: &[Inputs],
    read: impl Fn(&Inputs) -> Result<T, ModelError>,
    size: impl Fn(&T) -> usize,
    forward: impl Fn(&[T]) -> Result<Answers, ModelError> + Sync,
) -> Answers {
    answer_read(batch, read, |requests| {
        host::in_parts(device, requests, size, |part| one_each(part, &forward))
    })
}

fn answer_read<T>(
    batch: &[Inputs],
    read: impl Fn(&Inputs) -> Result<T, ModelError>,
    answer: impl FnOnce(Vec<T>) -> Answers,
) -> Answers {
    let (mut requests, mut refusals) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    for inputs in batch {
        match read(inputs) {
            Ok(request) => {
                requests.push(request);
                refusals.push(None);
            }
            Err(error) => refusals.push(Some(error)),
        }
    }
    let mut answers = if requests.is_empty() {
        Vec::new()
    } else {
        answer(requests)
    }
    .into_iter();
    refusals
        .into_iter()
        .filter_map(|refusal| refusal.map_or_else(|| answers.next(), |error| Some(Err(error))))
        .collect()
}

/// One result per request, whatever `forward` gives.
fn one_each<T>(requests: &[T], forward: impl FnOnce(&[T]) -> Result<Answers, ModelError>) -> Answers {
    let failed = |error: ModelError| vec![Err(error); requests.len()];
    match forward(requests) {
        Ok(answers) if answers.len() == requests.len() => answers,
        Ok(answers) => failed(ModelError::Failed {
            reason: format!("it gave {} answers to {} requests", answers.len(), requests.len()),
        }),
        Err(error) => failed(error),
    }
}

/// The rows of a matrix, read back from its device.
///
/// # Errors
/// [`ModelError::Failed`] with what the device says went wrong.
pub(crate) fn rows(matrix: Tensor<2>) -> Result<Vec<Vec<f32>>, ModelError> {
    let [_, columns] = matrix.dims();
    let values = matrix
        .try_into_vec_as::<f32>()
        .map_err(|error| ModelError::Failed {
            reason: format!("its device: {error}"),
        })?;
    Ok(values.chunks(columns.max(1)).map(<[f32]>::to_vec).collect())
}

/// One output `logits` FP32 `[columns]` per row of a matrix.
///
/// # Errors
/// As [`rows`].
pub(crate) fn logits_per_row(matrix: Tensor<2>) -> Result<Answers, ModelError> {
    let outputs = |row: Vec<f32>| Ok(vec![tensor::Tensor::from_f32("logits", &[row.len()], &row)?]);
    Ok(rows(matrix)?.into_iter().map(outputs).collect())
}

#[cfg(test)]
mod slice_tests;
#[cfg(test)]
mod tests;
