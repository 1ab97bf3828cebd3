//! The engine and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kaskade_plans::hybrid_cache::{BlockSpace, Costs, Limits, Policy, Scheduler};
use tokenizers::Tokenizer;

use super::block_cache::{DeviceCache, HostCache, Widths};
use super::config::{Arena, Caching, EngineConfig, OutOfMemory};
use super::encoder::Reader;
use super::layer::{Layer, Means, Stored};
use super::link::Link;
use super::sampling::Choice;
use super::sequence::Sequence;
use super::transfer::{Buffer, Traffic};
use crate::decoder::weights::{Decoder, Spec};
use crate::ops::{Math, Relative};

/// What became of a request in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The request.
    pub request: u64,
    /// Its new token; absent for one that was cancelled or failed.
    pub choice: Option<Choice>,
    /// Text that is certain now; empty without a tokenizer.
    pub text: String,
    /// Why it ended, if it did.
    pub end: Option<End>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The model ended it.
    Token,
    /// A stop text came.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
    /// It was cancelled.
    Cancelled,
    /// Logits were not finite, so there is no token.
    NotFinite,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// What became of whom.
    pub events: Vec<Event>,
    /// Requests whose whole context was computed.
    pub prefilled: usize,
    /// Requests that were driven out and wait again.
    pub preempted: usize,
    /// Mini-batches per layer.
    pub mini_batches: usize,
    /// What the link carried.
    pub traffic: Traffic,
    /// Wall time, seconds.
    pub wall_s: f64,
    /// Of it, time that the computing thread computed and did not wait for the link, seconds.
    pub compute_s: f64,
    /// Time that the link carried to the device, seconds.
    pub load_s: f64,
    /// What the policy predicted of the wall time before the step, seconds; absent for steps that prefill and for engines without costs.
    pub predicted_s: Option<f64>,
}

/// A layer's home.
pub(super) enum Home<M: Math> {
    Resident(Layer<M>),
    Streamed(Stored),
}

/// An engine: a model, its cache, and the requests in hand.
pub struct Engine<M: Math> {
    pub(super) math: M,
    /// Embeddings; its layers and its head are taken out.
    pub(super) decoder: Decoder,
    /// Of the encoder's layers, and then the decoder's.
    pub(super) homes: Vec<Home<M>>,
    pub(super) reader: Option<Reader<M>>,
    /// What the decoder's scores gain by distance, where positions are relative.
    pub(super) gains: Option<M::Matrix>,
    /// The decoder's first layer, where it is streamed and came at the end of the step before.
    pub(super) ahead: Option<Layer<M>>,
    pub(super) final_norm: M::Norm,
    pub(super) head: M::Linear,
    pub(super) head_bytes: u64,
    pub(super) tokenizer: Option<Tokenizer>,
    pub(super) config: EngineConfig,
    pub(super) arena: Arena,
    pub(super) scheduler: Scheduler,
    /// What steps have taught of costs, where some were sampled.
    pub(super) policy: Option<Policy>,
    pub(super) space: BlockSpace,
    pub(super) host: HostCache,
    pub(super) device: DeviceCache<M>,
    /// Memory for blocks on their way.
    pub(super) buffers: Vec<Buffer>,
    /// To the device, and back.
    pub(super) links: [Arc<Link>; 2],
    pub(super) sequences: BTreeMap<u64, Sequence>,
    pub(super) cancelled: BTreeSet<u64>,
}

impl<M: Math> Engine<M> {
    /// An engine for a model. The tokenizer, if there is one, makes texts of answers.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the device's budget does not hold what the configuration keeps on it.
    pub fn new(
        math: M,
        mut decoder: Decoder,
        tokenizer: Option<Tokenizer>,
        config: EngineConfig,
    ) -> Result<Self, OutOfMemory> {
        let epsilon = decoder.spec.epsilon;
        let layers = std::mem::take(&mut decoder.layers);
        let count = layers.len();
        let mut encoder = decoder.encoder.take();
        let read = encoder
            .as_mut()
            .map(|encoder| std::mem::take(&mut encoder.layers));
        let read = read.unwrap_or_default();
        let reader = encoder.map(|encoder| Reader::new(&math, encoder, read.len(), epsilon));
        let streamed = (read.len() + count).saturating_sub(config.resident_layers);
        let stored = |weights| Stored::new(&math, weights, epsilon);
        let mut arena = Arena::of(&decoder.spec, count, &config);
        let layers = read.into_iter().chain(layers);
        let homes = layers.map(stored).enumerate().map(|(index, stored)| {
            if index < streamed {
                arena.weights = arena.weights.max(2 * stored.bytes());
                Home::Streamed(stored)
            } else {
                arena.resident += stored.bytes();
                Home::Resident(stored.resident(&math))
            }
        });
        let homes: Vec<Home<M>> = homes.collect();
        let head = std::mem::take(&mut decoder.head);
        let prepared = math.prepare(head.weight, head.inputs, head.outputs);
        let head_bytes = (size_of_val(prepared.as_slice()) + size_of_val(head.bias.as_slice())) as u64;
        let gains = decoder.spec.relative.as_ref();
        let gains_bytes = gains.map_or(0, |gains| size_of_val(gains.gains.as_slice()) as u64);
        arena.resident += head_bytes + gains_bytes + reader.as_ref().map_or(0, Reader::bytes);
        arena.check(config.device_bytes)?;
        let norm = decoder.final_norm.clone();
        let widths = Widths::new(&decoder.spec, config.block_tokens.max(1));
        let link = || Arc::new(Link::new(config.link));
        let upload = |gains: &Relative| math.upload(gains.gains.clone(), gains.width());
        Ok(Self {
            gains: gains.map(upload),
            reader,
            final_norm: math.norm(norm.gamma, norm.beta, epsilon),
            head: math.linear(prepared, head.bias, head.inputs, head.outputs),
            head_bytes,
            ahead: None,
            homes,
            tokenizer,
            arena,
            scheduler: Scheduler::new(limits(&decoder.spec, &config)),
            policy: config.planned.map(Policy::new),
            space: space(&config),
            host: HostCache::new(count, config.capacity, widths),
            device: DeviceCache::new(count, config.capacity, widths),
            buffers: Vec::new(),
            links: [link(), link()],
            sequences: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            decoder,
            config,
            math,
        })
    }

