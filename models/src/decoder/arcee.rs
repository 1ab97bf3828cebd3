//! Arcee AFM (Arcee AI 2025): Llama whose feed-forward layer has no gate and squared rectified linear units.

use kaskade_policy::plan::Partition;

use super::config_values::activation;
use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, ModelConfig};
use crate::checkpoint::{Checkpoint, LoadError};

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
