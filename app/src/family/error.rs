//! Why a model of a family cannot be loaded or served.

use kaskade_models::{CoresError, DeviceError, EMBEDDING_OUTPUTS, LoadError};
use kaskade_remote::ConnectError;
use thiserror::Error;

use super::ClassMismatch;
use crate::config::Task;
use crate::report::units;

/// A model cannot be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FamilyError {
    /// The family has no such variant.
    #[error(
        "this process has no variant `{variant}`, which the plan names; correct the plan, or roll back with `kaskade plan rollback APP`"
    )]
    NoVariant {
        /// The requested variant.
        variant: String,
    },
    /// The family is empty.
    #[error("the app has no variants; add `[[variants]]` to its file")]
    Empty,
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The checkpoint cannot be used.
    #[error(transparent)]
    Checkpoint(#[from] LoadError),
    /// The threads of the model cannot be started.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// The endpoint cannot be used.
    #[error(transparent)]
    Remote(#[from] ConnectError),
    /// The model is not loaded by a worker.
    #[error(
        "`{variant}` is answered by an actor or a Python stage that attaches itself; place its replicas on a worker name that no process has, \
         or give the variant a `dir`"
    )]
    Attached {
        /// The variant.
        variant: String,
    },
    /// The partition is invalid.
    #[error("{0}")]
    Partition(String),
    /// The classes of a variant cannot be put into the order of the app's.
    #[error("variant `{variant}`: {source}")]
    Classes {
        /// The variant.
        variant: String,
        /// How they differ.
        source: ClassMismatch,
    },
    /// A variant cannot read the texts that another one reads, or those of the data.
    #[error(
        "variant `{variant}`: its checkpoint has no tokenizer, and {whose}{}: save the tokenizer beside its weights \
         (`AutoTokenizer.from_pretrained(NAME).save_pretrained(DIRECTORY)`)",
        unused.as_ref().map_or_else(String::new, |unused| format!("; {unused}"))
    )]
    NoTokenizer {
        /// The variant.
        variant: String,
        /// What holds or reads texts.
        whose: String,
        /// Vocabulary files that are not used, and why.
        unused: Option<String>,
    },
    /// The checkpoint is not the one that the plan was made for.
    #[error(
        "`{variant}` is another checkpoint than the profiled one (its fingerprint is {found}, the plan names {planned}), so the thresholds and \
         latencies of the plan are not its own: run `kaskade profile` and plan again, or put the profiled files back. To serve it \
         unmeasured, remove `checkpoint` from its replicas in the plan"
    )]
    OtherCheckpoint {
        /// The variant.
        variant: String,
        /// The fingerprint that the plan names.
        planned: String,
        /// The fingerprint of the files.
        found: String,
    },
    /// The model cannot rank passages.
    #[error(
        "`{variant}` cannot rank passages: it gives neither vectors of texts (`sentence-transformers`, `api = \"embeddings\"`) nor scores of \
         pairs (a cross-encoder)"
    )]
    CannotRank {
        /// The variant.
        variant: String,
    },
    /// An ONNX file gives no embedding.
    #[error(
        "`{variant}` gives no embedding: its ONNX file has no output `{}`; export it with its pooling, by `optimum-cli export onnx --library \
         sentence_transformers`, or put `modules.json` of sentence-transformers and its folders beside it",
        EMBEDDING_OUTPUTS.join("`, `")
    )]
    NoEmbedding {
        /// The variant.
        variant: String,
    },
    /// The checkpoint answers another task than the app's.
    #[error(
        "`{variant}` is the checkpoint of another task: its architecture is {architecture}, whose answers are those of {found}, and the app \
         has `task = \"{task}\"`; correct `task`, or name a checkpoint of that task{}",
        advice(task)
    )]
    OtherTask {
        /// The variant.
        variant: String,
        /// Its architecture, by the name in `config.json`.
        architecture: String,
        /// The task of its answers.
        found: String,
        /// The app's task.
        task: &'static str,
    },
    /// The model needs more memory than its worker may use.
    #[error(
        "workers: `{worker}` may use {} of memory, and the weights of `{variant}` have {}; raise its `memory`, or place the variant on \
         another worker",
        units::bytes(*memory),
        units::bytes(*weights)
    )]
    Memory {
        /// The worker.
        worker: String,
        /// Its bound, bytes.
        memory: u64,
        /// The variant.
        variant: String,
        /// The size of its weights, bytes.
        weights: u64,
    },
}

/// What a checkpoint of a task must state to be one.
fn advice(task: &str) -> &'static str {
    if task == Task::MultiLabel.name() {
        ". The `config.json` of a classifier with several labels per input has `\"problem_type\": \"multi_label_classification\"`"
    } else {
        ""
    }
}
