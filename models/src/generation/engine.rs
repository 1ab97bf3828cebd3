//! State of the engine, and its construction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kaskade_policy::hybrid_cache::{BlockSpace, Costs, Limits, Policy, Scheduler, Traffic};
use tokenizers::Tokenizer;

use super::config::{Caching, DeviceMemory, EngineConfig, OutOfMemory};
use super::prompt_logprobs::PromptToken;
use super::sampling::SampledToken;
use super::sequence::Sequence;
use crate::decoder::weights::{Decoder, LayerWeights, ModelConfig};
use crate::generation::cache::block_cache::{DeviceCache, EntryWidths, HostCache, LayerEntries};
use crate::generation::cache::link::Link;
use crate::generation::cache::transfer::Buffer;
use crate::generation::layers::encoder::DeviceEncoder;
use crate::generation::layers::host_layer::HostLayer;
use crate::generation::layers::layer::Layer;
use crate::generation::layers::layer_context::LayerContext;
use crate::generation::layers::output_head::OutputHead;
use crate::generation::layers::per_layer_embeddings::DeviceTokenLayers;
use crate::generation::layers::recurrent::state_sizes;
use crate::generation::layers::streams::DeviceProjections;
use crate::generation::sampling::beam_search::{BeamSearch, FIRST_BEAM};
use crate::generation::sampling::grammar::Grammars;
use crate::ops::{Ops, RelativeBias};

/// Result of a step for a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Request number.
    pub request: u64,
    /// The new token; `None` if the request was cancelled or failed, or is a beam search in progress.
    pub sampled: Option<SampledToken>,
    /// New text; empty without a tokenizer.
    pub text: String,
    /// The most probable tokens with their log probabilities, if the request asks for them.
    pub top_logprobs: Vec<(u32, f32)>,
    /// The prompt tokens except the first, if the request asks for them; only in its first event.
    pub prompt: Vec<PromptToken>,
    /// Why the answer is finished; `None` if it continues.
    pub finish_reason: Option<FinishReason>,
}

impl Event {
    /// Creates an event without a token.
    pub(super) fn without_token(request: u64) -> Self {
        Self {
            request,
            sampled: None,
            text: String::new(),
            top_logprobs: Vec::new(),
            prompt: Vec::new(),
            finish_reason: None,
        }
    }

    /// Creates the final event of a request, without a token.
    pub(super) fn ended(request: u64, reason: FinishReason) -> Self {
        Self {
            finish_reason: Some(reason),
            ..Self::without_token(request)
        }
    }
}

/// Why an answer is finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an EOS token.
    Token,
    /// A stop text was generated.
    Stop,
    /// The maximum number of tokens was reached.
    Length,
    /// The request was cancelled.
    Cancelled,
    /// The logits were not finite.
    NotFinite,
    /// Following the answer's grammar took too much time or memory.
    Grammar,
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepReport {
    /// Events of the requests that ran; the events of one request are adjacent. One event per request, or all tokens
    /// of the answer when a beam search ends.
    pub events: Vec<Event>,
    /// Requests that were prefilled.
    pub prefilled: usize,
    /// Requests that were preempted and wait again.
    pub preempted: usize,
    /// Mini-batches per layer.
    pub mini_batches: usize,
    /// Bytes transferred.
    pub traffic: Traffic,
    /// Wall time, seconds.
    pub wall_s: f64,
    /// Compute time of the engine's thread, without waiting for the link, seconds.
    pub compute_s: f64,
    /// Duration of transfers to the device, seconds.
    pub load_s: f64,
    /// Wall time that the policy predicted before the step, seconds; `None` for prefill steps and for engines without
    /// costs.
    pub predicted_s: Option<f64>,
}

/// Location of a layer's weights.
pub(super) enum LayerPlacement<M: Ops> {
    Resident(Layer<M>),
    Streamed(HostLayer),
}

impl<M: Ops> LayerPlacement<M> {
    /// Returns whether the layer has attention, and therefore a cache.
    pub(super) fn has_attention(&self) -> bool {
        match self {
            Self::Resident(layer) => layer.attention.is_some(),
            Self::Streamed(stored) => stored.has_attention(),
        }
    }
}

