//! A loaded model and its description.

use serde::{Deserialize, Serialize};

use super::model::Model;

/// A model as its family builds it; the registry adds what it knows of every checkpoint.
pub(crate) struct Built {
    /// The model.
    pub model: Box<dyn Model>,
    /// What its outputs mean.
    pub task: Task,
    /// Class names in the order of the logits; empty where the task has no classes.
    pub labels: Vec<String>,
}

/// A model and what is known of it.
pub struct Loaded {
    /// The model.
    pub model: Box<dyn Model>,
    /// What is known of it.
    pub info: ModelInfo,
}

/// What is known of a model once it is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Its name.
    pub name: String,
    /// Its architecture, as its `config.json` calls it.
    pub architecture: String,
    /// Number of weights.
    pub parameters: u64,
    /// What the weights take in the device's memory, bytes.
    pub weight_bytes: u64,
    /// What its outputs mean.
    pub task: Task,
    /// Class names in the order of the logits; empty where the task has no classes.
    pub labels: Vec<String>,
}

/// What a model's outputs mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Task {
    /// One class per request: `logits` FP32 `[labels]`.
    Classification,
    /// A span of the context: `start_logits` and `end_logits` FP32 `[sequence]`.
    QuestionAnswering,
    /// What is where in an image: `boxes` FP32 `[found, 4]`, and one input per object for whoever looks closer.
    Detection,
    /// A text that goes on from the request's: `text` BYTES `[1]`, and how sure the model is of it ([`crate::language`]).
    Generation,
}
