//! The engine for language models: a paged hybrid cache of keys and values and of activations, on the device and in
//! host memory, with resident or streamed weights (HybridServe, KAIST).
//!
//! [`Engine::submit`] accepts a request, [`Engine::step`] generates one token per running request, [`Engine::cancel`]
//! ends a request at the next step. A step runs layer by layer and, within a layer, mini-batch by mini-batch, so that
//! each layer's weights are loaded once; meanwhile the transfer thread loads what comes next.
//! [`kaskade_policy::hybrid_cache`] decides what is cached in which form, which requests run and how mini-batches are
//! packed.
//!
//! | module | holds |
//! |---|---|
//! | [`config`], `memory_plan`, `cost_sampling` | configuration, planning it from memory limits, and measuring costs |
//! | `engine`, `requests`, `step` | the engine's state, submission and cancellation, one step |
//! | `sequence`, `answers`, `beams` | state of a request; the tokens, texts and finish reasons of answers; the sequences of beam searches |
//! | `forward_pass`, `partition` | a pass through all layers; a partition of the layers, for models over several workers |
//! | `prompt_logprobs` | log probabilities of the tokens of a prompt |
//! | `cache` | blocks of the cache, their storage and their transfer between host memory and device |
//! | `layers` | the layers on the device and in host memory |
//! | `sampling` | choice of the next token: probabilities, penalties, grammars, beam search |
//! | `detokenizer` | conversion of tokens to text |
//! | `error` | errors of the engine |

mod answers;
mod beams;
mod cache;
pub mod config;
mod cost_sampling;
pub(crate) mod detokenizer;
mod engine;
mod error;
#[cfg(test)]
pub(crate) mod fixtures;
mod forward_pass;
pub(crate) mod layers;
mod memory_plan;
pub(crate) mod partition;
mod prompt_logprobs;
mod requests;
pub(crate) mod sampling;
mod sequence;
mod step;

pub use crate::checkpoint::EarlyStopping;
pub use crate::decoder::model_config::ModelConfig;
pub use crate::decoder::registry::{architecture, read_decoder};
pub use crate::decoder::weights::Decoder;
pub use crate::ops::cpu::Cpu;
pub use config::{Caching, DeviceMemory, EngineConfig, OutOfMemory};
pub use cost_sampling::{MeasuredCosts, Workload};
pub use detokenizer::tokenizer_of;
pub use engine::{Engine, Event, FinishReason, StepReport};
pub use error::EngineError;
pub use kaskade_policy::hybrid_cache::Traffic;
pub use memory_plan::{MemoryLimits, MemoryPlan};
pub use prompt_logprobs::PromptToken;
pub use sampling::beam_options::BeamOptions;
pub use sampling::grammar::Grammar;
pub use sampling::sampling_options::SamplingOptions;
pub use sampling::{MAX_TOP_LOGPROBS, SampledToken, Sampling, SamplingError};
pub use tokenizers::Tokenizer;

#[cfg(test)]
mod tests;
