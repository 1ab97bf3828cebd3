//! ERNIE 2 and 3 (Sun et al. 2019, 2021): BERT with a vector of the training task, of which the first is used.

use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes an ERNIE model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("ernie.pooler.dense", Activation::Tanh, "classifier");
    let mut form = TextForm::like_bert(config, "ernie", head)?;
    if config.optional("use_task_id")?.unwrap_or(false) {
        let tasks = config.optional_size("task_type_vocab_size")?.unwrap_or(3);
        form.embeddings.constant = Some(("embeddings.task_type_embeddings", tasks));
    }
    Ok(form)
}
