//! Reads the task and the size of a variant from its files.

use std::path::{Path, PathBuf};

use kaskade_models::checkpoint::{is_checkpoint, why_no_checkpoint};
use kaskade_models::class_names::are_placeholders;
use kaskade_models::{Checkpoint, CheckpointKind, LoadError, kind_of, parameters_of_onnx};

use super::error::InitError;
use super::origin::Origin;
use crate::config::Task;
use crate::config::scalar::{MAX_TOKEN, SubjectToken};
use crate::family::{Source as ModelSource, stated_names};

/// A variant of a new app.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Variant {
    /// Name of the variant.
    pub name: SubjectToken,
    /// Number of parameters; `None` for an endpoint.
    pub parameters: Option<u64>,
    /// Kind of answers; `None` if nothing states it.
    pub(super) answers: Option<kaskade_models::Task>,
    /// Class names, if the configuration states them.
    pub(super) classes: Vec<String>,
    pub(super) source: Source,
}

/// Source of a variant.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// A checkpoint directory or a GGUF file.
    Checkpoint(PathBuf),
    /// An ONNX file.
    Onnx(PathBuf),
    /// An endpoint with the OpenAI API.
    Endpoint {
        url: String,
        model: String,
        key: Option<String>,
    },
}

impl Variant {
    /// Reads the description of a variant.
    ///
    /// # Errors
    /// [`InitError::NoCheckpoint`] and [`InitError::Checkpoint`].
    pub(super) fn of(origin: &Origin) -> Result<Self, InitError> {
        match origin {
            Origin::Endpoint {
                name,
                url,
                model,
                key,
            } => Ok(Self {
                name: name
                    .clone()
                    .unwrap_or_else(|| name_from(model.rsplit('/').next().unwrap_or(model))),
                parameters: None,
                answers: None,
                classes: Vec::new(),
                source: Source::Endpoint {
                    url: url.clone(),
                    model: model.clone(),
                    key: key.clone(),
                },
            }),
            Origin::Path(name, path) => {
                let name = name.clone().unwrap_or_else(|| name_of(path));
                let read = if path.extension().is_some_and(|extension| extension == "onnx") {
                    Self::of_onnx(&name, path)
                } else if is_checkpoint(path) {
                    Self::of_checkpoint(&name, path)
                } else {
                    return Err(InitError::NoCheckpoint {
                        path: path.clone(),
                        reason: why_no_checkpoint(path),
                    });
                };
                read.map_err(|source| InitError::Checkpoint {
                    variant: name.to_string(),
                    source: Box::new(source),
                })
            }
        }
    }

    fn of_onnx(name: &SubjectToken, path: &Path) -> Result<Self, LoadError> {
        Ok(Self {
            name: name.clone(),
            parameters: Some(parameters_of_onnx(path)?),
            answers: None,
            classes: without_placeholders(
                stated_names(&ModelSource::Onnx(path.to_owned()))?.unwrap_or_default(),
            ),
            source: Source::Onnx(path.to_owned()),
        })
    }

    fn of_checkpoint(name: &SubjectToken, path: &Path) -> Result<Self, LoadError> {
        let checkpoint = Checkpoint::open(path)?;
        let parameters = checkpoint.weights.elements();
        let has_names = checkpoint
            .config
            .optional::<serde_json::Value>("id2label")?
            .is_some();
        let classes = if has_names {
            checkpoint.config.labels()?
        } else {
            Vec::new()
        };
        let CheckpointKind { task, .. } = kind_of(checkpoint)?;
        Ok(Self {
            name: name.clone(),
            parameters: Some(parameters),
            answers: Some(task),
            classes: without_placeholders(classes),
            source: Source::Checkpoint(path.to_owned()),
        })
    }

    /// Returns the flag of `kaskade init` that renames the variant.
    pub(super) fn naming_flag(&self) -> String {
        match &self.source {
            Source::Checkpoint(path) | Source::Onnx(path) => format!("--variant NAME={}", path.display()),
            Source::Endpoint { url, model, .. } => format!("--endpoint NAME={url} --model {model}"),
        }
    }
}

/// Returns class names; empty if they are placeholders.
fn without_placeholders(names: Vec<String>) -> Vec<String> {
    if are_placeholders(&names) {
        Vec::new()
    } else {
        names
    }
}

/// Returns the name of a variant, made from its file or folder.
fn name_of(path: &Path) -> SubjectToken {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if path.is_file() {
        path.file_stem()
    } else {
        path.file_name()
    };
    name_from(&name.unwrap_or_default().to_string_lossy())
}

/// Converts a text to a name: every invalid character becomes `-`.
fn name_from(text: &str) -> SubjectToken {
    let usable = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let letters = text
        .chars()
        .map(|letter| if usable(letter) { letter } else { '-' });
    let name: String = letters.take(MAX_TOKEN).collect();
    let name = name.trim_matches('-');
    name.parse().unwrap_or_else(|_| SubjectToken::model())
}

/// Returns the task of all variants: the stated one, or the checkpoints' common task.
///
/// # Errors
/// [`InitError`] if the tasks differ, or none is known.
pub(super) fn common_task(stated: Option<Task>, variants: &[Variant]) -> Result<Task, InitError> {
    let mut first: Option<(&Variant, Task)> = None;
    for variant in variants {
        let Some(answers) = variant.answers else {
            continue;
        };
        let found = Task::of_model(answers).ok_or_else(|| InitError::OfPipeline {
            variant: variant.name.to_string(),
        })?;
        if let Some(stated) = stated {
            // Embeddings and pair scores can rank passages.
            let ranks = stated == Task::Ranking && matches!(found, Task::Embedding | Task::Reranking);
            if found != stated && !ranks {
                return Err(InitError::NotTheTask {
                    variant: variant.name.to_string(),
                    found: found.name(),
                    stated: stated.name(),
                });
            }
        }
        match first {
            Some((other, task)) if task != found && stated.is_none() => {
                return Err(InitError::OtherTask {
                    first: other.name.to_string(),
                    first_task: task.name(),
                    other: variant.name.to_string(),
                    other_task: found.name(),
                });
            }
            Some(_) => {}
            None => first = Some((variant, found)),
        }
    }
    let is_endpoint = |variant: &Variant| matches!(variant.source, Source::Endpoint { .. });
    let of_endpoints = variants.iter().all(is_endpoint).then_some(Task::Generation);
    let inferred = first.map(|(_, task)| task);
    stated.or(inferred).or(of_endpoints).ok_or(InitError::NoTask)
}
