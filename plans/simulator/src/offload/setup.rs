//! How an engine is set up for a load: what stays on the device, what is cached as what, and in which mini-batches it runs.
//!
//! Every mode gets the setup that serves it best: of several numbers of resident layers and sizes of mini-batches, the one whose
//! mean step is simulated to be shortest, to half a percent. A baseline is thus as good as its schedule can be.

use serde::Serialize;
use thiserror::Error;

use super::Machine;
use super::shape::BadShape;
use kaskade_policy::hybrid_cache::BlockCounts;
use kaskade_policy::hybrid_cache::admission::Limits;
use kaskade_policy::hybrid_cache::allocation::{Memory, Split};
use kaskade_policy::hybrid_cache::blocks::Capacity;
use kaskade_policy::hybrid_cache::cost::{CostError, Costs};

/// Requests that come together, all alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Load {
    /// Number of requests.
    pub requests: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each answer.
    pub answer: usize,
    /// Tokens in a block.
    pub block_tokens: usize,
}

impl Load {
    /// Returns the tokens of a request, prompt and answer.
    pub fn total_tokens(&self) -> usize {
        self.prompt.saturating_add(self.answer)
    }

    /// Tokens in the middle of the answer.
    pub fn tokens_halfway(&self) -> usize {
        self.prompt + self.answer / 2
    }

    pub(super) fn blocks(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_tokens.max(1))
    }
}

/// Kind of cache and schedule of an engine. All but the first are baselines and ablations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The mixture of keys and values and activations whose step is shortest.
    Hybrid,
    /// Keys and values only: `FlexGen`'s schedule.
    Kv,
    /// Activations only: the paper's HybridServe-Act-Cache.
    Act,
    /// Only the tokens: every step computes everything again.
    Tokens,
    /// Keys and values on the device only, and no mini-batches, so that the device's memory bounds the batch: DeepSpeed-Inference.
    NoMiniBatches,
    /// One ACT block per KV block: hybrid caching without the policy (Figure 15).
    Even,
    /// The mixture that Algorithm 1 gives, assuming a full host.
    Algorithm1,
}

/// Device memory of an engine, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Arena {
    /// Weights that stay: layers and the head.
    pub resident: u64,
    /// Two buffers for the weights of streamed layers.
    pub weights: u64,
    /// Two buffers for blocks of one layer, and what KV Gen makes of a mini-batch's.
    pub blocks: u64,
    /// Hidden states between layers, and what a layer needs while it is computed.
    pub working: u64,
    /// The cache's own blocks, all layers.
    pub cache: u64,
}

impl Arena {
    /// Returns the sum of all parts.
    pub fn total(&self) -> u64 {
        self.resident + self.weights + self.blocks + self.working + self.cache
    }
}

/// An engine set up for a load.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Kind of cache and schedule.
    pub mode: Mode,
    /// Layers whose weights stay on the device, the last ones.
    pub resident_layers: usize,
    /// Requests of a mini-batch.
    pub mini_batch: usize,
    /// Tokens in a block.
    pub block_tokens: usize,
    /// Inputs of the costs.
    pub costs: Costs,
    /// The mixture in the middle of the answer.
    pub split: Split,
    /// Physical blocks, for requests at their longest.
    pub capacity: Capacity,
    /// Bounds of a mini-batch's loaded blocks (`#ACT_max`, `#KV_max`).
    pub bounds: BlockCounts,
    /// The admission limits.
    pub limits: Limits,
    /// Tokens that a mini-batch prefills.
    pub mini_batch_tokens: usize,
    /// Device memory.
    pub arena: Arena,
    /// Memory that blocks share.
    pub memory: Memory,
    /// A mean step that generates, simulated, seconds.
    pub step_s: f64,
    /// Number of requests divided by those that fit at a time, rounded up.
    pub waves: usize,
}

impl Setup {
    /// Time to generate one token for all requests, waiting ones included, seconds.
    pub(crate) fn token_s(&self) -> f64 {
        self.waves as f64 * self.step_s
    }

    /// Mini-batches of a step that all requests are in.
    pub fn mini_batches(&self) -> usize {
        self.limits.requests.div_ceil(self.mini_batch.max(1))
    }
}

