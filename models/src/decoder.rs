//! Configuration and weights of language models, and one file per architecture that reads them from a checkpoint.

pub(crate) mod alibi;
mod config_values;
pub(crate) mod experts;
pub(crate) mod families;
mod gated;
mod gated_layer;
mod head;
mod latent;
mod linear_weights;
pub(crate) mod model_config;
mod multimodal;
mod random;
pub(crate) mod recurrent;
pub(crate) mod registry;
pub(crate) mod rotary;
pub(crate) mod routing;
mod streams;
mod text_defaults;
mod token_inputs;
pub(crate) mod weights;
