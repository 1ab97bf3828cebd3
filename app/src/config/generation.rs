//! How an app's language models answer requests that do not say otherwise, and what memory they get.

use std::num::NonZeroU32;

use kaskade_models::Generation;
use kaskade_models::generation::Sampling;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Finite, Positive, Size};

/// How language models answer, and what memory they get.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GenerationRule {
    /// Most tokens of an answer.
    pub max_tokens: NonZeroU32,
    /// 0 takes the most probable token always; higher is more random.
    #[schemars(range(min = 0.0))]
    pub temperature: Finite,
    /// Draw from the so many most probable tokens only; 0 is all.
    pub top_k: u32,
    /// Draw from the most probable tokens that together have this probability only.
    #[schemars(range(max = 1.0))]
    pub top_p: Positive,
    /// Seed of the draws.
    pub seed: u64,
    /// Texts that end an answer and are not part of it.
    pub stop: Vec<String>,
    /// Requests that a replica runs at a time; more wait.
    pub requests: NonZeroU32,
    /// What a replica's cache of keys and values may take; it always holds one request as long as the model's context.
    pub cache: Size,
    /// What a replica may take on its device. What does not fit is streamed from the host's memory, and the cache lies there, as keys and
    /// values or activations, whichever is measured to be faster. Absent: all of it stays on the device.
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
    /// What no model could answer by.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let refused = Generation::from(self).sampling.check().err();
        refused.map(|error| format!("generation: {error}")).into_iter()
    }
}
