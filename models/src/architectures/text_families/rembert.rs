//! `RemBERT` (Chung et al. 2021): BERT with narrower embeddings.

use crate::architectures::text_encoder::config::{Projection, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a `RemBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("rembert.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "rembert", head)?;
    text.embeddings.width = config.size("input_embedding_size")?;
    text.embeddings.projection = Some(Projection::AfterNorm("encoder.embedding_hidden_mapping_in"));
    Ok(text)
}
