//! Checkpoints: a Hugging Face directory as it is (`config.json`, `model.safetensors` or its shards, optionally `tokenizer.json`).

mod config;
mod error;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use bytes::Bytes;

pub use config::Config;
pub use error::LoadError;
pub(crate) use weights::transposed;
pub use weights::{IGNORED_BUFFERS, WeightTotals, Weights};

/// A configuration has a few kilobytes; ten thousand label names still fit.
const MAX_CONFIG: u64 = 4 << 20;
/// The index of a checkpoint in shards: a line per tensor.
const MAX_INDEX: u64 = 64 << 20;
/// The largest vocabularies in use take some tens of megabytes.
const MAX_TOKENIZER: u64 = 256 << 20;

/// A checkpoint whose configuration is parsed and whose weights wait to be taken.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory's name.
    pub name: String,
    /// `config.json`.
    pub config: Config,
    /// `model.safetensors`.
    pub weights: Weights,
    /// `tokenizer.json`, where there is one.
    pub tokenizer: Option<TokenizerFile>,
}

/// The bytes of a `tokenizer.json`.
#[derive(Debug, Clone)]
pub struct TokenizerFile {
    /// What errors call the file.
    pub file: String,
    /// Its content.
    pub json: Bytes,
}

impl Checkpoint {
    /// Opens a directory. Weights are not read yet, only their header.
    ///
    /// # Errors
    /// [`LoadError`] for a file that is absent, unreadable, oversize or malformed.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let display = |path: &Path| path.display().to_string();
        let config = dir.join("config.json");
        let weights = dir.join("model.safetensors");
        let tokenizer = dir.join("tokenizer.json");
        Ok(Self {
            name: dir
                .canonicalize()
                .unwrap_or_else(|_| dir.to_owned())
                .file_name()
                .map_or_else(|| display(dir), |name| name.to_string_lossy().into_owned()),
            config: Config::parse(display(&config), &read_capped(&config, MAX_CONFIG)?)?,
            weights: whole_or_sharded(dir, &weights)?,
            tokenizer: if tokenizer.exists() {
                Some(TokenizerFile {
                    file: display(&tokenizer),
                    json: read_capped(&tokenizer, MAX_TOKENIZER)?.into(),
                })
            } else {
                None
            },
        })
    }

    /// The same of files in memory, such as `include_bytes!`; `name` stands for the directory in errors.
    ///
    /// # Errors
    /// [`LoadError`] for bytes that are malformed.
    pub fn from_bytes(
        name: &str,
        config: &[u8],
        weights: impl Into<Bytes>,
        tokenizer: Option<Bytes>,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            name: name.to_owned(),
            config: Config::parse(format!("{name}/config.json"), config)?,
            weights: Weights::from_bytes(format!("{name}/model.safetensors"), weights.into())?,
            tokenizer: tokenizer.map(|json| TokenizerFile {
                file: format!("{name}/tokenizer.json"),
                json,
            }),
        })
    }
}

/// `model.safetensors`, or the files that `model.safetensors.index.json` names where there is no such file.
fn whole_or_sharded(dir: &Path, whole: &Path) -> Result<Weights, LoadError> {
    let display = |path: &Path| path.display().to_string();
    let index = dir.join("model.safetensors.index.json");
    if whole.exists() || !index.exists() {
        return Weights::from_file(display(whole), open_weights(dir, whole)?);
    }
    let names: BTreeMap<String, String> =
        Config::parse(display(&index), &read_capped(&index, MAX_INDEX)?)?.required("weight_map")?;
    let files: BTreeSet<&String> = names.values().collect();
    let positions: BTreeMap<&String, usize> = files.iter().copied().zip(0..).collect();
    let shard_of_tensor = names
        .iter()
        .filter_map(|(name, file)| Some((name.clone(), *positions.get(file)?)));
    let shards = files
        .into_iter()
        .map(|name| {
            // A name and not a path: an index may not point out of its directory.
            let plain = Path::new(name)
                .file_name()
                .is_some_and(|file| file == name.as_str());
            let path = dir.join(name);
            if !plain {
                return Err(LoadError::BadWeights {
                    file: display(&index),
                    reason: format!("it names `{name}`, which is no file of its directory"),
                });
            }
            Weights::from_file(display(&path), open(&path)?)
        })
        .collect::<Result<Vec<_>, _>>()?;
    Weights::from_shards(display(&index), shards, &shard_of_tensor.collect())
}

fn open_weights(dir: &Path, path: &Path) -> Result<File, LoadError> {
    open(path).map_err(|error| match error {
        LoadError::MissingFile { path, .. } => LoadError::MissingFile {
            path,
            hint: weights_hint(dir),
        },
        other => other,
    })
}

/// What a directory without `model.safetensors` has instead, of the layouts that are around.
fn weights_hint(dir: &Path) -> &'static str {
    if dir.join("pytorch_model.bin").exists() {
        "; this one is in PyTorch's pickle format: load and save it again with transformers"
    } else {
        ""
    }
}

fn open(path: &Path) -> Result<File, LoadError> {
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

fn read_capped(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    // One byte over the limit is enough to know, also of a file that grows or has no length.
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
