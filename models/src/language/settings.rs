//! Settings of a language model, and the engine configuration derived from them.

use crate::decoder::weights::Decoder;
use crate::generation::{Caching, EngineConfig, MemoryLimits, SamplingOptions};
use crate::ops::Ops;

/// Maximum request length that memory is reserved for, tokens.
const MAX_CONTEXT_TOKENS: usize = 1 << 20;

/// Settings of a language model.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Sampling defaults of the app; those of the checkpoint apply where an option is missing.
    pub sampling: SamplingOptions,
    /// Maximum number of running requests; others wait.
    pub max_num_seqs: usize,
    /// Limit of the cache memory, bytes. Requests that need more are rejected.
    pub cache_bytes: u64,
    /// Maximum length of a request, prompt and answer, tokens. `None`: the minimum of the model's context and the
    /// cache capacity. May exceed the context of an encoder with relative positions (T5), which accepts prompts of any
    /// length.
    pub max_model_len: Option<usize>,
    /// Device memory budget, bytes. `None`: the whole model is resident. Otherwise layers that do not fit are
    /// streamed, and the cache is then in host memory.
    pub device_bytes: Option<u64>,
}

impl Default for Generation {
    fn default() -> Self {
        Self {
            sampling: SamplingOptions::default(),
            max_num_seqs: 32,
            cache_bytes: 256 << 20,
            max_model_len: None,
            device_bytes: None,
        }
    }
}

/// Sizes the cache by its memory limit, and lowers the context of `decoder` to what the settings allow.
///
/// # Errors
/// The reason, if the cache is too small for `max_model_len` or for one block, or if the device memory is too small.
pub(super) fn configure<M: Ops>(
    ops: M,
    decoder: &mut Decoder,
    generation: &Generation,
) -> Result<EngineConfig, String> {
    let resident = EngineConfig::resident(decoder, 0);
    let block = resident.block_tokens;
    let block_bytes = crate::generation::config::block_bytes(
        &decoder.model_config,
        decoder.attention_layers(),
        block,
        kaskade_policy::hybrid_cache::Kind::Kv,
    );
    let requests = running_requests(decoder, generation)?;
    let states_bytes = decoder.state_bytes() * requests as u64;
    let left = generation.cache_bytes.saturating_sub(states_bytes);
    let blocks = usize::try_from(left / block_bytes.max(1)).unwrap_or(usize::MAX);
    let held = blocks.saturating_mul(block);
    let stated = generation.max_model_len;
    let too_few = |held: usize| {
        let wanted = stated.map_or_else(
            || "one block".into(),
            |tokens| format!("max_model_len = {tokens}"),
        );
        format!(
            "a cache of {left} bytes holds {held} tokens ({block_bytes} bytes of keys and values for every {block}), too few for {wanted}; \
             set a larger `cache`"
        )
    };
    if held < stated.unwrap_or(1) {
        return Err(too_few(held));
    }
    if let (Some(stated), Some(encoder)) = (stated, &mut decoder.encoder)
        && encoder.reads_any_length()
    {
        encoder.context = encoder.context.max(stated);
    }
    limit_context(decoder, stated.unwrap_or(usize::MAX).min(held));
    // The cache holds the encoder's prompt, then the answer.
    let answer = match &decoder.encoder {
        None => 0,
        Some(_) => generation.sampling.max_tokens.unwrap_or_default(),
    };
    let context = decoder
        .longest_prompt()
        .saturating_add(answer)
        .min(MAX_CONTEXT_TOKENS)
        .next_multiple_of(block);
    let memory_limits = MemoryLimits {
        caching: Caching::Hybrid,
        device_bytes: generation.device_bytes,
        link: None,
        requests,
        tokens: held.min(requests.saturating_mul(context)),
        cache_bytes: Some(left),
    };
    let plan = EngineConfig::plan(ops, decoder, &memory_limits).map_err(|error| error.to_string())?;
    // Activation blocks may be larger than KV blocks.
    let held = plan.config.capacity.total().saturating_mul(block);
    if held < stated.unwrap_or(1).min(decoder.longest_prompt()) {
        return Err(too_few(held));
    }
    limit_context(decoder, held);
    Ok(plan.config)
}

/// Lowers the context of a decoder and of its encoder.
fn limit_context(decoder: &mut Decoder, limit: usize) {
    decoder.model_config.context = decoder.model_config.context.min(limit);
    if let Some(encoder) = &mut decoder.encoder {
        encoder.context = encoder.context.min(limit);
    }
}

/// Returns the maximum number of running requests: `max_num_seqs`, limited so that recurrent states take at most half
/// of the cache memory, or all of it if no layer has keys and values. At least 1, even if one request takes more than
/// half.
fn running_requests(decoder: &Decoder, generation: &Generation) -> Result<usize, String> {
    let (stated, state, cache) = (
        generation.max_num_seqs.max(1),
        decoder.state_bytes(),
        generation.cache_bytes,
    );
    let share = if decoder.attention_layers() > 0 { 2 } else { 1 };
    let Some(held) = (cache / share).checked_div(state) else {
        return Ok(stated);
    };
    if state > cache {
        return Err(format!(
            "the recurrent states of one request take {state} bytes and the cache has {cache}; set `cache` to {} bytes at least",
            share * state
        ));
    }
    Ok(stated.min(usize::try_from(held).unwrap_or(usize::MAX).max(1)))
}
