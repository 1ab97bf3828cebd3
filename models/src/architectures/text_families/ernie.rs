//! ERNIE 2 and 3 (Sun et al. 2019, 2021): BERT with an embedding of the training task, of which the first is used.

use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes an ERNIE model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("ernie.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "ernie", head)?;
    if config.optional("use_task_id")?.unwrap_or(false) {
        let tasks = config.optional_size("task_type_vocab_size")?.unwrap_or(3);
        text.embeddings.constants = vec![("embeddings.task_type_embeddings", tasks, 1.0)];
    }
    Ok(text)
}
