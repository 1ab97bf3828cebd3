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
//! | `engine`, `requests`, `step` | the engine's state, submission and cancellation, one step |
//! | `sequence`, `error` | state of a request in the engine; errors |
//! | `forward_pass`, `layer`, `host_layer` | a pass through all layers, and one layer, on the device and in host memory |
//! | `layer_context`, `linear_shape`, `experts` | what layers share; the shape of a linear layer in host memory; experts |
//! | `self_attention`, `recurrent` | what mixes the tokens in a layer, and the states of recurrences |
//! | `encoder`, `cross_attention` | the encoder of an encoder-decoder, and the decoder's attention to it |
//! | `block_cache`, `cached_context` | storage of blocks, and the cached tokens of a mini-batch |
//! | `transfer`, `link` | the transfer thread, and the link to the device, which can be throttled on the CPU |
//! | [`config`], `memory_plan`, `cost_sampling` | configuration, planning it from memory limits, and measuring costs |
//! | `answers` | the tokens, texts and ends of answers |
//! | `beam_options`, `beam_search`, `beams` | beam search: its parameters, which answers are continued, their sequences and blocks |
//! | `sampling`, `sampling_options`, `penalties`, `draw` | the next token, and its parameters |
//! | `grammar` | grammars that answers must match |
//! | `token_rules` | tokens that a checkpoint allows or forces |
//! | `prompt_logprobs` | probabilities of the tokens of a prompt |
//! | `detokenizer` | tokens as text |
//! | `output_head` | the projection to logits, which may hold the embedding |
//! | `streams` | streams beside the hidden vectors |
//! | `token_layers` | what tokens bring for each layer |
//! | `partition` | a partition of a decoder's layers, for models over several workers |

mod answers;
mod beam_options;
mod beam_search;
mod beams;
mod block_cache;
mod cached_context;
pub mod config;
mod cost_sampling;
mod cross_attention;
pub(crate) mod detokenizer;
mod draw;
mod encoder;
mod engine;
mod error;
mod experts;
#[cfg(test)]
pub(crate) mod fixtures;
mod forward_pass;
pub(crate) mod grammar;
mod host_layer;
mod layer;
mod layer_context;
mod linear_shape;
mod link;
mod memory_plan;
mod output_head;
pub(crate) mod partition;
mod penalties;
mod prompt_logprobs;
mod recurrent;
mod requests;
pub(crate) mod sampling;
mod sampling_options;
mod self_attention;
mod sequence;
mod step;
mod streams;
mod token_layers;
mod token_rules;
mod transfer;

pub use crate::checkpoint::EarlyStopping;
pub use crate::decoder::model_config::ModelConfig;
pub use crate::decoder::registry::{architecture, read_decoder};
pub use crate::decoder::weights::Decoder;
pub use crate::ops::cpu::Cpu;
pub use beam_options::BeamOptions;
pub use config::{Caching, DeviceMemory, EngineConfig, OutOfMemory};
pub use cost_sampling::{MeasuredCosts, Workload};
pub use detokenizer::tokenizer_of;
pub use engine::{Engine, Event, FinishReason, StepReport};
pub use error::EngineError;
pub use grammar::Grammar;
pub use kaskade_policy::hybrid_cache::Traffic;
pub use memory_plan::{MemoryLimits, MemoryPlan};
pub use prompt_logprobs::PromptToken;
pub use sampling::{MAX_TOP_LOGPROBS, SampledToken, Sampling, SamplingError};
pub use sampling_options::SamplingOptions;
pub use tokenizers::Tokenizer;

#[cfg(test)]
mod tests;
