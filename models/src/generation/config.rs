//! Configuration of an engine: caching, streaming, batching, and the memory that they require.

use kaskade_policy::hybrid_cache::{
    BlockCounts, Capacity, Costs, Kind, Memory, Planned, Shares, Split, split_of, split_sure,
};
use thiserror::Error;

use crate::decoder::weights::{Decoder, ModelConfig};
use crate::generation::cache::block_cache::EntryWidths;

/// Form in which an engine caches tokens. All except [`Caching::Hybrid`] are baselines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Caching {
    /// Keys and values of some tokens, activations of the others.
    #[default]
    Hybrid,
    /// Keys and values only, as FlexGen does.
    Kv,
    /// Activations only.
    Act,
    /// Only token ids: every step recomputes everything.
    Tokens,
}

/// Configuration of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Form of the cache.
    pub caching: Caching,
    /// Fractions of block kinds and locations per request. The fraction of ACT blocks applies to the hybrid cache, and
    /// is 0 or 1 otherwise.
    pub shares: Shares,
    /// Tokens per block.
    pub block_tokens: usize,
    /// Number of physical blocks.
    pub capacity: Capacity,
    /// Number of resident layers, counted from the last, whose weights stay on the device; the others are streamed
    /// once per step. An encoder's layers count as the first ones, and are streamed only in prefill steps.
    pub resident_layers: usize,
    /// Size of each of the two buffers for transferred blocks (`#ACT_max`, `#KV_max`).
    pub buffer: BlockCounts,
    /// Whether a step is divided into mini-batches. Otherwise the engine admits only requests that fit its buffers at
    /// once, as DeepSpeed-Inference does.
    pub mini_batches: bool,
    /// Maximum requests per mini-batch.
    pub mini_batch_requests: usize,
    /// Maximum prefill tokens per step; a single request may exceed it.
    pub prefill_tokens: usize,
    /// Maximum prefill tokens per mini-batch.
    pub mini_batch_tokens: usize,
    /// Maximum running requests.
    pub requests: usize,
    /// Memory budget on the device, bytes; `None`: unlimited.
    pub device_bytes: Option<u64>,
    /// Bandwidth of the link in each direction, bytes per second; `None`: unthrottled.
    pub link: Option<f64>,
    /// Input of planning: costs ([`Engine::measure`](super::Engine::measure)), memory and blocks. If present, these
    /// costs determine the packing of mini-batches and the prediction of steps, and each step corrects them; new
    /// blocks of a hybrid cache follow the corrected costs.
    pub planned: Option<Planned>,
}

/// Device memory of an engine by use, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Resident weights: resident layers, final norm, head.
    pub resident: u64,
    /// Two buffers for the weights of streamed layers.
    pub weights: u64,
    /// Two buffers for blocks of one layer.
    pub blocks: u64,
    /// Cache blocks of all layers.
    pub cache: u64,
}

impl DeviceMemory {
    /// Returns the sum.
    pub fn total(&self) -> u64 {
        self.resident + self.weights + self.blocks + self.cache
    }
}

/// The device memory budget is too small for the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the device's {budget} bytes do not hold {required}: resident weights {}, buffers for weights {}, buffers for blocks {}, cache {}; \
     stream more layers, or give it smaller buffers or fewer blocks", .device_memory.resident, .device_memory.weights, .device_memory.blocks, .device_memory.cache
)]
pub struct OutOfMemory {
    /// Required bytes.
    pub required: u64,
    /// Available bytes.
    pub budget: u64,
    /// Required bytes by use.
    pub device_memory: DeviceMemory,
}

impl EngineConfig {
    /// Creates a configuration with everything on the device and KV blocks for `tokens` tokens, for models that fit.
    pub fn resident(decoder: &Decoder, tokens: usize) -> Self {
        let block_tokens = 16;
        let blocks = tokens.div_ceil(block_tokens);
        Self {
            caching: Caching::Kv,
            shares: Shares::device_first(0.0),
            block_tokens,
            capacity: Capacity {
                device: BlockCounts { act: 0, kv: blocks },
                host: BlockCounts::default(),
            },
            resident_layers: decoder.depth(),
            buffer: BlockCounts::default(),
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

    /// Returns the fractions with the ACT fraction that the form of caching implies.
    pub fn effective_shares(&self) -> Shares {
        let act = match self.caching {
            Caching::Hybrid => self.shares.act,
            Caching::Act => 1.0,
            Caching::Kv | Caching::Tokens => 0.0,
        };
        Shares { act, ..self.shares }
    }
}

/// Returns the best split of `blocks` blocks for a form of caching; only the hybrid cache requires a search.
pub fn split_for(caching: Caching, blocks: usize, memory: &Memory, costs: &Costs) -> Option<Split> {
    match caching {
        Caching::Hybrid => split_sure(blocks, memory, costs),
        Caching::Kv => split_of(0, blocks, memory, costs),
        Caching::Act => split_of(blocks, blocks, memory, costs),
        Caching::Tokens => split_of(0, 0, memory, costs),
    }
}

/// Returns the bytes of a block of a kind in all `layers` layers with attention.
pub fn block_bytes(model_config: &ModelConfig, layers: usize, block_tokens: usize, kind: Kind) -> u64 {
    EntryWidths::new(model_config, block_tokens).block_bytes(kind) * layers as u64
}