/// Why an engine cannot be set up for a load.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SetupError {
    /// The shape is invalid.
    #[error(transparent)]
    Shape(#[from] BadShape),
    /// The load is empty.
    #[error("{what} is 0; a load has requests, a prompt, an answer and blocks of at least one token")]
    Nothing {
        /// The quantity that is 0.
        what: &'static str,
    },
    /// Prompt and answer are longer than the model's context.
    #[error(
        "{prompt} tokens of prompt and {answer} of answer exceed the context of {context}; shorten either"
    )]
    Context {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the answer.
        answer: usize,
        /// Context length of the model.
        context: usize,
    },
    /// Not even one request fits.
    #[error(
        "one request of {tokens} tokens does not fit a device of {device_bytes} bytes and a host of {host_bytes}: two layers' weights and the head \
         take {weights} of the device, all layers {model} of the host, the request {request}; give either more memory, or shorten the request"
    )]
    Memory {
        /// Tokens of the request.
        tokens: usize,
        /// The device's memory.
        device_bytes: u64,
        /// The host's.
        host_bytes: u64,
        /// Device memory that the weights need at least.
        weights: u64,
        /// Memory of all weights.
        model: u64,
        /// Memory of the request's keys and values.
        request: u64,
    },
    /// The hardware's figures are invalid.
    #[error("the hardware's figures give no costs")]
    Costs(#[from] CostError),
}

/// A setup with smaller mini-batches or fewer resident layers is taken if it saves more than this share of a step: for less, a device need
/// not read its weights more often.
const WORTH: f64 = 0.005;

impl Machine<'_> {
    /// The best setup of a mode for a load; where not all requests fit at a time, for as many as do. The hybrid is also offered
    /// its ends, so that it is never planned to be slower than either.
    ///
    /// # Errors
    /// [`SetupError`] for shapes and loads that are none, and where not even one request fits.
    pub fn setup(&self, load: &Load, mode: Mode) -> Result<Setup, SetupError> {
        self.check(load)?;
        let mut best = self.best_of(load, mode);
        if mode == Mode::Hybrid {
            for end in [Mode::Kv, Mode::Act] {
                if let Ok(setup) = self.best_of(load, end)
                    && best
                        .as_ref()
                        .map_or(true, |best| setup.token_s() < best.token_s())
                {
                    best = Ok(Setup { mode, ..setup });
                }
            }
        }
        best
    }

    fn best_of(&self, load: &Load, mode: Mode) -> Result<Setup, SetupError> {
        let at_once = self.most_at_once(load, mode)?;
        let mut best: Option<Setup> = None;
        for mut setup in self.candidates(load, mode, at_once)? {
            setup.step_s = self.mean_step_s(&setup, load);
            setup.waves = load.requests.div_ceil(at_once);
            if best
                .as_ref()
                .is_none_or(|best| setup.step_s < (1.0 - WORTH) * best.step_s)
            {
                best = Some(setup);
            }
        }
        best.ok_or_else(|| self.too_large(load))
    }

    fn check(&self, load: &Load) -> Result<(), SetupError> {
        self.shape.check()?;
        let parts = [
            ("the number of requests", load.requests),
            ("the prompt", load.prompt),
            ("the answer", load.answer),
            ("the size of a block", load.block_tokens),
        ];
        if let Some((what, _)) = parts.into_iter().find(|(_, value)| *value == 0) {
            return Err(SetupError::Nothing { what });
        }
        let (prompt, answer, context) = (load.prompt, load.answer, self.shape.context);
        if load.total_tokens() > context {
            return Err(SetupError::Context {
                prompt,
                answer,
                context,
            });
        }
        // Beyond this no memory is as large, and bytes would not fit 64 bits.
        let tokens = load.total_tokens().max(load.block_tokens) as f64 * load.requests as f64;
        let each = (self.shape.kv_bytes() + self.shape.act_bytes()) as f64 * self.shape.layers as f64;
        if tokens * each * 16.0 > u64::MAX as f64 {
            return Err(self.too_large(load));
        }
        Ok(())
    }

    /// Returns the most requests that fit at a time, by bisection: if some number fits, every smaller number does.
    fn most_at_once(&self, load: &Load, mode: Mode) -> Result<usize, SetupError> {
        let fits = |requests: usize| {
            let candidates = self.candidates(load, mode, requests)?;
            Ok::<_, SetupError>(!candidates.is_empty())
        };
        if fits(load.requests)? {
            return Ok(load.requests);
        }
        let (mut fit, mut too_many) = (0, load.requests);
        while too_many - fit > 1 {
            let middle = usize::midpoint(fit, too_many);
            if fits(middle)? {
                fit = middle;
            } else {
                too_many = middle;
            }
        }
        if fit == 0 {
            Err(self.too_large(load))
        } else {
            Ok(fit)
        }
    }

    fn too_large(&self, load: &Load) -> SetupError {
        let (shape, hardware) = (self.shape, self.hardware);
        SetupError::Memory {
            tokens: load.total_tokens(),
            device_bytes: hardware.device_bytes,
            host_bytes: hardware.host_bytes,
            weights: 2 * shape.layer_bytes() + shape.head_bytes(),
            model: shape.layer_bytes() * shape.layers as u64,
            request: load.total_tokens() as u64 * shape.kv_bytes() * shape.layers as u64,
        }
    }
}
