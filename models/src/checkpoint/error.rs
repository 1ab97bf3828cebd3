//! Why a checkpoint was not loaded.

use std::path::PathBuf;

use thiserror::Error;

/// Why a checkpoint was not loaded. Every message names the file, and within it the key or tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file of the checkpoint is absent.
    #[error(
        "`{}` does not exist; a checkpoint is a Hugging Face directory with config.json and model.safetensors{hint}",
        path.display()
    )]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// What was found instead and what to do about it, or empty.
        hint: &'static str,
    },
    /// A file of the checkpoint cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is larger than anything of its kind has reason to be.
    #[error("`{file}` has {bytes} bytes, over the limit of {limit}; is it the file it is named after?")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// `config.json` is not a JSON object.
    #[error("`{file}` is not a configuration: {reason}")]
    BadConfig {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A key that the architecture needs is absent.
    #[error("`{file}` has no `{key}`, which this architecture needs")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key holds a value that cannot be served.
    #[error("`{file}` has `{key}` = {value}: {reason}")]
    BadKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// No family serves this architecture.
    #[error("`{file}` names the architecture {found}; this build serves {}", known.join(", "))]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// What it names.
        found: String,
        /// What could be served.
        known: Vec<&'static str>,
    },
    /// The weights are not a well-formed safetensors file.
    #[error("`{file}` is not a whole safetensors file: {reason}; fetch or save it again")]
    BadWeights {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that the architecture needs is absent.
    #[error("`{file}` has no tensor `{name}` (shape {expected:?})")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Vec<usize>,
    },
    /// A tensor does not have the shape that the configuration gives it.
    #[error("tensor `{name}` in `{file}` has shape {actual:?}; the configuration takes {expected:?}")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// The shape it should have.
        expected: Vec<usize>,
        /// The shape it has.
        actual: Vec<usize>,
    },
    /// A tensor is not of a floating-point type that can be served.
    #[error("tensor `{name}` in `{file}` is {dtype}; weights are read as F32, F16 or BF16")]
    WrongDtype {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Its type.
        dtype: String,
    },
    /// A weight is NaN or infinite, so that no answer could be trusted.
    #[error("tensor `{name}` in `{file}` holds {value} at element {index}; every weight must be finite")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Position of the first such weight.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// The file holds tensors that the architecture has no place for, so it is not the model it says it is.
    #[error(
        "`{file}` holds {} that the architecture has no place for: {}",
        count(names),
        first_names(names)
    )]
    UnusedTensors {
        /// The file.
        file: String,
        /// All of them, sorted.
        names: Vec<String>,
    },
    /// The architecture is served as a whole only.
    #[error("`{architecture}` is not cut by layers, and slices of {of} were asked for; place it whole")]
    NotSliced {
        /// The architecture.
        architecture: &'static str,
        /// Slices asked for.
        of: usize,
    },
    /// It was read, and cannot be served as it was asked for.
    #[error("`{name}` cannot be served so: {reason}")]
    NotServed {
        /// The model.
        name: String,
        /// Why.
        reason: String,
    },
    /// More slices than layers.
    #[error("`{file}` has {blocks} layers and cannot be cut into {of} slices; take {blocks} at most")]
    TooManySlices {
        /// The file.
        file: String,
        /// Its layers.
        blocks: usize,
        /// Slices asked for.
        of: usize,
    },
    /// `tokenizer.json` cannot be used.
    #[error("`{file}` is not a tokenizer that can be used: {reason}")]
    BadTokenizer {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
}

fn count(names: &[String]) -> String {
    match names.len() {
        1 => "one tensor".into(),
        many => format!("{many} tensors"),
    }
}

/// The first few names: an error about a whole encoder should still fit a screen.
fn first_names(names: &[String]) -> String {
    const MAX_NAMES: usize = 5;
    let shown = names
        .iter()
        .take(MAX_NAMES)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_NAMES {
        format!("{shown}, ...")
    } else {
        shown
    }
}
