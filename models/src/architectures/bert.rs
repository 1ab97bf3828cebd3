//! BERT (Devlin et al. 2019).

use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a BERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    TextForm::like_bert(
        config,
        "bert",
        HeadForm::first("bert.pooler.dense", Activation::Tanh, "classifier"),
    )
}
