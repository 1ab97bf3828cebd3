//! RoBERTa (Liu et al. 2019), and XLM-RoBERTa and CamemBERT, which differ in their tokenizers: BERT whose positions begin
//! after the token id of the padding, and with one token type.

use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a RoBERTa model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("classifier.dense", Activation::Tanh, "classifier.out_proj");
    let mut form = TextForm::like_bert(config, "roberta", head)?;
    form.count_after_padding(config)?;
    Ok(form)
}
