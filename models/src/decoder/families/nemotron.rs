//! Nemotron 4 and Minitron (Parmar et al. 2024): layer norms whose weights are stored minus 1, squared ReLU, rotary
//! positions over a part of a head.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, epsilon};
use crate::decoder::gated::{self, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let keys = RotaryKeys {
        partial: 0.5,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        epsilon: epsilon(config, "norm_eps", 1e-5)?,
        activation: activation(config, "hidden_act", "relu2")?,
        gated: false,
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        up: &["mlp.up_proj"],
        norms: NormKind::Layer,
        norm_offset: 1.0,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}

/// Reads Jais 2 (Inception et al. 2025): the same feed-forward, plain layer norms, and rotary positions over whole
/// heads.
pub(super) fn read_jais(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        epsilon: epsilon(config, "layer_norm_eps", 1e-5)?,
        activation: activation(config, "hidden_act", "relu2")?,
        gated: false,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    let biased = |key: &str| config.optional::<bool>(key);
    let attention_bias = biased("attention_bias")?.unwrap_or(true);
    let layout = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        feed_forward_bias: biased("mlp_bias")?.unwrap_or(true),
        up: &["mlp.up_proj"],
        norms: NormKind::Layer,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
