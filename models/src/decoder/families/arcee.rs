//! Arcee AFM (Arcee AI 2025): Llama with an ungated feed-forward and squared ReLU.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::activation;
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        activation: activation(config, "hidden_act", "relu2")?,
        gated: false,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    let layout = Layout {
        up: &["mlp.up_proj"],
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
