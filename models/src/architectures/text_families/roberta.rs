//! RoBERTa (Liu et al. 2019): BERT with positions that begin after the padding token id, and one token type.
//!
//! XLM-RoBERTa and CamemBERT differ in their tokenizers, data2vec in its training, RoBERTa-PreLayerNorm and
//! XLM-RoBERTa-XL in the placement of norms.

use super::jina;
use crate::architectures::encoder::BlockNames;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NORMS_FIRST: BlockNames = BlockNames {
    attention_norm: "attention.LayerNorm",
    feed_forward_norm: "intermediate.LayerNorm",
    ..BlockNames::BERT
};

const EXTRA_LARGE: BlockNames = BlockNames {
    attention_norm: "attention.self_attn_layer_norm",
    feed_forward_norm: "LayerNorm",
    ..BlockNames::BERT
};

/// Describes a RoBERTa model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if jina::is_rotary(config)? {
        return jina::published(config);
    }
    if jina::is_flash(config) {
        return jina::absolute(config);
    }
    with_base(config, "roberta")
}

/// Describes a data2vec text model (Baevski et al. 2022).
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn data2vec(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    with_base(config, "data2vec_text")
}

/// Describes a RoBERTa model with pre-norm (Ott et al. 2019).
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn norms_first(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = with_base(config, "roberta_prelayernorm")?;
    text.names = NORMS_FIRST;
    text.encoder.norms_first = true;
    text.final_norm = Some("LayerNorm");
    Ok(text)
}

/// Describes an XLM-RoBERTa-XL model (Goyal et al. 2021): pre-norm, without a norm of the embeddings.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn extra_large(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = with_base(config, "roberta")?;
    text.names = EXTRA_LARGE;
    text.encoder.norms_first = true;
    text.embeddings.norm = None;
    text.final_norm = Some("encoder.LayerNorm");
    Ok(text)
}

/// Describes a RoBERTa model whose tensors have the prefix `base`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn with_base(config: &Config, base: &'static str) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("classifier.dense", Activation::Tanh, "classifier.out_proj");
    let mut text = TextEncoderConfig::like_bert(config, base, head)?;
    text.count_after_padding(config)?;
    Ok(text)
}
