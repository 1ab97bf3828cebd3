//! Sampling defaults and memory of an app's language models.

use std::num::NonZeroU32;

use kaskade_models::Generation;
use kaskade_models::generation::Sampling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Finite, Positive, Size};

/// Sampling defaults and memory of language models. A request may state its own sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GenerationRule {
    /// Maximum tokens of an answer.
    pub max_tokens: NonZeroU32,
    /// 0 is greedy: always the most probable token; higher values are more random.
    #[schemars(range(min = 0.0))]
    pub temperature: Finite,
    /// Samples from this many most probable tokens; 0 means all.
    pub top_k: u32,
    /// Samples from the most probable tokens that together have this probability.
    #[schemars(range(max = 1.0))]
    pub top_p: Positive,
    /// Seed of the sampling.
    pub seed: u64,
    /// Texts that end an answer; they are removed from it.
    pub stop: Vec<String>,
    /// Maximum running requests of a replica; others wait.
    pub requests: NonZeroU32,
    /// Memory of a replica's KV cache; it always holds at least one request with the full context.
    pub cache: Size,
    /// Memory budget of a replica on its device [default: the whole model is resident]. Layers that do not fit are streamed
    /// from host memory, and the cache is there, as KV or ACT blocks, whichever is measured to be faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<Size>,
}

impl Default for GenerationRule {
    fn default() -> Self {
        Self {
            max_tokens: NonZeroU32::MIN.saturating_add(63),
            temperature: Finite::ZERO,
            top_k: 0,
            top_p: Positive::ONE,
            seed: 0,
            stop: Vec::new(),
            requests: NonZeroU32::MIN.saturating_add(31),
            cache: Size::mebibytes(256),
            device_memory: None,
        }
    }
}

impl From<&GenerationRule> for Generation {
    fn from(rule: &GenerationRule) -> Self {
        let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            sampling: Sampling {
                max_tokens: size(rule.max_tokens.get()),
                temperature: rule.temperature.get() as f32,
                top_k: size(rule.top_k),
                top_p: rule.top_p.get() as f32,
                seed: rule.seed,
                stop: rule.stop.clone(),
                ignore_eos: false,
            },
            requests: size(rule.requests.get()),
            cache_bytes: rule.cache.bytes(),
            device_bytes: rule.device_memory.map(Size::bytes),
        }
    }
}

impl GenerationRule {
    /// Returns invalid sampling settings.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let refused = Generation::from(self).sampling.check().err();
        refused.map(|error| format!("generation: {error}")).into_iter()
    }
}
