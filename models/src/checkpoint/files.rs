//! Reads the files of a checkpoint, with size limits and hints for missing files.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::{Config, LoadError};

/// Maximum size of a configuration, bytes. Configurations have a few kilobytes; 10,000 label names still fit.
pub(super) const MAX_CONFIG: u64 = 4 << 20;
/// Configuration file of a peft adapter.
const ADAPTER_CONFIG: &str = "adapter_config.json";
/// Hint for a directory that holds an adapter.
const ADAPTER: &str = "; this one is an adapter (LoRA): merge it into its base model with peft, by \
                       `model.merge_and_unload().save_pretrained(FOLDER)`, save the tokenizer there too, and name that folder";
/// Maximum size of the index of a sharded checkpoint, which has a line per tensor, bytes.
pub(super) const MAX_INDEX: u64 = 64 << 20;
/// Maximum size of a tokenizer, bytes; the largest vocabularies take some tens of megabytes.
pub(super) const MAX_TOKENIZER: u64 = 256 << 20;

/// Files of weights without shards, in the order in which they are looked for.
pub(super) const WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// Returns whether a file name is one of PyTorch's weights, whole or a shard.
pub(crate) fn is_of_pytorch(name: &str) -> bool {
    let file = Path::new(name.strip_suffix(".index.json").unwrap_or(name));
    name.starts_with("pytorch_model") && file.extension().is_some_and(|ending| ending == "bin")
}

/// First bytes of a pointer file, which Git LFS checks out instead of a large file.
pub(super) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Rejects a file whose first bytes are those of a Git LFS pointer.
pub(super) fn check_pointer(file: &str, bytes: &[u8]) -> Result<(), LoadError> {
    if bytes.starts_with(LFS_POINTER) {
        return Err(LoadError::GitLfsPointer {
            file: file.to_owned(),
        });
    }
    Ok(())
}

/// Reads an optional configuration of a directory.
pub(super) fn optional_config(dir: &Path, name: &str) -> Result<Option<Config>, LoadError> {
    let path = dir.join(name);
    if !path.exists() {
        return Ok(None);
    }
    Config::parse(path.display().to_string(), &read_capped(&path, MAX_CONFIG)?).map(Some)
}

/// Rejects a directory that contains both weights and an adapter: transformers would apply the adapter, this crate
/// cannot.
///
/// # Errors
/// [`LoadError::AdapterBesideWeights`].
pub(super) fn check_adapter(dir: &Path) -> Result<(), LoadError> {
    if is_adapter(dir) && dir.join("config.json").exists() {
        return Err(LoadError::AdapterBesideWeights {
            path: dir.join(ADAPTER_CONFIG),
        });
    }
    Ok(())
}

/// Reads `config.json`. If it is missing, the error says what the directory contains instead.
///
/// # Errors
/// [`LoadError`] for a file that is missing, unreadable or too large.
pub(super) fn read_config(path: &Path) -> Result<Vec<u8>, LoadError> {
    read_capped(path, MAX_CONFIG).map_err(|error| match error {
        LoadError::MissingFile { path: file, .. } => LoadError::MissingFile {
            hint: path.parent().map_or("", config_hint),
            path: file,
        },
        other => other,
    })
}

/// Returns a hint for a directory without `config.json`.
fn config_hint(dir: &Path) -> &'static str {
    if is_adapter(dir) {
        ADAPTER
    } else if newest_of_training(dir).is_some() {
        "; this folder is a training run's: name the newest of its folders `checkpoint-...`"
    } else {
        ""
    }
}

/// Returns whether a directory contains the configuration of an adapter.
fn is_adapter(dir: &Path) -> bool {
    dir.join(ADAPTER_CONFIG).exists()
}

/// Returns the newest checkpoint that transformers' `Trainer` saved in a directory, such as `checkpoint-500`.
fn newest_of_training(dir: &Path) -> Option<PathBuf> {
    let steps = std::fs::read_dir(dir).ok()?.filter_map(|entry| {
        let path = entry.ok()?.path();
        let step: u64 = path
            .file_name()?
            .to_str()?
            .strip_prefix("checkpoint-")?
            .parse()
            .ok()?;
        path.join("config.json").is_file().then_some((step, path))
    });
    steps.max().map(|(_, path)| path)
}

/// Returns the snapshot in a folder of the Hugging Face Hub cache: that of `refs/main`, or the only one.
fn snapshot_of(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.join("snapshots");
    let main = std::fs::read_to_string(dir.join("refs/main")).ok();
    if let Some(main) = main
        .map(|main| snapshots.join(main.trim()))
        .filter(|main| main.is_dir())
    {
        return Some(main);
    }
    let mut found = std::fs::read_dir(snapshots)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let only = found.next().filter(|path| path.is_dir());
    only.filter(|_| found.next().is_none())
}

/// Returns why a path is no checkpoint and how to fix it, as text to append to the path.
pub(super) fn why_no_checkpoint(path: &Path) -> String {
    if !path.exists() {
        return format!(
            "does not exist; correct the path, or put a checkpoint there. It must be a folder or a file on this host: {} fetches a model \
             of the Hugging Face Hub",
            download(path)
        );
    }
    if path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("onnx"))
    {
        return "is an ONNX file: name it as `file` in place of `dir`".to_owned();
    }
    if is_adapter(path) {
        return format!("is not a checkpoint{ADAPTER}");
    }
    if let Some(newest) = newest_of_training(path) {
        let newest = newest.display();
        return format!(
            "is a training run's folder of checkpoints; name one of them, such as the newest, `{newest}`"
        );
    }
    if let Some(snapshot) = snapshot_of(path) {
        let snapshot = snapshot.display();
        return format!("is a folder of the Hugging Face cache; name the snapshot in it, `{snapshot}`");
    }
    "is not a checkpoint: it is neither a GGUF file nor a directory with config.json, modules.json or a GGUF file"
        .to_owned()
}

/// Returns the command that downloads a model from the Hugging Face Hub: the one named by `path` if it looks like a
/// model id.
fn download(path: &Path) -> String {
    let mut names = path.iter().rev().filter_map(|name| name.to_str());
    let (name, owner) = (names.next(), names.next());
    let is_folder = path
        .parent()
        .is_some_and(|parent| parent.as_os_str().is_empty() || parent.exists());
    match owner.zip(name).filter(|_| !is_folder) {
        Some((owner, name)) => format!("`hf download {owner}/{name} --local-dir DIR`"),
        None => "`hf download ORG/MODEL --local-dir DIR`".to_owned(),
    }
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

/// Opens a shard that the index of the weights names.
pub(super) fn open_shard(path: &Path) -> Result<File, LoadError> {
    open(path).map_err(|error| match error {
        LoadError::MissingFile { path, .. } => LoadError::MissingShard { path },
        other => other,
    })
}

/// Returns a hint if a directory without `model.safetensors` has weights in another format.
fn weights_hint(dir: &Path) -> &'static str {
    let has = |name: &str| dir.join(name).exists();
    if has("tf_model.h5") || has("flax_model.msgpack") {
        "; this one is saved by TensorFlow or Flax: convert it with transformers 4, by `from_pretrained(FOLDER, from_tf=True)` or \
         `from_flax=True` and `save_pretrained(FOLDER)`"
    } else if has("onnx/model.onnx") {
        "; this one has an ONNX file: name it in place of the directory, as `file = \"DIR/onnx/model.onnx\"`"
    } else if is_adapter(dir) {
        ADAPTER
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
    // Reads one byte over the limit, to detect files that are too large, even if they grow or report no length.
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
    check_pointer(&path.display().to_string(), &bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
