//! The models of an app, and the plan that it serves.

use std::path::PathBuf;

use kaskade_models::device::DeviceChoice;
use kaskade_policy::confidence::Estimator;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::Token;

/// Task of the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One class per input, from its scores.
    #[default]
    Classification,
    /// An answer as a span of a context: its first and last token, from two rows of scores.
    QuestionAnswering,
    /// A continuation of the request's text, token by token.
    Generation,
}

impl Task {
    /// Returns the confidence estimator of this task (HybridServe §IV-A).
    pub const fn estimator(self) -> Estimator {
        match self {
            Self::Classification => Estimator::MaxSquared,
            Self::QuestionAnswering => Estimator::Span,
            // The engine computes a confidence at each step and returns the lowest of the answer.
            Self::Generation => Estimator::Given,
        }
    }
}

/// One model of the family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Variant {
    /// Name, unique in the family.
    pub name: Token,
    /// Checkpoint directory (`config.json`, `model.safetensors`), relative to this file.
    pub dir: PathBuf,
    /// Device on workers that name none, and for profiling [default: the app's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
}

/// Plan that the app serves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanSource {
    /// The largest variant alone, without a cascade.
    #[default]
    Largest,
    /// The named variant alone, without a cascade.
    Single(Token),
    /// A plan file, relative to this file.
    File(PathBuf),
}