    /// The model's extents.
    pub fn spec(&self) -> &Spec {
        &self.decoder.spec
    }

    /// Number of the decoder's layers, which are those that the cache has.
    pub fn layers(&self) -> usize {
        self.homes.len() - self.reader.as_ref().map_or(0, |reader| reader.layers)
    }

    pub(super) fn means(&self) -> Means<'_, M> {
        Means {
            math: &self.math,
            spec: &self.decoder.spec,
            gains: self.gains.as_ref(),
        }
    }

    /// Most tokens of a prompt; a decoder's answer counts towards them too.
    pub fn longest_prompt(&self) -> usize {
        self.reader
            .as_ref()
            .map_or(self.spec().context, |reader| reader.context)
    }

    /// How it runs.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What a step costs, as sampled and corrected by the steps since; absent where nothing was sampled.
    pub fn costs(&self) -> Option<Costs> {
        self.policy.as_ref().map(Policy::costs)
    }

    /// What it takes on the device.
    pub fn arena(&self) -> Arena {
        self.arena
    }

    /// Weights that are streamed per step, bytes. Those of an encoder come on top in steps that prefill.
    pub fn streamed_bytes(&self) -> u64 {
        let decoder = self.homes.iter().rev().take(self.layers());
        decoder
            .map(|home| match home {
                Home::Streamed(stored) => stored.bytes(),
                Home::Resident(_) => 0,
            })
            .sum()
    }

    /// Bytes of the head's weight: what decoding reads once a step beside the layers.
    pub fn head_bytes(&self) -> u64 {
        self.head_bytes
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// Changes the link's bandwidth in both directions, bytes per second.
    pub fn throttle(&self, bandwidth: Option<f64>) {
        for link in &self.links {
            link.throttle(bandwidth);
        }
    }

    /// Free blocks, and all there are.
    pub fn blocks(&self) -> (usize, usize) {
        (self.space.free(), self.space.capacity().total())
    }

    /// Requests that wait and that run.
    pub fn counts(&self) -> (usize, usize) {
        self.scheduler.counts()
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }
}

impl Arena {
    /// Buffers and blocks; weights are added as they are placed.
    fn of(spec: &Spec, layers: usize, config: &EngineConfig) -> Self {
        use kaskade_plans::hybrid_cache::{Kind, Mix};
        let widths = Widths::new(spec, config.block_tokens.max(1));
        let bytes = |mix: Mix| {
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
                wanted: self.total(),
                budget,
                arena: *self,
            }),
            _ => Ok(()),
        }
    }
}

fn space(config: &EngineConfig) -> BlockSpace {
    match config.caching {
        Caching::Tokens => BlockSpace::without_cache(),
        _ => BlockSpace::new(config.block_tokens, config.capacity, config.kept()),
    }
}

fn limits(spec: &Spec, config: &EngineConfig) -> Limits {
    let share = config.kept().act;
    // A request of any ratio fits as many blocks as either kind's buffer allows for its share.
    let fits = |blocks: usize, share: f64| {
        if share > 0.0 {
            (blocks as f64 / share) as usize
        } else {
            usize::MAX
        }
    };
    let at_once = fits(config.buffer.act, share).min(fits(config.buffer.kv, 1.0 - share));
    Limits {
        context: spec.context,
        requests: config.requests,
        prefill_tokens: config.prefill_tokens,
        blocks_at_once: (!config.mini_batches).then_some(at_once),
    }
}
