//! ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its blocks.

use super::text_form::{HeadForm, Projection, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes an ELECTRA model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("classifier.dense", Activation::Gelu, "classifier.out_proj");
    let mut form = TextForm::like_bert(config, "electra", head)?;
    let width = config
        .optional_size("embedding_size")?
        .unwrap_or(form.encoder.width);
    if width != form.encoder.width {
        form.embeddings.width = width;
        form.embeddings.projection = Some(Projection::AfterNorm("embeddings_project"));
    }
    Ok(form)
}
