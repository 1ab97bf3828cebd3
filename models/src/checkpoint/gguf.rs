//! GGUF files, the format of llama.cpp: configuration, weights and tokenizer in one file, or in numbered shards.
//!
//! This module converts the metadata to the configuration and the `tokenizer.json` of the corresponding Hugging Face
//! checkpoint ([`config`], [`vocabulary`]), renames the tensors ([`names`]), and decodes their blocks while loading
//! ([`scheme`]), so that the architectures read a file like a directory.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod architectures;
mod blocks;
mod config;
mod file;
mod metadata;
mod names;
mod pre_tokenizers;
mod reader;
mod rotary;
mod scheme;
mod super_blocks;
mod tensors;
#[cfg(test)]
mod tests;
mod types;
mod vocabulary;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use self::architectures::Architecture;
use self::file::{Header, Tensor};
use self::metadata::Metadata;
use self::rotary::Factors;
use self::types::TensorType;
use self::vocabulary::Vocabulary;
use super::chat_template::ChatTemplate;
use super::generation_config::GenerationConfig;
use super::weights::{Shard, Source, Weights};
use super::{Checkpoint, Config, LoadError};

/// Extension of GGUF files.
const EXTENSION: &str = "gguf";
/// Maximum number of shards of a model.
const MAX_FILES: usize = 1000;

/// Finds the GGUF files of a checkpoint: all shards of the file `path`, or those of a directory without weights in
/// another format. `None` if there are none.
///
/// # Errors
/// [`LoadError::BadGguf`] if a directory has several models, [`LoadError::Io`] if it cannot be read.
pub(super) fn find(path: &Path) -> Result<Option<Vec<PathBuf>>, LoadError> {
    if path.is_file() || !path.exists() {
        // Opening a missing file gives an error that names it.
        return Ok(is_gguf(path).then(|| with_parts(path)));
    }
    let has = |name: &str| path.join(name).exists();
    if !path.is_dir() || has("model.safetensors") || has("model.safetensors.index.json") {
        return Ok(None);
    }
    let unreadable = |source| LoadError::Io {
        path: path.to_owned(),
        source,
    };
    let mut models: BTreeMap<Vec<PathBuf>, String> = BTreeMap::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let (file, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        // Image projectors are separate files next to a model.
        if is_gguf(&file) && file.is_file() && !name.starts_with("mmproj") {
            models.insert(with_parts(&file), name);
        }
    }
    if models.len() > 1 {
        let names: Vec<String> = models.into_values().collect();
        return Err(LoadError::BadGguf {
            file: path.display().to_string(),
            reason: format!(
                "it has several models ({}); name one of the files",
                names.join(", ")
            ),
        });
    }
    Ok(models.into_keys().next())
}

fn is_gguf(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case(EXTENSION))
}

/// Returns all shards of a model, such as `name-00001-of-00003.gguf`, given any of them.
fn with_parts(path: &Path) -> Vec<PathBuf> {
    let stem = path.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let Some((name, count)) = part(stem) else {
        return vec![path.to_owned()];
    };
    (1..=count)
        .map(|number| path.with_file_name(format!("{name}-{number:05}-of-{count:05}.{EXTENSION}")))
        .collect()
}

/// Parses a shard's file name without extension; returns the model's name and the number of shards, or `None` for a
/// single file.
fn part(stem: &str) -> Option<(&str, usize)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(count) || !is_number(number) {
        return None;
    }
    let count = count.parse().ok()?;
    (1..=MAX_FILES).contains(&count).then_some((name, count))
}

/// Opened shards of a model.
struct Model {
    /// Name of the first file in errors.
    file: String,
    /// Metadata of the first shard, and the tensors of all shards.
    header: Header,
    /// Shard index of each tensor.
    shard_of_tensor: BTreeMap<String, usize>,
    shards: Vec<Shard>,
    architecture: &'static Architecture,
}

impl Model {
    /// Reads the headers of files, given with their names and lengths.
    fn read(sources: Vec<(String, Source, u64)>) -> Result<Self, LoadError> {
        let count = sources.len();
        let mut shards = Vec::new();
        let mut shard_of_tensor = BTreeMap::new();
        let mut whole: Option<Header> = None;
        for (index, (file, source, length)) in sources.into_iter().enumerate() {
            let mut header = Header::read(&file, &source, length)?;
            check_part(&header.metadata, index, count)?;
            shards.push(Shard {
                file: file.clone(),
                source,
                data_start: header.data_start,
            });
            for name in header.tensors.keys() {
                if shard_of_tensor.insert(name.clone(), index).is_some() {
                    let reason =
                        format!("it has the tensor `{name}`, which another file of the model has too");
                    return Err(LoadError::BadGguf { file, reason });
                }
            }
            match &mut whole {
                None => whole = Some(header),
                Some(whole) => whole.tensors.append(&mut header.tensors),
            }
        }
        let header = whole.ok_or_else(|| LoadError::BadGguf {
            file: String::new(),
            reason: "there is no file".into(),
        })?;
        Ok(Self {
            file: header.metadata.file.clone(),
            architecture: Architecture::of(&header)?,
            header,
            shard_of_tensor,
            shards,
        })
    }

