//! LUKE (Yamada et al. 2020) as it reads texts without entities: RoBERTa with token types.

use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a LUKE model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("luke.pooler.dense", Activation::Tanh, "classifier");
    let mut form = TextForm::like_bert(config, "luke", head)?;
    form.count_after_padding(config)?;
    // Only texts with entities use them.
    form.buffers = &[
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
    Ok(form)
}
