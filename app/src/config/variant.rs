//! The models of an app, and the plan that it serves.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use kaskade_models::WeightType;
use kaskade_models::device::DeviceChoice;
use kaskade_models::entities::AggregationStrategy;
use kaskade_policy::remote::price::Price;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::data::relative_to;
use super::remote::RemoteConfig;
use super::scalar::SubjectToken;

/// Strategy by which the labels of tokens become entities, as in transformers' token classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AggregationConfig {
    /// Neighbouring tokens of one label are an entity.
    Simple,
    /// Likewise of words, which have the label of their first token.
    First,
    /// Likewise of words, which have the label with the largest mean probability.
    Average,
    /// Likewise of words, which have the label of their most certain token.
    Max,
}

impl From<AggregationConfig> for AggregationStrategy {
    fn from(config: AggregationConfig) -> Self {
        match config {
            AggregationConfig::Simple => Self::Simple,
            AggregationConfig::First => Self::First,
            AggregationConfig::Average => Self::Average,
            AggregationConfig::Max => Self::Max,
        }
    }
}

/// A model of the family: a checkpoint, an ONNX file, or a model behind an endpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct VariantConfig {
    /// Name, unique in the family.
    pub name: SubjectToken,
    /// Hugging Face directory (`config.json`, `model.safetensors` or `pytorch_model.bin`) of any supported model, or GGUF
    /// file of a language model, relative to this file. Exactly one of `dir`, `file`, `remote` and `attached` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
    /// ONNX file, relative to this file, run by ONNX Runtime; `config.json` and `tokenizer.json` beside it, or above
    /// a folder `onnx`, are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Endpoint that answers for this variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteConfig>,
    /// Whether an actor or a Python stage that attaches itself answers for this variant. No worker loads it, and `kaskade profile` leaves it
    /// out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Cost of a request in money, in one currency for the whole family [default: unknown].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Device on workers that name none, and for profiling if a worker serves it there [default: the app's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub device: Option<DeviceChoice>,
    /// Type of its weights: `f32`, `bf16`, `f16`, on the CPU also `q8_0` or `q4_0` [default: as stored]. The same directory in
    /// another type is a variant of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub dtype: Option<WeightType>,
    /// Cores that a replica computes with on the CPU; it has as many threads of its own [default: those of its worker].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<NonZeroUsize>,
    /// How a token classifier finds entities; a request may override it [default: `simple`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation_strategy: Option<AggregationConfig>,
}

impl VariantConfig {
    /// Makes the paths relative to a folder.
    pub(super) fn resolve(&mut self, folder: &Path) {
        for path in self.dir.iter_mut().chain(&mut self.file) {
            *path = relative_to(folder, path, |name| std::env::var_os(name));
        }
        if let Some(remote) = &mut self.remote {
            remote.resolve(folder);
        }
    }
}

/// Plan that the app serves.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum PlanSource {
    /// The largest variant alone, without a cascade.
    #[default]
    Largest,
    /// The named variant alone, without a cascade.
    Single(SubjectToken),
    /// A plan file, relative to this file.
    File(PathBuf),
}
