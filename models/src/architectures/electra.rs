//! ELECTRA (Clark et al. 2020): BERT whose embeddings may be narrower than its blocks.

use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes an ELECTRA model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("classifier.dense", Activation::Gelu, "classifier.out_proj");
    let mut form = TextForm::like_bert(config, "electra", head)?;
    form.embed_narrower(config)?;
    Ok(form)
}
