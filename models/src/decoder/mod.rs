//! Decoders of language models: their weights, and how each architecture's checkpoint is read.

mod config_values;
mod gpt2;
mod gptj;
mod llama;
mod opt;
pub mod registry;
mod t5;
pub mod weights;