/// A model with its cache and its requests.
pub struct Engine<M: Ops> {
    pub(super) ops: M,
    /// The decoder without layers and head, and without an embedding that the head stores.
    pub(super) decoder: Decoder,
    /// Layers of the encoder, then of the decoder.
    pub(super) placements: Vec<LayerPlacement<M>>,
    pub(super) encoder: Option<DeviceEncoder<M>>,
    /// Per-layer embeddings, if there are any.
    pub(super) per_layer_embeddings: Option<DeviceTokenLayers<M>>,
    /// Projections from and to AltUp streams, if there are any.
    pub(super) streams: Option<DeviceProjections<M>>,
    /// Whether layers reuse keys and values of earlier ones.
    pub(super) reuses_kv: bool,
    /// Relative position bias of the decoder, if there is one.
    pub(super) position_bias: Option<M::Matrix>,
    /// The decoder's first layer, if it is streamed and was loaded at the end of the previous step.
    pub(super) prefetched: Option<Layer<M>>,
    pub(super) final_norm: M::Norm,
    pub(super) head: OutputHead<M>,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) grammars: Arc<Grammars>,
    pub(super) config: EngineConfig,
    pub(super) device_memory: DeviceMemory,
    pub(super) scheduler: Scheduler,
    /// Costs, as corrected by steps, if they were sampled.
    pub(super) policy: Option<Policy>,
    pub(super) space: BlockSpace,
    pub(super) host: HostCache,
    pub(super) device: DeviceCache<M>,
    /// Memory for transferred blocks.
    pub(super) buffers: Vec<Buffer>,
    /// Links to the device, and from it.
    pub(super) links: [Arc<Link>; 2],
    /// Sequences by number. Numbers of beams differ from those of requests.
    pub(super) sequences: BTreeMap<u64, Sequence>,
    /// Beam searches by request number.
    pub(super) searches: BTreeMap<u64, BeamSearch>,
    /// Sequence number of the next beam.
    pub(super) next_beam: u64,
    /// Sizes of the recurrent states of the decoder's layers, elements; empty if no layer has a recurrence.
    pub(super) state_sizes: Vec<usize>,
    pub(super) cancelled: BTreeSet<u64>,
}

impl<M: Ops> Engine<M> {
    /// Returns the grammar compiler, which other threads may use.
    pub(crate) fn grammars(&self) -> Arc<Grammars> {
        Arc::clone(&self.grammars)
    }

