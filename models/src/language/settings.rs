//! Settings of a language model, and the engine's configuration that follows from them.

use crate::decoder::weights::Decoder;
use crate::generation::{Caching, EngineConfig, MemoryLimits, SamplingOptions};
use crate::ops::Ops;

/// Maximum length of a request that memory is reserved for, tokens.
const MAX_CONTEXT_TOKENS: usize = 1 << 20;

/// Settings of a language model.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Defaults for requests that do not set their own; those of the checkpoint apply to what is missing.
    pub sampling: SamplingOptions,
    /// Maximum running requests; others wait.
    pub max_num_seqs: usize,
    /// Memory of the cache, bytes: a bound. Requests that need more are refused.
    pub cache_bytes: u64,
    /// Maximum tokens of a request, prompt and answer; `None`: the model's context, or what the cache holds if that is
    /// less. It may be above the context of an encoder with positions by distance (T5), which reads prompts of any length.
    pub max_model_len: Option<usize>,
    /// Memory budget on the device, bytes; `None`: the whole model is resident. Layers that do not fit are streamed,
    /// and the cache is then in host memory.
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

/// Sizes the cache by its memory, and lowers the context of `decoder` to what the settings allow.
///
/// # Errors
/// The reason, if the cache is too small for `max_model_len`, or for a block, or if the device is.
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
    // The cache holds the encoder's prompt followed by the answer.
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
    // Blocks of activations may be larger than those of keys and values.
    let held = plan.config.capacity.total().saturating_mul(block);
    if held < stated.unwrap_or(1).min(decoder.longest_prompt()) {
        return Err(too_few(held));
    }
    limit_context(decoder, held);
    Ok(plan.config)
}

/// Lowers the context of a decoder, and of its encoder.
fn limit_context(decoder: &mut Decoder, limit: usize) {
    decoder.model_config.context = decoder.model_config.context.min(limit);
    if let Some(encoder) = &mut decoder.encoder {
        encoder.context = encoder.context.min(limit);
    }
}

/// Returns the maximum of running requests: as many as the settings say, but recurrent states may take half of the cache's
/// memory, or all of it if no layer has keys and values. One request may take more than half.
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
