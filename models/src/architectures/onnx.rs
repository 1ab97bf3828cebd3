//! ONNX files, run by ONNX Runtime, whose library is loaded at run time.
//!
//! | module | holds |
//! |---|---|
//! | `library` | finding and loading ONNX Runtime |
//! | `session` | sessions: a graph's inputs and outputs, tensors in and out |
//! | `file` | what only the file tells: number and size of the weights, values of softmax nodes, classes of classifiers |
//! | `labels` | names of the classes, and the output `label` |
//! | `scores` | which output holds the scores of the classes, as logits or as probabilities |
//! | `model` | the `Model`: tensors as they are, batched |
//! | `pooled` | the vector of a text from those of its tokens, as `modules.json` says |
//! | `tokens` | the inputs of a graph that takes tokens |
//!
//! A graph with an input `input_ids` beside a `tokenizer.json` takes texts, as BERT does in the `bert` module. Every
//! other graph takes its inputs as they are, without the batch dimension. Quantised graphs need nothing of their own.

mod file;
mod labels;
mod library;
mod model;
mod pooled;
mod scores;
mod session;
mod tokens;

use std::path::Path;

use kaskade_policy::plan::Partition;
use labels::Labels;
use model::OnnxModel;
use pooled::PooledStates;
use session::{Dimension, Graph};

use super::registry::LoadOptions;
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::device::DeviceChoice;
use crate::runtime::loaded::{Loaded, ModelInfo, Task};
use crate::tasks::embedding::EMBEDDING_OUTPUTS;

/// The architecture that the description of an ONNX model names.
const ARCHITECTURE: &str = "onnx";

/// Returns the number of parameters of an ONNX file, without reading them.
///
/// # Errors
/// [`LoadError::Io`] if the file cannot be read, [`LoadError::BadOnnx`] if it is not a model.
pub fn parameters_of_onnx(path: &Path) -> Result<u64, LoadError> {
    Ok(file::contents(path)?.totals.parameters)
}

/// Returns the folder with the `config.json` and the `tokenizer.json` of an ONNX file: its own, or the one above a folder `onnx` without them, as
/// optimum and the Hub lay them out.
pub fn folder_of_onnx(path: &Path) -> &Path {
    let folder = path.parent().unwrap_or(Path::new(""));
    let has_files = ["config.json", "tokenizer.json"]
        .iter()
        .any(|file| folder.join(file).is_file());
    match folder.parent() {
        Some(above) if !has_files && folder.file_name().is_some_and(|name| name == "onnx") => above,
        _ => folder,
    }
}

/// Loads an ONNX file, on a GPU by the CUDA provider of the library. A `config.json` in its [folder](folder_of_onnx) gives the labels and the
/// sizes of vocabulary and context, a `tokenizer.json` the tokens of texts, and `modules.json` of sentence-transformers what becomes of
/// the vectors of tokens; all are optional.
///
/// # Errors
/// [`LoadError::NoOnnxRuntime`] if the library cannot be loaded, with how to get it; [`LoadError::BadOnnx`] for a file
/// that it refuses; [`LoadError::NotPartitioned`] for a part of a model.
pub fn load_onnx(path: &Path, device: DeviceChoice, options: &LoadOptions) -> Result<Loaded, LoadError> {
    if options.partition != Partition::WHOLE {
        return Err(LoadError::NotPartitioned {
            architecture: ARCHITECTURE,
            of: options.partition.of,
        });
    }
    let contents = file::contents(path)?;
    let graph = Graph::load(path, device)?;
    let pooled = PooledStates::of(&graph, folder_of_onnx(path))?;
    let folder = pooled
        .as_ref()
        .map_or(folder_of_onnx(path), |pooled| &pooled.folder);
    let config = match folder.join("config.json") {
        config if config.is_file() => Some(Config::open(folder)?),
        _ => None,
    };
    let mut tokenizer = TokenizerFile::beside(folder)?;
    if let (Some(pooled), Some(file)) = (&pooled, &mut tokenizer) {
        pooled.prepare(file);
    }
    let (prompts, similarity) = pooled.as_ref().map(PooledStates::described).unwrap_or_default();
    let names = graph.names.clone();
    let mut model = OnnxModel::new(graph, &contents.softmax, config.as_ref(), tokenizer.as_ref())?;
    model.pool(pooled);
    let outputs = model.outputs();
    let has = |name: &str| outputs.iter().any(|output| output.name == name);
    let task = if has("start_logits") && has("end_logits") {
        Task::QuestionAnswering
    } else if !has(scores::LOGITS) && EMBEDDING_OUTPUTS.into_iter().any(has) {
        Task::Embedding
    } else {
        Task::Classification
    };
    let classes = outputs.iter().find(|output| output.name == scores::LOGITS);
    let count = match classes.and_then(|logits| logits.shape.last()) {
        Some(Dimension::Exactly(count)) => Some(*count),
        _ => None,
    };
    let labels = if task == Task::Classification {
        Labels::find(config.as_ref(), &names, &contents.classes, count)?
    } else {
        Labels::default()
    };
    let label_names = labels.names();
    model.name_classes(labels);
    let info = ModelInfo {
        name: options.name.clone().unwrap_or_else(|| {
            let stem = path.file_stem().unwrap_or(path.as_os_str());
            stem.to_string_lossy().into_owned()
        }),
        architecture: ARCHITECTURE.to_owned(),
        parameters: contents.totals.parameters,
        weight_bytes: contents.totals.bytes,
        task,
        labels: label_names,
        prompts,
        similarity,
    };
    Ok(Loaded {
        model: Box::new(model),
        info,
    })
}
