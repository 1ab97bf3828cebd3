//! DPR (Karpukhin et al. 2020): a BERT for questions and a BERT for passages; the first token is the embedding.

use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};

/// Describes the question encoder.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn questions(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    with_base(config, "question_encoder.bert_model")
}

/// Describes the passage encoder.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn passages(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    with_base(config, "ctx_encoder.bert_model")
}

fn with_base(config: &Config, base: &'static str) -> Result<TextEncoderConfig, LoadError> {
    if config.optional::<usize>("projection_dim")?.unwrap_or(0) > 0 {
        return Err(config.invalid_value("projection_dim", "vectors that are projected are not supported"));
    }
    TextEncoderConfig::like_bert(config, base, TextHeadConfig::TOKENS)
}
