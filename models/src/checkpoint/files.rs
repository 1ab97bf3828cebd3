//! Reads the files of a checkpoint: bounded, and with the reason if one is missing.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::{Config, LoadError};

/// Configurations have a few kilobytes; ten thousand label names still fit.
pub(super) const MAX_CONFIG: u64 = 4 << 20;
/// The index of a sharded checkpoint: one line per tensor.
pub(super) const MAX_INDEX: u64 = 64 << 20;
/// Tokenizers of the largest vocabularies have some tens of megabytes.
pub(super) const MAX_TOKENIZER: u64 = 256 << 20;

/// Reads a configuration that a directory need not have.
pub(super) fn optional_config(dir: &Path, name: &str) -> Result<Option<Config>, LoadError> {
    let path = dir.join(name);
    if !path.exists() {
        return Ok(None);
    }
    Config::parse(path.display().to_string(), &read_capped(&path, MAX_CONFIG)?).map(Some)
}

pub(super) fn open_weights(dir: &Path, path: &Path) -> Result<File, LoadError> {
    open(path).map_err(|error| match error {
        LoadError::MissingFile { path, .. } => LoadError::MissingFile {
            path,
            hint: weights_hint(dir),
        },
        other => other,
    })
}

/// Returns a hint if a directory without `model.safetensors` has weights in another format.
fn weights_hint(dir: &Path) -> &'static str {
    let has = |name: &str| dir.join(name).exists();
    if has("pytorch_model.bin") || has("pytorch_model.bin.index.json") {
        "; this one is in PyTorch's pickle format, which can run code: convert it with transformers, by `from_pretrained(FOLDER)` of \
         its class and `save_pretrained(FOLDER)`"
    } else if has("tf_model.h5") || has("flax_model.msgpack") {
        "; this one is saved by TensorFlow or Flax: convert it with transformers 4, by `from_pretrained(FOLDER, from_tf=True)` or \
         `from_flax=True` and `save_pretrained(FOLDER)`"
    } else if has("adapter_config.json") {
        "; this one is an adapter (LoRA): merge it into its base model with peft, by `merge_and_unload()` and `save_pretrained(FOLDER)`"
    } else if has("consolidated.safetensors") {
        "; this one has the weights under the names of Mistral's own format: download the files of transformers"
    } else {
        ""
    }
}

pub(super) fn open(path: &Path) -> Result<File, LoadError> {
    File::open(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound => LoadError::MissingFile {
            path: path.to_owned(),
            hint: "",
        },
        _ => LoadError::Io {
            path: path.to_owned(),
            source,
        },
    })
}

pub(super) fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    // Reading one byte over the limit detects files that are too large, also those that grow or have no length.
    open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| LoadError::Io {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > limit {
        return Err(LoadError::TooLarge {
            file: path.display().to_string(),
            bytes: path.metadata().map_or(limit + 1, |metadata| metadata.len()),
            limit,
        });
    }
    Ok(bytes)
}
