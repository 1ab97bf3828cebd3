//! Configuration and weights of language models, and one file per architecture that reads them from a checkpoint.

mod config_values;
mod gpt2;
mod gptj;
mod llama;
mod opt;
pub(crate) mod registry;
pub(crate) mod t5;
pub(crate) mod weights;
