//! BERT (Devlin et al. 2019).

use super::jina;
use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a BERT model, or one of Jina's, which have its `model_type`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    if jina::is_biased(config)? {
        return jina::biased(config);
    }
    TextForm::like_bert(
        config,
        "bert",
        HeadForm::first("bert.pooler.dense", Activation::Tanh, "classifier"),
    )
}
