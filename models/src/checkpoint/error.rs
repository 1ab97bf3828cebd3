//! Errors of loading a checkpoint.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a checkpoint was not loaded. Each message names the file and, within it, the key or tensor.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file of the checkpoint is missing.
    #[error(
        "`{}` does not exist; a checkpoint is a GGUF file, or a Hugging Face directory with config.json and model.safetensors{hint}",
        path.display()
    )]
    MissingFile {
        /// The file.
        path: PathBuf,
        /// Hint: the file found instead and how to fix the problem; may be empty.
        hint: &'static str,
    },
    /// A shard of the weights is missing.
    #[error("`{}` does not exist, and `model.safetensors.index.json` beside it names it; download it", path.display())]
    MissingShard {
        /// The file.
        path: PathBuf,
    },
    /// The folder contains an adapter (`LoRA`) together with the weights of its base model.
    #[error(
        "`{}` is an adapter (LoRA) beside the weights of a model, and adapters are not applied: merge it with peft, by \
         `model.merge_and_unload().save_pretrained(FOLDER)`, and name that folder; if the weights are merged already, delete the \
         adapter's files",
        path.display()
    )]
    AdapterBesideWeights {
        /// Configuration of the adapter.
        path: PathBuf,
    },
    /// A file of the checkpoint cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Message of the operating system.
        source: std::io::Error,
    },
    /// A file exceeds the size limit for its kind.
    #[error("`{file}` has {bytes} bytes, over the limit of {limit}; check that it is the right file")]
    TooLarge {
        /// The file.
        file: String,
        /// Size of the file, bytes.
        bytes: u64,
        /// The limit, bytes.
        limit: u64,
    },
    /// The file is a Git LFS pointer instead of the content.
    #[error(
        "`{file}` is a pointer of Git LFS and not the file itself; run `git lfs pull` in its folder (after `git lfs install`), or download the file"
    )]
    GitLfsPointer {
        /// The file.
        file: String,
    },
    /// `config.json` is not a JSON object.
    #[error("`{file}` is not a configuration: {reason}")]
    BadConfig {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// `modules.json` does not describe a supported text model.
    #[error("`{file}` cannot be served: {reason}")]
    BadModules {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A required key is missing.
    #[error("`{file}` has no `{key}`, which this model needs")]
    MissingKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
    },
    /// A key has an unsupported value.
    #[error("`{file}` has `{key}` = {value}: {reason}")]
    BadKey {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Value of the key, as JSON.
        value: String,
        /// The error, and the valid values.
        reason: String,
    },
    /// The architecture is not supported.
    #[error(
        "`{file}` names the architecture {found}, which is not supported here; of similar names are {}, and all are in \
         docs/reference/architectures. Serve another one as an ONNX file, behind an endpoint (`remote`) or from Python \
         (`kaskade` in sdk/python)",
        nearest(found, known)
    )]
    UnknownArchitecture {
        /// The file.
        file: String,
        /// The architecture in the file.
        found: String,
        /// The supported architectures.
        known: Vec<&'static str>,
    },
    /// A language model is required, but the checkpoint is not one.
    #[error(
        "`{file}` names the architecture `{found}`, which is {kind}, not a language model; such models answer by `kaskade serve` and \
         `kaskade infer`"
    )]
    NoLanguageModel {
        /// The file.
        file: String,
        /// The architecture in the file.
        found: String,
        /// Kind of the architecture, with article.
        kind: &'static str,
    },
    /// The weights are not a well-formed safetensors file.
    #[error("`{file}` is not a valid safetensors file: {reason}; download or save it again")]
    BadWeights {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A GGUF file is malformed, or has unsupported content.
    #[error("`{file}` cannot be read as a GGUF file: {reason}")]
    BadGguf {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A required tensor is missing.
    #[error("`{file}` has no tensor `{name}` (shape {expected:?})")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration implies.
    #[error("tensor `{name}` in `{file}` has shape {actual:?}; the configuration needs {expected:?}")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Expected shape.
        expected: Vec<usize>,
        /// Actual shape.
        actual: Vec<usize>,
    },
    /// A tensor has an unsupported type.
    #[error(
        "tensor `{name}` in `{file}` is {dtype}; weights are read as F32, F16 or BF16: convert them, as by `model.float()` and \
         `model.save_pretrained(FOLDER)`"
    )]
    WrongDtype {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Type of the tensor.
        dtype: String,
    },
    /// The tensors of a quantised weight are inconsistent.
    #[error(
        "`{file}` holds the weight `{name}` quantised, and it cannot be decoded: {reason}; download it again, or save the \
         original weights and set `dtype`"
    )]
    BadQuantised {
        /// The file.
        file: String,
        /// The weight.
        name: String,
        /// The reason, naming the tensor.
        reason: String,
    },
    /// A weight is NaN or infinite.
    #[error("tensor `{name}` in `{file}` holds {value} at element {index}; every weight must be finite")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        name: String,
        /// Index of the first such weight.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// The file contains tensors that the architecture does not use, so it probably belongs to another model.
    #[error(
        "`{file}` contains {} that the architecture does not use: {}",
        count(names),
        first_names(names)
    )]
    UnusedTensors {
        /// The file.
        file: String,
        /// Names of the unused tensors, sorted.
        names: Vec<String>,
    },
    /// The architecture cannot be split into partitions.
    #[error("`{architecture}` cannot be split by layers into {of} partitions; place it as a whole")]
    NotPartitioned {
        /// The architecture.
        architecture: &'static str,
        /// Number of partitions.
        of: u32,
    },
    /// The model cannot be served with the given settings.
    #[error("`{name}` cannot be served with these settings: {reason}")]
    NotServed {
        /// The model.
        name: String,
        /// The reason.
        reason: String,
    },
    /// There are more partitions than layers.
    #[error("`{file}` has {blocks} layers and cannot be split into {of} partitions; use at most {blocks}")]
    TooManyPartitions {
        /// The file.
        file: String,
        /// Number of layers of the model.
        blocks: usize,
        /// Number of partitions.
        of: u32,
    },
    /// ONNX Runtime cannot be loaded.
    #[error("ONNX Runtime cannot be used: {reason}")]
    NoOnnxRuntime {
        /// The reason, and how to install the library.
        reason: String,
    },
    /// An ONNX file cannot be used.
    #[error("`{}` cannot be served as an ONNX model: {reason}", file.display())]
    BadOnnx {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// `tokenizer.json` cannot be used.
    #[error("`{file}` is not a valid tokenizer: {reason}")]
    BadTokenizer {
        /// The file.
        file: String,
        /// The reason.
        reason: String,
    },
}

impl LoadError {
    /// Builds the error of an ONNX file that cannot be used.
    pub(crate) fn bad_onnx(file: &Path, reason: impl Into<String>) -> Self {
        Self::BadOnnx {
            file: file.to_owned(),
            reason: reason.into(),
        }
    }
}

fn count(names: &[String]) -> String {
    match names.len() {
        1 => "one tensor".into(),
        many => format!("{many} tensors"),
    }
}

/// Lists the supported architectures that share the longest prefix with `found`.
fn nearest(found: &str, known: &[&str]) -> String {
    const MAX_NAMES: usize = 4;
    let found = found.trim_matches('`');
    let shared = |name: &str| {
        let pairs = name.bytes().zip(found.bytes());
        pairs
            .take_while(|(one, other)| one.eq_ignore_ascii_case(other))
            .count()
    };
    let mut names = known.to_vec();
    names.sort_by_key(|name| (std::cmp::Reverse(shared(name)), name.len().abs_diff(found.len())));
    names.truncate(MAX_NAMES);
    names.join(", ")
}

/// Lists only the first names, to keep the message short.
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
