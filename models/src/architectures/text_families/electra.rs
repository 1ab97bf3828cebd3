//! ELECTRA (Clark et al. 2020): BERT with optionally narrower embeddings.

use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes an ELECTRA model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("classifier.dense", Activation::Gelu, "classifier.out_proj");
    let mut text = TextEncoderConfig::like_bert(config, "electra", head)?;
    text.embed_narrower(config)?;
    Ok(text)
}
