//! Decoders of language models: their weights, and how each architecture's checkpoint is read.

mod config_values;
mod gpt2;
mod gptj;
mod llama;
mod opt;
pub(crate) mod registry;
mod t5;
pub(crate) mod weights;
