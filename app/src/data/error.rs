//! Why labelled samples cannot be used.

use std::io;
use std::path::{Path, PathBuf};

use kaskade_models::idx::IdxError;
use kaskade_models::{InputSpec, ModelError, TensorError};
use thiserror::Error;

use super::scenes::SceneError;

/// A labelled set cannot be read, or is not what a model takes.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The set is in a folder that an unset environment variable names.
    #[error("the app's samples are in a folder that the environment variable `{name}` names; set it")]
    UnsetVariable {
        /// The variable.
        name: String,
    },
    /// A file cannot be used.
    #[error("{} cannot be used", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error.
        source: Box<DataError>,
    },
    /// The system does not read a file.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A line of a file cannot be used.
    #[error("line {number}")]
    Line {
        /// Its number, from 1.
        number: usize,
        /// The error.
        source: Box<DataError>,
    },
    /// A line of a tab-separated file has another number of columns.
    #[error("has {found} columns; it takes a text, optionally a second one, and a label")]
    Columns {
        /// How many it has.
        found: usize,
    },
    /// A label is no number.
    #[error("`{label}` is no label; write a number from 0")]
    Label {
        /// The label.
        label: String,
    },
    /// A line of a JSON file is no sample.
    #[error("line {number} is no {{\"text\": .., \"answer\": ..}}")]
    Completion {
        /// Its number, from 1.
        number: usize,
        /// The error.
        source: serde_json::Error,
    },
    /// A text has too few words.
    #[error("there are {found} words between {from} and {to} of the text, {wanted} are required")]
    Words {
        /// The number.
        found: usize,
        /// Where the part of the text begins, as a share.
        from: f64,
        /// Where it ends, as a share.
        to: f64,
        /// The required number.
        wanted: usize,
    },
    /// The set has too few samples.
    #[error("there are {found} samples after the first {skip}; correct `skip` and `take`")]
    Count {
        /// The number.
        found: usize,
        /// How many were skipped.
        skip: usize,
    },
    /// A sample is not what the model takes.
    #[error("sample {number} is not what the model takes")]
    Sample {
        /// Its number, from 0.
        number: usize,
        /// What the model takes instead.
        source: ModelError,
    },
    /// Images go to models with one input.
    #[error("images go to models with one required FP32 input; this one takes {inputs:?}")]
    NoImageInput {
        /// What the model takes.
        inputs: Vec<InputSpec>,
    },
    /// The set holds scenes, which only a pipeline takes.
    #[error("scenes are samples of a pipeline, and this app has no `[pipeline]`")]
    NeedsPipeline,
    /// The set holds no scenes.
    #[error("a pipeline is measured on `scenes`; name such a set")]
    NeedsScenes,
    /// Two files do not hold scenes together.
    #[error("{} with {} cannot be used", images.display(), objects.display())]
    Scenes {
        /// The images.
        images: PathBuf,
        /// What is in them.
        objects: PathBuf,
        /// What is wrong with them.
        source: Box<SceneError>,
    },
    /// An IDX file cannot be read.
    #[error(transparent)]
    Idx(#[from] IdxError),
    /// A sample is no tensor.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl DataError {
    /// Names the file in which something is wrong.
    pub(super) fn of<E: Into<Self>>(file: &Path) -> impl FnOnce(E) -> Self {
        move |source| Self::File {
            file: file.to_owned(),
            source: Box::new(source.into()),
        }
    }
}
