//! The engine for language models: a cache of keys and values and of activations, paged, on the device and in the host's memory, with
//! weights resident or streamed (HybridServe, KAIST).
//!
//! [`Engine::submit`] takes a request, [`Engine::step`] makes a token for each that runs, [`Engine::cancel`] ends one at the next step.
//! A step goes layer by layer and, within a layer, mini-batch by mini-batch, so that each layer's weights are loaded
//! once; meanwhile a second thread copies what comes next. What to keep as what, who runs and how requests are packed is decided by
//! [`kaskade_plans::hybrid_cache`].
//!
//! | module | holds |
//! |---|---|
//! | [`ops`] | what a device computes, behind a trait |
//! | [`host`] | the processor: products whose bits do not depend on the batch |
//! | [`burned`] | any device of burn's |
//! | [`model`] | a model's extents and weights |
//! | [`families`] | GPT-2, OPT, Llama, GPT-J and T5 out of Hugging Face directories |
//! | `encoder`, `cross` | what reads an encoder-decoder's prompts, and how its decoder attends to them |
//! | [`config`] | what to cache and stream, and what memory that takes |
//! | [`fitting`] | a configuration for the memory that there is |
//! | [`sampling`], [`text`] | the next token, and tokens as text |
//! | [`link`] | the link, throttled where it is not real |

mod block_cache;
mod cached_context;
pub mod config;
mod cost_sampling;
mod cross_attention;
pub(crate) mod detokenizer;
mod encoder;
mod engine;
mod error;
#[cfg(test)]
mod fixtures;
mod forward_pass;
mod layer;
mod link;
mod memory_plan;
mod requests;
pub(crate) mod sampling;
mod sequence;
pub(crate) mod slice;
mod step;
mod transfer;

pub use crate::decoder::registry::read_decoder;
pub use crate::decoder::weights::{Decoder, ModelConfig};
pub use crate::ops::cpu::Cpu;
pub use config::{Caching, DeviceMemory, EngineConfig, OutOfMemory};
pub use cost_sampling::{MeasuredCosts, Workload};
pub use detokenizer::tokenizer_of;
pub use engine::{Engine, Event, FinishReason, StepReport};
pub use error::EngineError;
pub use memory_plan::{MemoryLimits, MemoryPlan};
pub use sampling::{SampledToken, Sampling, SamplingError};
pub use transfer::Traffic;

#[cfg(test)]
mod burn_tests;
#[cfg(test)]
mod encoder_tests;
#[cfg(test)]
mod learning_tests;
#[cfg(test)]
mod tests;
