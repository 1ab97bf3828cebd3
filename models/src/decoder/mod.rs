//! Configuration and weights of language models, and one file per architecture that reads them from a checkpoint.

mod config_values;
mod gated;
mod gemma;
mod gpt2;
mod gpt_neox;
mod gptj;
mod linear_weights;
mod llama;
mod mistral;
pub(crate) mod model_config;
mod opt;
mod phi3;
mod qwen;
pub(crate) mod registry;
mod rotary;
pub(crate) mod t5;
pub(crate) mod weights;
