//! `RemBERT` (Chung et al. 2021): BERT whose embeddings are narrower than its blocks.

use super::text_form::{HeadForm, Projection, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a `RemBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("rembert.pooler.dense", Activation::Tanh, "classifier");
    let mut form = TextForm::like_bert(config, "rembert", head)?;
    form.embeddings.width = config.size("input_embedding_size")?;
    form.embeddings.projection = Some(Projection::AfterNorm("encoder.embedding_hidden_mapping_in"));
    Ok(form)
}
