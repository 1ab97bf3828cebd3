//! `LayoutLM` (Xu et al. 2020) for texts without boxes: BERT with embeddings of the boxes, which are then zeros.

use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a `LayoutLM` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("layoutlm.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "layoutlm", head)?;
    let rows = config
        .optional_size("max_2d_position_embeddings")?
        .unwrap_or(1024);
    // A box has two corners, a height and a width.
    text.embeddings.constants = vec![
        ("embeddings.x_position_embeddings", rows, 2.0),
        ("embeddings.y_position_embeddings", rows, 2.0),
        ("embeddings.h_position_embeddings", rows, 1.0),
        ("embeddings.w_position_embeddings", rows, 1.0),
    ];
    Ok(text)
}
