//! `StarCoder2` (Lozhkov et al. 2024): layer norms with bias, biases, an ungated feed-forward.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::{activation, epsilon};
use crate::decoder::gated::{self, Layout, NormKind};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = gated::windows(config, |_| true)?;
    let model_config = ModelConfig {
        epsilon: epsilon(config, "norm_epsilon", 1e-5)?,
        activation: activation(config, "hidden_act", "gelu_pytorch_tanh")?,
        gated: false,
        local,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let bias = config.optional("use_bias")?.unwrap_or(true);
    let layout = Layout {
        qkv_bias: bias,
        output_bias: bias,
        feed_forward_bias: bias,
        up: &["mlp.c_fc"],
        down: "mlp.c_proj",
        norms: NormKind::Layer,
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
