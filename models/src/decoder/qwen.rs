//! Qwen 2, 2.5 and 3 (Yang et al. 2024, 2025): version 2 has biases in the projections to queries, keys and values,
//! version 3 normalises the heads of queries and keys.

use super::gated::{self, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, LocalAttention, ModelConfig, QueryKeyNorm};
use crate::checkpoint::{Checkpoint, Config, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read_2(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = windows(config)?;
    let model_config = ModelConfig {
        local,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let layout = Layout {
        qkv_bias: true,
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, slice, model_config, &layout)
}

pub(super) fn read_3(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let (local, local_layers) = windows(config)?;
    let model_config = ModelConfig {
        local,
        query_key_norm: QueryKeyNorm::EachHead,
        ..gated::model_config(config, RotaryKeys::default())?
    };
    let attention_bias = config.optional("attention_bias")?.unwrap_or(false);
    let layout = Layout {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        local_layers,
        ..Layout::default()
    };
    gated::read(checkpoint, slice, model_config, &layout)
}

/// Without `use_sliding_window` a window is ignored; it applies to layers from `max_window_layers` on.
fn windows(config: &Config) -> Result<(Option<LocalAttention>, Vec<bool>), LoadError> {
    if !config.optional("use_sliding_window")?.unwrap_or(false) {
        return Ok((None, Vec::new()));
    }
    let first = config.optional::<usize>("max_window_layers")?.unwrap_or(28);
    gated::windows(config, |index| index >= first)
}
