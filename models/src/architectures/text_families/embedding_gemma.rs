//! `EmbeddingGemma` (Vera et al. 2025): Gemma 3 with bidirectional attention.

use super::eurobert;
use crate::architectures::encoder::BlockNames;
use crate::architectures::text_encoder::config::TextEncoderConfig;
use crate::checkpoint::{Config, LoadError};
use crate::decoder::families::gemma::{Positions, hidden_activation, positions_3};

const NAMES: BlockNames = BlockNames {
    feed_forward_norm: "pre_feedforward_layernorm",
    output_norms: Some(["post_attention_layernorm", "post_feedforward_layernorm"]),
    head_norms: Some(["self_attn.q_norm", "self_attn.k_norm"]),
    ..eurobert::NAMES
};

/// Describes a Gemma 3 model with `use_bidirectional_attention`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let cap = "attn_logit_softcapping";
    if config.optional::<f32>(cap)?.is_some() {
        return Err(config.invalid_value(cap, "encoders without a cap are supported"));
    }
    let mut text = eurobert::of_layers(config, hidden_activation(config)?)?;
    let encoder = &mut text.encoder;
    let scalar = config.optional::<f32>("query_pre_attn_scalar")?.unwrap_or(256.0);
    encoder.attention_scale = Some(1.0 / scalar.sqrt());
    encoder.norm_offset = 1.0;
    let Positions {
        window,
        local_layers,
        global,
        near,
    } = positions_3(config, encoder.attention_width / encoder.heads)?;
    for (place, block) in text.blocks.iter_mut().enumerate() {
        let is_local = local_layers.get(place).copied().unwrap_or_default();
        // The window has the same total width as in a decoder, half of it in each direction.
        block.window = window.filter(|_| is_local).map(|window| window / 2);
        block.rotary = Some(if is_local { near.clone() } else { global.clone() });
    }
    text.names = NAMES;
    text.embeddings.scale = (text.encoder.width as f32).sqrt();
    Ok(text)
}
