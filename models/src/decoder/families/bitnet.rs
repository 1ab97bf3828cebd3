//! `BitNet` b1.58 (Ma et al. 2024, 2025): Llama with squared ReLU, and norms before the output and down projections.
//! Published weights are ternary ([`crate::checkpoint`] decodes them); activations are computed unquantised.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::activation;
use crate::decoder::gated::{self, Extra, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let keys = RotaryKeys {
        theta: 500_000.0,
        ..RotaryKeys::LLAMA
    };
    let model_config = ModelConfig {
        activation: activation(config, "hidden_act", "relu2")?,
        ..gated::model_config(config, keys)?
    };
    let layout = Layout {
        extra: Extra::InnerNorms,
        feed_forward_bias: false,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
