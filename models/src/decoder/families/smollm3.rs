//! `SmolLM3` (Hugging Face 2025): Llama without positions in every fourth layer.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::config_values::require;
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::{Decoder, LocalAttention, ModelConfig};

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let window = "layers that see a window only are not supported";
    require(config, "use_sliding_window", false, window)?;
    let keys = RotaryKeys {
        theta: 2e6,
        ..RotaryKeys::default()
    };
    let base = gated::model_config(config, keys)?;
    let model_config = ModelConfig {
        local: Some(LocalAttention {
            window: None,
            rotary: base.rotary,
        }),
        rotary: None,
        ..base
    };
    let layout = Layout {
        local_layers: gated::rotated_layers(config)?,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
