//! Hunyuan, dense (Tencent 2025): Llama with norms of the heads of queries and keys after their rotation.

use super::gated::{self, HeadNormLayout, HeadNormTensors, Layout};
use super::rotary::RotaryKeys;
use super::weights::{Decoder, ModelConfig, QueryKeyNorm};
use crate::checkpoint::{Checkpoint, LoadError};
use crate::runtime::slice::Slice;

pub(super) fn read(checkpoint: &mut Checkpoint, slice: Slice) -> Result<Decoder, LoadError> {
    let config = &checkpoint.config;
    let model_config = ModelConfig {
        query_key_norm: QueryKeyNorm::RotatedHead,
        ..gated::model_config(config, RotaryKeys::LLAMA)?
    };
    let layout = Layout {
        head_norms: HeadNormLayout {
            names: ["self_attn.query_layernorm", "self_attn.key_layernorm"],
            tensors: HeadNormTensors::Norm,
        },
        feed_forward_bias: false,
        ..Layout::with_biases(config)?
    };
    gated::read(checkpoint, slice, model_config, &layout)
}