    /// Creates an engine for a model. With a tokenizer, the engine also returns the text of answers.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the configuration exceeds the device memory budget.
    pub fn new(
        ops: M,
        mut decoder: Decoder,
        tokenizer: Option<Tokenizer>,
        config: EngineConfig,
    ) -> Result<Self, OutOfMemory> {
        let epsilon = decoder.model_config.epsilon;
        let layers = std::mem::take(&mut decoder.layers);
        let state_sizes = state_sizes(&layers);
        let cached: Vec<bool> = layers.iter().map(LayerWeights::has_attention).collect();
        let count = layers.len();
        let entries: Vec<LayerEntries> = layers.iter().map(LayerEntries::from).collect();
        let reuses_kv = layers.iter().any(|layer| layer.reuses_kv);
        let mut encoder = decoder.encoder.take();
        let read = encoder
            .as_mut()
            .map(|encoder| std::mem::take(&mut encoder.layers));
        let read = read.unwrap_or_default();
        let encoder = encoder.map(|encoder| DeviceEncoder::new(&ops, encoder, read.len(), epsilon));
        let streamed = (read.len() + count).saturating_sub(config.resident_layers);
        let kind = decoder.weight_type;
        let stored = |weights| HostLayer::new(&ops, weights, epsilon, kind);
        let mut device_memory = DeviceMemory::of(&decoder.model_config, &cached, &config);
        let layers = read.into_iter().chain(layers);
        let placements = layers.map(stored).enumerate().map(|(index, stored)| {
            if index < streamed {
                device_memory.weights = device_memory.weights.max(2 * stored.bytes());
                LayerPlacement::Streamed(stored.held(&ops))
            } else {
                device_memory.resident += stored.bytes();
                LayerPlacement::Resident(stored.resident(&ops))
            }
        });
        let placements: Vec<LayerPlacement<M>> = placements.collect();
        let head = OutputHead::take(&ops, &mut decoder);
        let per_layer_embeddings = decoder.per_layer_embeddings.take();
        let per_layer_embeddings =
            per_layer_embeddings.map(|layers| DeviceTokenLayers::new(&ops, layers, epsilon, kind));
        let position_bias = decoder.model_config.relative_bias.as_ref();
        let gains_bytes = position_bias.map_or(0, |position_bias| {
            size_of_val(position_bias.values.as_slice()) as u64
        });
        device_memory.resident += head.bytes + gains_bytes + encoder.as_ref().map_or(0, DeviceEncoder::bytes);
        let streams = decoder.streams.take();
        let streams = streams.map(|streams| DeviceProjections::new(&ops, streams, kind));
        device_memory.resident += streams.as_ref().map_or(0, |streams| streams.bytes);
        device_memory.resident += per_layer_embeddings.as_ref().map_or(0, |layers| layers.bytes);
        device_memory.check(config.device_bytes)?;
        let norm = decoder.final_norm.clone();
        let widths = EntryWidths::new(&decoder.model_config, config.block_tokens.max(1));
        let link = || Arc::new(Link::new(config.link));
        let upload =
            |position_bias: &RelativeBias| ops.upload(position_bias.values.clone(), position_bias.width());
        Ok(Self {
            position_bias: position_bias.map(upload),
            per_layer_embeddings,
            streams,
            reuses_kv,
            final_norm: ops.norm(norm.gamma, norm.beta, epsilon),
            head,
            prefetched: None,
            placements,
            tokenizer,
            grammars: Arc::new(Grammars::new(
                decoder.model_config.vocabulary,
                decoder.model_config.eos_token_ids.clone(),
            )),
            device_memory,
            scheduler: Scheduler::new(limits(
                held_context(&decoder.model_config, encoder.as_ref()),
                &config,
            )),
            encoder,
            policy: config.planned.map(Policy::new),
            space: space(&config),
            host: HostCache::new(&entries, config.capacity, widths),
            device: DeviceCache::new(&entries, config.capacity, widths),
            buffers: Vec::new(),
            links: [link(), link()],
            sequences: BTreeMap::new(),
            searches: BTreeMap::new(),
            next_beam: FIRST_BEAM,
            state_sizes,
            cancelled: BTreeSet::new(),
            decoder,
            config,
            ops,
        })
    }

    /// Returns the model's configuration.
    pub fn model_config(&self) -> &ModelConfig {
        &self.decoder.model_config
    }

    /// Returns the number of the decoder's layers.
    pub fn layers(&self) -> usize {
        self.placements.len() - self.encoder.as_ref().map_or(0, |encoder| encoder.layers)
    }

