//! Megatron-BERT (Shoeybi et al. 2019): BERT with pre-norm and a final norm.

use crate::architectures::encoder::BlockNames;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    attention_norm: "attention.ln",
    feed_forward_norm: "ln",
    ..BlockNames::BERT
};

/// Describes a Megatron-BERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("bert.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "bert", head)?;
    text.names = NAMES;
    text.encoder.norms_first = true;
    text.embeddings.norm = None;
    text.final_norm = Some("encoder.ln");
    Ok(text)
}
