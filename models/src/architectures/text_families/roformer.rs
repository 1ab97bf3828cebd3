//! `RoFormer` (Su et al. 2021): BERT with rotary positions, and optionally narrower embeddings.

use crate::architectures::encoder::activation;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Rotary;

/// Base of the rotary positions.
const BASE: f64 = 10_000.0;

/// Describes a `RoFormer` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if config.optional("rotary_value")?.unwrap_or(false) {
        return Err(config.invalid_value("rotary_value", "rotated values are not supported"));
    }
    let head = TextHeadConfig::first(
        "classifier.dense",
        activation(config, "hidden_act")?,
        "classifier.out_proj",
    );
    let mut text = TextEncoderConfig::like_bert(config, "roformer", head)?;
    text.embed_narrower(config)?;
    text.embeddings.positions = None;
    let head_dim = text.encoder.width / text.encoder.heads;
    let frequency = |pair: usize| BASE.powf(-2.0 * pair as f64 / head_dim as f64) as f32;
    let rotary = Rotary {
        frequencies: (0..head_dim / 2).map(frequency).collect(),
        neighbours: true,
        scale: 1.0,
    };
    for block in &mut text.blocks {
        block.rotary = Some(rotary.clone());
    }
    text.buffers = &["encoder.embed_positions.weight"];
    Ok(text)
}
