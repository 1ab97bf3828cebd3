//! Static embedding directories: those of model2vec, and of the sentence-transformers module `StaticEmbedding`.

use std::path::Path;

use serde_json::{Map, json};

use super::files::optional_config;
use super::{Config, LoadError};

/// `model_type` of model2vec.
pub(crate) const MODEL2VEC: &str = "model2vec";
/// Class of model2vec.
pub(crate) const STATIC_MODEL: &str = "StaticModel";
/// Class and `model_type` of the sentence-transformers module, which has no configuration of its own.
pub(crate) const STATIC_EMBEDDING: &str = "StaticEmbedding";

/// Returns whether a configuration belongs to model2vec.
///
/// # Errors
/// [`LoadError::BadKey`] for a class or type that is not a string.
pub(crate) fn is_model2vec(config: &Config) -> Result<bool, LoadError> {
    let model_type = config.optional::<String>("model_type")?;
    Ok(model_type.as_deref() == Some(MODEL2VEC) || config.class()?.as_deref() == Some(STATIC_MODEL))
}

/// Returns whether a configuration belongs to static embeddings.
///
/// # Errors
/// Same as [`is_model2vec`].
pub(crate) fn is_static(config: &Config) -> Result<bool, LoadError> {
    Ok(is_model2vec(config)? || config.class()?.as_deref() == Some(STATIC_EMBEDDING))
}

/// Returns the configuration of a `StaticEmbedding` folder: that of model2vec if model2vec wrote the folder, else a
/// configuration with only the class.
///
/// # Errors
/// [`LoadError`] for a `config.json` that is unreadable or malformed.
pub(super) fn configuration(folder: &Path) -> Result<Config, LoadError> {
    if let Some(config) = optional_config(folder, "config.json")?
        && is_model2vec(&config)?
    {
        return Ok(config);
    }
    let mut keys = Map::new();
    keys.insert("architectures".into(), json!([STATIC_EMBEDDING]));
    keys.insert("model_type".into(), STATIC_EMBEDDING.into());
    Ok(Config::of_keys(
        folder.join("modules.json").display().to_string(),
        keys,
    ))
}
