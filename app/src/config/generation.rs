//! Sampling defaults and memory of an app's language models.

use std::num::NonZeroU32;
use std::sync::Arc;

use kaskade_models::Generation;
use kaskade_models::generation::{Grammar, SamplingOptions};
use kaskade_models::language::response_format;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, Finite, Positive};

/// Sampling defaults and memory of language models. A request may state its own sampling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Maximum tokens of an answer [default: that of `generation_config.json`, else 64, or 2,048 for a chat; less if the context leaves less].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<NonZeroU32>,
    /// 0 is greedy: always the most probable token; higher values are more random [default: that of
    /// `generation_config.json` if it says `do_sample`, else 0].
    #[schemars(range(min = 0.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Finite>,
    /// Samples from this many most probable tokens; 0 means all [default: as `temperature`, else 0].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Samples from the most probable tokens that together have this probability [default: as `temperature`, else 1].
    #[schemars(range(max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<Positive>,
    /// Samples from tokens at least this part as probable as the most probable one [default: as `temperature`, else 0].
    #[schemars(range(min = 0.0, max = 1.0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<Finite>,
    /// Divides the positive logits of tokens that prompt and answer have, multiplies the others [default: that of
    /// `generation_config.json`, else 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<Positive>,
    /// Beams of a beam search, for answers that are not sampled; 1 is greedy search [default: that of
    /// `generation_config.json`, else 1]. The answer comes as a whole, at its end. A search counts as that many of `max_num_seqs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_beams: Option<NonZeroU32>,
    /// Exponent of the length by which the score of a beam is divided; above 0 favours longer answers [default: that of
    /// `generation_config.json`, else 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_penalty: Option<f64>,
    /// Seed of the sampling [default: a hash of the prompt].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Texts that end an answer; they are removed from it.
    pub stop: Vec<String>,
    /// Format that answers must match, as in the input `response_format`, such as `{ type = "choice", choice = ["yes", "no"] }`
    /// [default: any text].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<serde_json::Value>,
    /// Maximum running requests of a replica (a beam search counts once per beam); others wait.
    pub max_num_seqs: NonZeroU32,
    /// Memory of a replica's KV cache: a bound. Requests that it cannot hold are refused.
    pub cache: ByteSize,
    /// Maximum tokens of a request, prompt and answer [default: the model's context, or what `cache` holds if that is less].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_model_len: Option<NonZeroU32>,
    /// Memory budget of a replica on its device [default: the whole model is resident]. Layers that do not fit are streamed
    /// from host memory, and the cache is there, as KV or ACT blocks, whichever is measured to be faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory: Option<ByteSize>,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            max_tokens: None,
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: None,
            num_beams: None,
            length_penalty: None,
            seed: None,
            stop: Vec::new(),
            response_format: None,
            max_num_seqs: NonZeroU32::MIN.saturating_add(31),
            cache: ByteSize::mebibytes(256),
            max_model_len: None,
            device_memory: None,
        }
    }
}

impl From<&GenerationConfig> for Generation {
    fn from(config: &GenerationConfig) -> Self {
        let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            sampling: SamplingOptions {
                max_tokens: config.max_tokens.map(|tokens| size(tokens.get())),
                temperature: config.temperature.map(|temperature| temperature.get() as f32),
                top_k: config.top_k.map(size),
                top_p: config.top_p.map(|top_p| top_p.get() as f32),
                min_p: config.min_p.map(|min_p| min_p.get() as f32),
                repetition_penalty: config.repetition_penalty.map(|penalty| penalty.get() as f32),
                num_beams: config.num_beams.map(|beams| size(beams.get())),
                length_penalty: config.length_penalty.map(|penalty| penalty as f32),
                seed: config.seed,
                stop: (!config.stop.is_empty()).then(|| config.stop.clone()),
                grammar: config.grammar().ok().flatten().map(Arc::new),
                ..SamplingOptions::default()
            },
            max_num_seqs: size(config.max_num_seqs.get()),
            cache_bytes: config.cache.bytes(),
            max_model_len: config.max_model_len.map(|tokens| size(tokens.get())),
            device_bytes: config.device_memory.map(ByteSize::bytes),
        }
    }
}

impl GenerationConfig {
    /// Returns invalid sampling settings.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let refused = Generation::from(self).sampling.sampling(0).check().err();
        let refused = refused.map(|error| format!("generation: {error}"));
        let format = self.grammar().err();
        let format = format.map(|reason| format!("generation.response_format: {reason}"));
        refused.into_iter().chain(format)
    }

    fn grammar(&self) -> Result<Option<Grammar>, String> {
        self.response_format
            .as_ref()
            .map_or(Ok(None), response_format::grammar)
    }
}
