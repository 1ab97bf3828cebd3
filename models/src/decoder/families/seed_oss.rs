//! Seed-OSS (`ByteDance` 2025): Llama with biases in the query, key and value projections.

use kaskade_policy::plan::Partition;

use crate::checkpoint::{Checkpoint, LoadError};
use crate::decoder::gated::{self, Layout};
use crate::decoder::rotary::RotaryKeys;
use crate::decoder::weights::Decoder;

pub(super) fn read(checkpoint: &mut Checkpoint, partition: Partition) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = gated::model_config(config, RotaryKeys::LLAMA)?;
    let layout = Layout {
        qkv_bias: config.optional("attention_bias")?.unwrap_or(true),
        output_bias: config.optional("attention_out_bias")?.unwrap_or(false),
        feed_forward_bias: config.optional("mlp_bias")?.unwrap_or(false),
        ..Layout::default()
    };
    gated::read(checkpoint, partition, model_config, &layout)
}
