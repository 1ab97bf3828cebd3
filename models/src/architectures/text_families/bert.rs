//! BERT (Devlin et al. 2019).

use super::jina;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a BERT model, or a Jina model with the same `model_type`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if jina::is_biased(config)? {
        return jina::biased(config);
    }
    TextEncoderConfig::like_bert(
        config,
        "bert",
        TextHeadConfig::first("bert.pooler.dense", Activation::Tanh, "classifier"),
    )
}
