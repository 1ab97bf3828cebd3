//! LUKE (Yamada et al. 2020) for texts without entities: RoBERTa with token types.

use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a LUKE model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("luke.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "luke", head)?;
    text.count_after_padding(config)?;
    // Used only for texts with entities.
    text.buffers = &[
        "w2e_query.weight",
        "w2e_query.bias",
        "e2w_query.weight",
        "e2w_query.bias",
        "e2e_query.weight",
        "e2e_query.bias",
        "entity_embeddings.entity_embeddings.weight",
        "entity_embeddings.entity_embedding_dense.weight",
        "entity_embeddings.position_embeddings.weight",
        "entity_embeddings.token_type_embeddings.weight",
        "entity_embeddings.LayerNorm.weight",
        "entity_embeddings.LayerNorm.bias",
    ];
    Ok(text)
}