    pub(super) fn ctx(&self) -> LayerContext<'_, M> {
        LayerContext {
            ops: &self.ops,
            model_config: &self.decoder.model_config,
            position_bias: self.position_bias.as_ref(),
            token_input: None,
        }
    }

    /// Returns the maximum prompt length, tokens; for a decoder, the answer counts towards it.
    pub(crate) fn longest_prompt(&self) -> usize {
        self.encoder
            .as_ref()
            .map_or(self.model_config().context, |encoder| encoder.context)
    }

    /// Returns whether an answer continues the prompt, which is not the case for an encoder-decoder.
    pub(crate) fn continues_prompt(&self) -> bool {
        self.encoder.is_none()
    }

    /// Returns the maximum answer length for `beams` beams and a prompt of `prompt` tokens; 0 if the prompt is too
    /// long.
    pub(crate) fn longest_answer(&self, prompt: usize, beams: usize) -> usize {
        // An encoder-decoder's answer has a start token, but its last token is not cached.
        let first = usize::from(self.encoder.is_some());
        let held = self.scheduler.longest_answer(beams, prompt + first, &self.space);
        (held + first).min(self.model_config().context)
    }

    /// Returns the engine's configuration.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Returns the costs of a step, as sampled and corrected by later steps; `None` without samples.
    pub fn costs(&self) -> Option<Costs> {
        self.policy.as_ref().map(Policy::costs)
    }

    /// Returns the engine's device memory.
    pub fn device_memory(&self) -> DeviceMemory {
        self.device_memory
    }

    /// Returns the bytes of weights that are streamed per decode step. Prefill steps also stream those of an encoder.
    pub fn streamed_bytes(&self) -> u64 {
        let decoder = self.placements.iter().rev().take(self.layers());
        decoder
            .map(|placement| match placement {
                LayerPlacement::Streamed(stored) => stored.bytes(),
                LayerPlacement::Resident(_) => 0,
            })
            .sum()
    }

    /// Returns the bytes of the largest streamed layer.
    pub(super) fn largest_layer_bytes(&self) -> u64 {
        let streamed = self.placements.iter().map(|placement| match placement {
            LayerPlacement::Streamed(stored) => stored.bytes(),
            LayerPlacement::Resident(_) => 0,
        });
        streamed.max().unwrap_or_default()
    }

    /// Returns the bytes of the head, which decoding reads once per step in addition to the layers.
    pub fn head_bytes(&self) -> u64 {
        self.head.bytes
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Sets the link's bandwidth in both directions, bytes per second.
    pub fn throttle(&self, bandwidth: Option<f64>) {
        for link in &self.links {
            link.throttle(bandwidth);
        }
    }

    /// Returns the numbers of free and of all blocks.
    pub fn blocks(&self) -> (usize, usize) {
        (self.space.free(), self.space.capacity().total())
    }

    /// Returns the numbers of waiting and of running requests.
    pub fn counts(&self) -> (usize, usize) {
        self.scheduler.counts()
    }

    /// Returns whether there are no requests.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }
}

impl DeviceMemory {
    /// Counts buffers and cache blocks; weights are added when they are placed. `cached` states which layers have
    /// blocks.
    fn of(model_config: &ModelConfig, cached: &[bool], config: &EngineConfig) -> Self {
        use kaskade_policy::hybrid_cache::{BlockCounts, Kind};
        let layers = cached.iter().filter(|cached| **cached).count();
        let widths = EntryWidths::new(model_config, config.block_tokens.max(1));
        let bytes = |mix: BlockCounts| {
            mix.act as u64 * widths.block_bytes(Kind::Act) + mix.kv as u64 * widths.block_bytes(Kind::Kv)
        };
        Self {
            resident: 0,
            weights: 0,
            blocks: 2 * bytes(config.buffer),
            cache: layers as u64 * bytes(config.capacity.device),
        }
    }

    fn check(&self, budget: Option<u64>) -> Result<(), OutOfMemory> {
        match budget {
            Some(budget) if self.total() > budget => Err(OutOfMemory {
                required: self.total(),
                budget,
                device_memory: *self,
            }),
            _ => Ok(()),
        }
    }
}

pub(super) fn space(config: &EngineConfig) -> BlockSpace {
    match config.caching {
        Caching::Tokens => BlockSpace::without_cache(),
        _ => BlockSpace::new(config.block_tokens, config.capacity, config.effective_shares()),
    }
}

/// Returns the maximum number of cached tokens per request: the decoder's context plus the encoder's prompt.
pub(super) fn held_context<M: Ops>(model_config: &ModelConfig, encoder: Option<&DeviceEncoder<M>>) -> usize {
    let source = encoder.map_or(0, |encoder| encoder.context);
    model_config.context.saturating_add(source)
}

/// Returns the scheduler's limits for requests of at most `context` tokens.
pub(super) fn limits(context: usize, config: &EngineConfig) -> Limits {
    let share = config.effective_shares().act;
    // A request fits if the buffer of each kind has room for that kind's share of its blocks.
    let fits = |blocks: usize, share: f64| {
        if share > 0.0 {
            (blocks as f64 / share) as usize
        } else {
            usize::MAX
        }
    };
    let at_once = fits(config.buffer.act, share).min(fits(config.buffer.kv, 1.0 - share));
    Limits {
        context,
        requests: config.requests,
        prefill_tokens: config.prefill_tokens,
        blocks_at_once: (!config.mini_batches).then_some(at_once),
    }
}
