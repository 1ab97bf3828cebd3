//! Loaded models with their descriptions.

use serde::{Deserialize, Serialize};

use super::model::Model;
use crate::tasks::embedding::Similarity;

/// A model as built by its architecture; the registry adds the rest of the description.
pub(crate) struct Built {
    /// The model.
    pub model: Box<dyn Model>,
    /// Meaning of its outputs.
    pub task: Task,
    /// Class names in the order of the logits; empty for tasks without classes.
    pub labels: Vec<String>,
}

/// A loaded model with its description.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// Description of the model.
    pub info: ModelInfo,
}

/// Description of a loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Name of the model.
    pub name: String,
    /// Architecture, by its name in `config.json`.
    pub architecture: String,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of the weights on the device, bytes.
    pub weight_bytes: u64,
    /// Meaning of its outputs.
    pub task: Task,
    /// Class names in the order of the logits; empty for tasks without classes.
    pub labels: Vec<String>,
    /// Prompt names that an embedding request may state as [`PROMPT_NAME`](crate::PROMPT_NAME).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<String>,
    /// Similarity function for embeddings of two texts.
    #[serde(default, skip_serializing_if = "Similarity::is_default")]
    pub similarity: Similarity,
}

/// Meaning of a model's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// One class per request: `logits` FP32 `[labels]`.
    Classification,
    /// Independent labels: `logits` and `probabilities` FP32 `[labels]`, and `confidence` FP32 `[1]`.
    MultiLabel,
    /// The score of a pair of texts: `score` FP32 `[1]`, without confidence.
    Reranking,
    /// A vector: `embedding` FP32 `[width]`, without confidence.
    Embedding,
    /// The best of several passages for a query: `logits` and `scores` FP32 `[passages]`.
    Ranking,
    /// A span of the context: `start_logits` and `end_logits` FP32 `[sequence]`.
    QuestionAnswering,
    /// A label per token of a text: `logits` FP32 `[tokens, labels]`, `confidence` FP32 `[1]`, and the
    /// [entities](crate::entities) of the text.
    TokenClassification,
    /// Objects in an image: `boxes` FP32 `[found, 4]`, and one crop per object as input of a downstream task.
    Detection,
    /// Text that continues the prompt: `text` BYTES `[1]` and its confidence ([`crate::language`]).
    Generation,
}
