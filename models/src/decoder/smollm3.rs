//! `SmolLM3` (Hugging Face 2025): Llama of which every fourth layer has no positions.

use super::config_values::require;
use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, LocalAttention, ModelConfig};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let window = "layers that see a window only are not supported";
    require(config, "use_sliding_window", false, window)?;
    let keys = RotaryKeys {
        theta: 2e6,
        ..RotaryKeys::default()
    };
    let base = gated::model_config(config, keys)?;
    let layers = config.size("num_hidden_layers")?;
    let interval = config.optional_size("no_rope_layer_interval")?.unwrap_or(4);
    // 1 for a layer with positions.
    let key = "no_rope_layers";
    let rotated: Vec<bool> = match config.optional::<Vec<u8>>(key)? {
        None => (1..=layers)
            .map(|layer| !layer.is_multiple_of(interval))
            .collect(),
        Some(listed) if listed.len() < layers => {
            return Err(config.invalid_value(key, format!("it must have an entry for all {layers} layers")));
        }
        Some(listed) => listed.into_iter().map(|rotated| rotated != 0).collect(),
    };
    let model_config = ModelConfig {
        local: Some(LocalAttention {
            window: None,
            rotary: base.rotary,
        }),
        rotary: None,
        ..base
    };
    let layout = Layout {
        local_layers: rotated,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, slice, model_config, &layout)
}