    fn open(files: &[PathBuf]) -> Result<Self, LoadError> {
        let sources = files.iter().map(|path| {
            let file = super::open(path)?;
            let length = file.metadata().map_err(|source| LoadError::Io {
                path: path.clone(),
                source,
            })?;
            Ok((
                path.display().to_string(),
                Source::File(Arc::new(file)),
                length.len(),
            ))
        });
        Self::read(sources.collect::<Result<_, LoadError>>()?)
    }

    /// Returns the configuration.
    fn config(&mut self) -> Result<Config, LoadError> {
        let [all, short, _] = rotary::TENSORS.map(|name| self.factors(name));
        let factors = Factors {
            all: all?,
            short: short?,
        };
        config::read(&self.header, self.architecture, &factors)
    }

    /// Reads a tensor of rotary factors; empty if it is missing.
    fn factors(&mut self, name: &str) -> Result<Vec<f32>, LoadError> {
        let tensor = self.header.tensors.get(name);
        let shard = self.shard_of_tensor.get(name);
        let found = tensor.zip(shard.and_then(|shard| self.shards.get_mut(*shard)));
        let Some((Tensor { kind, shape, range }, shard)) = found else {
            return Ok(Vec::new());
        };
        let bad = |reason: String| LoadError::BadGguf {
            file: shard.file.clone(),
            reason,
        };
        match shape.as_slice() {
            [count] if *kind == TensorType::F32 && *count <= rotary::MAX_FACTORS => {
                let offset = shard.data_start + range.0 as u64;
                let read = shard.source.read_f32(offset, *count);
                read.map_err(|reason| bad(format!("tensor `{name}` cannot be read: {reason}")))
            }
            _ => Err(bad(format!(
                "tensor `{name}` is {} of shape {shape:?}; it must be F32 with one dimension",
                kind.name()
            ))),
        }
    }

    /// Builds the checkpoint; `name` is that of the model.
    fn checkpoint(mut self, name: String) -> Result<Checkpoint, LoadError> {
        let config = self.config()?;
        let metadata = &self.header.metadata;
        let vocabulary = Vocabulary::read(metadata)?;
        let generation = generation(metadata, vocabulary.ends()?, &config)?;
        let template = metadata.text("tokenizer.chat_template")?.map(String::from);
        let (chat, tokenizer) = (
            ChatTemplate::new(template, vocabulary.special()?),
            vocabulary.build()?,
        );
        let (scheme, remaining) = tensors::arrange(&self)?;
        let mut weights = Weights::of_tensors(self.file, self.shards, remaining);
        weights.quantised_as(Some(Box::new(scheme)));
        Ok(Checkpoint {
            name,
            config,
            weights,
            tokenizer,
            generation,
            chat,
            sentence: None,
            preprocessor: None,
        })
    }
}

/// Checks that a file is the shard that its position states.
fn check_part(metadata: &Metadata, index: usize, count: usize) -> Result<(), LoadError> {
    let stated = metadata.whole("split.count")?.unwrap_or(1).max(1);
    if stated != count as u64 {
        let reason = format!(
            "{count} files are there; the names of the files of one model end with -00001-of-{stated:05}.gguf and so on"
        );
        return Err(metadata.invalid("split.count", reason));
    }
    match metadata.whole("split.no")? {
        Some(number) if number != index as u64 => {
            Err(metadata.invalid("split.no", format!("by its name it is file {index}, from 0")))
        }
        _ => Ok(()),
    }
}

/// Reads the recommended sampling parameters.
fn generation(metadata: &Metadata, ends: Vec<u32>, config: &Config) -> Result<GenerationConfig, LoadError> {
    let number = |key: &str| metadata.number(&format!("general.sampling.{key}"));
    let float = |key: &str| Ok::<_, LoadError>(number(key)?.map(|number| number as f32));
    let temperature = float("temp")?;
    let top_k = metadata.whole("general.sampling.top_k")?;
    Ok(GenerationConfig {
        eos_token_ids: (!ends.is_empty()).then_some(ends),
        do_sample: temperature.is_some_and(|temperature| temperature > 0.0),
        temperature,
        top_k: top_k.map(|top_k| top_k as usize),
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
        ..GenerationConfig::of_config(config)?
    })
}

/// Opens the shards of a model. Reads only their headers.
///
/// # Errors
/// [`LoadError`] for a file that is missing, unreadable or malformed, and for unsupported content.
pub(super) fn open(path: &Path, files: &[PathBuf]) -> Result<Checkpoint, LoadError> {
    let full = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if path.is_dir() {
        full.file_name()
    } else {
        full.file_stem()
    };
    let name = name.map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    );
    let name = part(&name).map_or(name.as_str(), |(name, _)| name).to_owned();
    Model::open(files)?.checkpoint(name)
}

/// Returns the configuration of a model.
///
/// # Errors
/// Same as [`open`].
pub(super) fn configuration(files: &[PathBuf]) -> Result<Config, LoadError> {
    Model::open(files)?.config()
}

/// Opens a file in memory; `name` is that of the model, and of the file in errors.
///
/// # Errors
/// Same as [`open`].
pub(super) fn from_bytes(name: &str, bytes: Bytes) -> Result<Checkpoint, LoadError> {
    let length = bytes.len() as u64;
    let source = (name.to_owned(), Source::Memory(bytes), length);
    Model::read(vec![source])?.checkpoint(name.to_owned())
}
