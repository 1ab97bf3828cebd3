//! ONNX files, run by ONNX Runtime, whose library is loaded at run time.
//!
//! | module | holds |
//! |---|---|
//! | `library` | search and loading of the ONNX Runtime library |
//! | `session` | sessions: inputs and outputs of a graph, conversion of tensors |
//! | `images` | image files for a graph that takes a tensor of images |
//! | `file` | information that only the file contains: number and size of weights, softmax values, class names of classifiers |
//! | `labels` | class names, and the output `label` |
//! | `scores` | the output with the class scores, as logits or as probabilities |
//! | `model` | the `Model` implementation, with batching |
//! | `pooled` | settings of `modules.json`: preparation of texts, and pooling |
//! | `tokens` | inputs of a graph that takes tokens |
//!
//! A graph with an input `input_ids` and a `tokenizer.json` next to it accepts texts, as BERT does. A graph of one tensor
//! of images and a `preprocessor_config.json` next to it accepts image files. Any other graph
//! accepts its inputs unchanged, without the batch dimension. Quantised graphs need no special handling.

mod file;
mod images;
mod labels;
mod library;
mod model;
mod pooled;
mod scores;
mod session;
mod tokens;

use std::path::{Path, PathBuf};

use images::GraphImages;
use kaskade_policy::plan::Partition;
use labels::Labels;
use model::OnnxModel;
use pooled::SentenceOutputs;
use session::{Dimension, Graph};

use super::registry::LoadOptions;
use crate::checkpoint::sentence::SentenceTexts;
use crate::checkpoint::{Config, LoadError, TokenizerFile};
use crate::device::DeviceChoice;
use crate::runtime::loaded::{Loaded, ModelInfo, Task};
use crate::tasks::classification::Classifier;
use crate::tasks::embedding::EMBEDDING_OUTPUTS;

/// Architecture name of ONNX models.
const ARCHITECTURE: &str = "onnx";

/// Returns the number of parameters of an ONNX file, without reading the parameters.
///
/// # Errors
/// [`LoadError::Io`] if the file cannot be read, [`LoadError::BadOnnx`] if it is not a model.
pub fn parameters_of_onnx(path: &Path) -> Result<u64, LoadError> {
    Ok(file::contents(path)?.totals.parameters)
}

/// Returns whether an ONNX file has a tokenizer beside it, without loading it. `None` if the graph takes no tokens.
///
/// # Errors
/// [`LoadError`] if the file or one beside it cannot be read.
pub fn tokenizer_of_onnx(path: &Path) -> Result<Option<bool>, LoadError> {
    if !file::contents(path)?
        .inputs
        .iter()
        .any(|name| name == tokens::IDS)
    {
        return Ok(None);
    }
    let own = path.parent().unwrap_or(Path::new(""));
    let mut folders = vec![own.to_owned(), folder_of_onnx(path).to_owned()];
    if let Some(modules) = modules_of_onnx(path) {
        let texts = SentenceTexts::read(modules)?;
        folders.extend(texts.map(|texts| modules.join(texts.encoder)));
    }
    for folder in folders {
        if TokenizerFile::beside(&folder)?.is_some() {
            return Ok(Some(true));
        }
    }
    Ok(Some(false))
}

/// Returns the folder with the `config.json` and the `tokenizer.json` of an ONNX file: its own, or the parent of a
/// folder `onnx` that lacks them, as laid out by optimum and the Hub.
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

/// Returns the folder with the `modules.json` of an ONNX file: its own, or the parent of a folder `onnx`. `None`
/// without such a file.
pub(crate) fn modules_of_onnx(path: &Path) -> Option<&Path> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let is_inner = folder.file_name().is_some_and(|name| name == "onnx");
    let above = folder.parent().filter(|_| is_inner);
    [Some(folder), above]
        .into_iter()
        .flatten()
        .find(|folder| folder.join("modules.json").is_file())
}

/// Returns the folders to search for an ONNX file's `config.json` and tokenizer, in order: that of the file, the
/// encoder's folder that `modules.json` names, and the [folder](folder_of_onnx) of a file without modules.
fn folders(path: &Path, sentence: Option<&SentenceOutputs>) -> Vec<PathBuf> {
    let (own, described) = (path.parent().unwrap_or(Path::new("")), folder_of_onnx(path));
    let mut folders = Vec::new();
    if let Some(sentence) = sentence {
        if !sentence.encoder.starts_with(own) {
            folders.push(own.to_owned());
        }
        folders.push(sentence.encoder.clone());
    }
    folders.push(described.to_owned());
    folders
}

