//! How an engine caches, streams and batches, and what memory that takes.

use kaskade_plans::hybrid_cache::{
    Capacity, Costs, Kind, Memory, Mix, Planned, Shares, Split, split_of, split_sure,
};
use thiserror::Error;

use super::block_cache::EntryWidths;
use crate::decoder::weights::{Decoder, ModelConfig};

/// What an engine keeps of the tokens it has computed. All but the first are baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// Keys and values of some, activations of others.
    #[default]
    Hybrid,
    /// Keys and values only: FlexGen's schedule.
    Kv,
    /// Activations only.
    Act,
    /// Nothing but the tokens: every step computes everything again.
    Tokens,
}

/// How an engine runs.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// What it caches.
    pub caching: Caching,
    /// What every request keeps to; its share of ACT blocks counts where caching is hybrid, and is 0 or 1 otherwise.
    pub shares: Shares,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Physical blocks.
    pub capacity: Capacity,
    /// Layers whose weights stay on the device, the last ones; the others are streamed, once per step. An encoder's layers count too, as
    /// the first, and are streamed in steps that prefill.
    pub resident_layers: usize,
    /// Bounds of a buffer for blocks that the link brings (`#ACT_max`, `#KV_max`); there are two.
    pub buffer: Mix,
    /// Whether steps go mini-batch by mini-batch. Without, an engine admits only what its buffers hold at once, as
    /// DeepSpeed-Inference does.
    pub mini_batches: bool,
    /// Most requests of a mini-batch.
    pub mini_batch_requests: usize,
    /// Tokens that a step prefills, more only if one request has more.
    pub prefill_tokens: usize,
    /// Of them, what a mini-batch prefills.
    pub mini_batch_tokens: usize,
    /// Requests that run at a time.
    pub requests: usize,
    /// What the device has for all of it, bytes; absent: as much as is needed.
    pub device_bytes: Option<u64>,
    /// Bandwidth of each direction of the link, bytes per second; absent: that of memory.
    pub link: Option<f64>,
    /// What the mixture was planned for and with which costs ([`Engine::measure`](super::Engine::measure)). With it, mini-batches are packed
    /// and steps predicted by these costs, which steps correct; a hybrid cache's blocks to come follow the corrected ones.
    pub planned: Option<Planned>,
}

/// What an engine takes on the device, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Weights that stay: layers, the last norm, the head.
    pub resident: u64,
    /// Two buffers for the weights of streamed layers.
    pub weights: u64,
    /// Two buffers for blocks of one layer.
    pub blocks: u64,
    /// The cache's own blocks, all layers.
    pub cache: u64,
}

impl DeviceMemory {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.resident + self.weights + self.blocks + self.cache
    }
}

/// The device has too little memory for what an engine was to keep on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the device's {budget} bytes do not hold {wanted}: resident weights {}, buffers for weights {}, buffers for blocks {}, cache {}; \
     stream more layers, or give it smaller buffers or fewer blocks", .device_memory.resident, .device_memory.weights, .device_memory.blocks, .device_memory.cache
)]
pub struct OutOfMemory {
    /// Bytes wanted.
    pub wanted: u64,
    /// Bytes there are.
    pub budget: u64,
    /// What for.
    pub device_memory: DeviceMemory,
}

impl EngineConfig {
    /// Everything on the device, as many blocks as `tokens` tokens take, keys and values only: for models that fit.
    pub fn resident(decoder: &Decoder, tokens: usize) -> Self {
        let block_tokens = 16;
        let blocks = tokens.div_ceil(block_tokens);
        Self {
            caching: Caching::Kv,
            shares: Shares::device_first(0.0),
            block_tokens,
            capacity: Capacity {
                device: Mix { act: 0, kv: blocks },
                host: Mix::default(),
            },
            resident_layers: decoder.depth(),
            buffer: Mix::default(),
            mini_batches: true,
            mini_batch_requests: usize::MAX,
            prefill_tokens: 8192,
            mini_batch_tokens: 512,
            requests: 256,
            device_bytes: None,
            link: None,
            planned: None,
        }
    }

    /// The shares that the caching comes to.
    pub fn effective_shares(&self) -> Shares {
        let act = match self.caching {
            Caching::Hybrid => self.shares.act,
            Caching::Act => 1.0,
            Caching::Kv | Caching::Tokens => 0.0,
        };
        Shares { act, ..self.shares }
    }

    /// Gives it the blocks of a split, and the share that goes with them. Blocks of either kind that are few are not the
    /// end of a request: `spare` blocks of host memory more are there for ratios that do not come out even.
    pub fn apply_split(&mut self, split: &Split, spare: usize) {
        let extra = |count: usize, kind_used: bool| if kind_used { count + spare } else { count };
        self.capacity = Capacity {
            device: split.device,
            host: Mix {
                act: extra(split.host.act, split.shares().act > 0.0),
                kv: extra(split.host.kv, split.shares().act < 1.0),
            },
        };
        self.shares = split.shares();
    }
}

/// The best mixture of `blocks` blocks for a kind of caching: the search for the hybrid, the ends for the others.
pub fn split_for(caching: Caching, blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    match caching {
        Caching::Hybrid => split_sure(blocks, memory, costs),
        Caching::Kv => split_of(0, blocks, memory, costs),
        Caching::Act => split_of(blocks, blocks, memory, costs),
        Caching::Tokens => split_of(0, 0, memory, costs),
    }
}

/// Bytes of a block of a kind in all `layers` layers.
pub fn block_bytes(model_config: &ModelConfig, layers: usize, block_tokens: usize, kind: Kind) -> u64 {
    EntryWidths::new(model_config, block_tokens).block_bytes(kind) * layers as u64
}
