//! The source of a model: files, an endpoint, a process that attaches itself, or this program.

use std::path::PathBuf;

use kaskade_remote::SpendLimit;

use crate::config::remote::RemoteConfig;
use crate::config::{App, Task, VariantConfig};

/// Answers of a remote variant on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Their directory.
    pub dir: PathBuf,
    /// Money that may be spent on missing ones, of all variants that share the limit; unlimited if `None`.
    pub spend_limit: Option<SpendLimit>,
}

/// Source of a model.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Source {
    /// A Hugging Face directory.
    Directory(PathBuf),
    /// An ONNX file.
    Onnx(PathBuf),
    /// A model behind an endpoint.
    Remote {
        /// The endpoint.
        config: Box<RemoteConfig>,
        /// What it is asked for.
        task: Task,
        /// Where answers are recorded and replayed from while it is measured; `None` while it serves.
        recording: Option<Recording>,
    },
    /// An actor or a Python stage that attaches itself.
    Attached,
    /// In this program.
    Embedded {
        /// `config.json`.
        config: &'static [u8],
        /// `model.safetensors`.
        weights: &'static [u8],
    },
}

impl Source {
    pub(super) fn new(app: &App, variant: &VariantConfig) -> Self {
        match (&variant.file, &variant.remote) {
            _ if variant.attached => Self::Attached,
            (Some(file), _) => Self::Onnx(file.clone()),
            (None, Some(config)) => Self::Remote {
                config: Box::new(config.clone()),
                task: app.task,
                recording: None,
            },
            // An app without any source was refused when it was read.
            (None, None) => Self::Directory(variant.dir.clone().unwrap_or_default()),
        }
    }
}