/// Loads an ONNX file; on a GPU, with the CUDA execution provider.
///
/// Optional files in its [folder](folder_of_onnx) are `config.json` for labels and the sizes of vocabulary and
/// context, `tokenizer.json` for texts, `preprocessor_config.json` for image files, and, there or in the parent folder, `modules.json` of sentence-transformers
/// for the preparation of texts and the pooling of token vectors.
///
/// # Errors
/// [`LoadError::NoOnnxRuntime`] if the library cannot be loaded, with how to install it; [`LoadError::BadOnnx`] for a
/// file that it rejects; [`LoadError::NotPartitioned`] for a partition.
pub fn load_onnx(path: &Path, device: DeviceChoice, options: &LoadOptions) -> Result<Loaded, LoadError> {
    if options.partition != Partition::WHOLE {
        return Err(LoadError::NotPartitioned {
            architecture: ARCHITECTURE,
            of: options.partition.of,
        });
    }
    let contents = file::contents(path)?;
    let graph = Graph::load(path, device)?;
    let FilesBeside {
        sentence,
        config,
        tokenizer,
        images,
    } = FilesBeside::read(path, &graph)?;
    let described = sentence.as_ref().map(SentenceOutputs::described);
    let settings = sentence
        .as_ref()
        .and_then(|sentence| sentence.texts.settings.clone());
    let names = graph.names.clone();
    let mut model = OnnxModel::new(graph, &contents.softmax, config.as_ref(), tokenizer.as_ref())?;
    if let Some(images) = images {
        model.take_files(images);
    }
    if let Some(sentence) = sentence {
        model.apply(sentence);
    }
    let count = count_of_classes(&model);
    let score = match task_by_outputs(&model) {
        Task::Classification if model.takes_tokens() && has(&model, scores::LOGITS) => {
            scores::of_one(config.as_ref(), settings.as_ref(), count)?
        }
        _ => None,
    };
    let task = score
        .as_ref()
        .map_or_else(|| task_by_outputs(&model), Classifier::task);
    let labels = if task == Task::Classification {
        Labels::find(config.as_ref(), &names, &contents.classes, count)?
    } else {
        Labels::default()
    };
    let label_names = score.as_ref().map_or_else(|| labels.names(), Classifier::labels);
    model.name_classes(labels);
    model.score_by(score);
    let (prompts, similarity) = described
        .filter(|_| task == Task::Embedding)
        .transpose()?
        .unwrap_or_default();
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

/// Optional files next to an ONNX file.
struct FilesBeside {
    sentence: Option<SentenceOutputs>,
    config: Option<Config>,
    tokenizer: Option<TokenizerFile>,
    images: Option<GraphImages>,
}

impl FilesBeside {
    fn read(path: &Path, graph: &Graph) -> Result<Self, LoadError> {
        let sentence = match modules_of_onnx(path) {
            Some(dir) => SentenceOutputs::of(graph, dir)?,
            None => None,
        };
        let folders = folders(path, sentence.as_ref());
        let configured = folders.iter().find(|folder| folder.join("config.json").is_file());
        let config = configured.map(|folder| Config::open(folder)).transpose()?;
        let mut tokenizers = folders.iter().map(|folder| TokenizerFile::beside(folder));
        let mut tokenizer = tokenizers.find_map(Result::transpose).transpose()?;
        if let (Some(sentence), Some(file)) = (&sentence, &mut tokenizer) {
            sentence.prepare(file);
        }
        let own = path.parent().unwrap_or(Path::new(""));
        let images = GraphImages::read(&graph.inputs, &[own, folder_of_onnx(path)], config.as_ref());
        Ok(Self {
            sentence,
            config,
            tokenizer,
            images,
        })
    }
}

fn has(model: &OnnxModel, name: &str) -> bool {
    model.outputs().iter().any(|output| output.name == name)
}

/// Returns the task of a graph by its outputs, if a single logit is a class.
fn task_by_outputs(model: &OnnxModel) -> Task {
    if has(model, "start_logits") && has(model, "end_logits") {
        Task::QuestionAnswering
    } else if !has(model, scores::LOGITS) && EMBEDDING_OUTPUTS.into_iter().any(|name| has(model, name)) {
        Task::Embedding
    } else {
        Task::Classification
    }
}

/// Returns the number of classes, if the graph has logits of a fixed number.
fn count_of_classes(model: &OnnxModel) -> Option<usize> {
    let mut outputs = model.outputs().iter();
    let logits = outputs.find(|output| output.name == scores::LOGITS)?;
    match logits.shape.last() {
        Some(Dimension::Exactly(count)) => Some(*count),
        _ => None,
    }
}
