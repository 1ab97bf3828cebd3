//! Errors of describing a new app.

use std::io;
use std::path::PathBuf;

use kaskade_models::LoadError;
use thiserror::Error;

use crate::config::ConfigError;
use crate::data::DataError;
use crate::family::FamilyError;

/// Error of describing a new app.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InitError {
    /// The folder's name is not a valid app name.
    #[error(
        "`{name}` cannot name an app: use 1 to 64 ASCII letters, digits, `-` or `_`, by another folder or `--name`"
    )]
    Name {
        /// The name of the folder.
        name: String,
    },
    /// The current folder is unknown.
    #[error("the current folder cannot be read")]
    CurrentFolder(#[source] io::Error),
    /// A path cannot be written to the app file.
    #[error("`{}` cannot be found from the folder of the app; name an absolute path", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A path is not a checkpoint.
    #[error("`{}` {reason}", path.display())]
    NoCheckpoint {
        /// The path.
        path: PathBuf,
        /// The error and the remedy.
        reason: String,
    },
    /// A checkpoint cannot be read.
    #[error("variant `{variant}`")]
    Checkpoint {
        /// Name of the variant.
        variant: String,
        /// The error.
        source: Box<LoadError>,
    },
    /// Two variants have the same name.
    #[error("two variants are named `{name}`; give one another name: `{flag}`")]
    NameTwice {
        /// The repeated name.
        name: String,
        /// The flag that renames the second variant.
        flag: String,
    },
    /// The variants have different tasks.
    #[error(
        "the variants of an app have one task, and `{first}` answers `{first_task}`, `{other}` `{other_task}`; leave one of them out"
    )]
    OtherTask {
        /// The first variant.
        first: String,
        /// Task of the first variant.
        first_task: &'static str,
        /// A variant with another task.
        other: String,
        /// Task of that variant.
        other_task: &'static str,
    },
    /// A variant does not have the stated task.
    #[error(
        "variant `{variant}` answers `{found}`, not `{stated}`; leave out `--task`, or name a checkpoint of that task"
    )]
    NotTheTask {
        /// The variant.
        variant: String,
        /// Task of the variant.
        found: &'static str,
        /// The stated task.
        stated: &'static str,
    },
    /// A checkpoint can only be a stage of a pipeline.
    #[error(
        "variant `{variant}` finds objects, which only the first task of a pipeline does; write that app by hand (docs/how-to/plan-pipelines.md)"
    )]
    OfPipeline {
        /// The variant.
        variant: String,
    },
    /// No variant states the task.
    #[error("ONNX files do not state their task; give `--task`, such as `--task classification`")]
    NoTask,
    /// A language model is to classify, but the class names are unknown.
    #[error(
        "variant `{variant}` is a language model that classifies by the names of the classes, and no checkpoint names any: add `id2label` to \
         a config.json"
    )]
    NoClassNames {
        /// The variant.
        variant: String,
    },
    /// The data cannot be used.
    #[error("{}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: Box<DataError>,
    },
    /// Values contradict each other.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A variant cannot be served together with the others.
    #[error(transparent)]
    Family(#[from] FamilyError),
}
