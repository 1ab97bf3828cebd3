//! Fingerprint of a checkpoint, which identifies the profiled weights in a plan.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::files::is_of_pytorch;
use super::pytorch::{self, Ranges};
use super::weights::Source;
use super::{Config, LoadError};
use crate::architectures::onnx::{folder_of_onnx, modules_of_onnx};

/// Maximum size of a file that is hashed completely, bytes.
const WHOLE: u64 = 32 << 20;
/// Bytes hashed at each sampled position of a larger file.
const SAMPLE: u64 = 4 << 10;
/// Number of sampled positions in a larger file whose tensors are unknown.
const PLACES: u64 = 4096;
/// Maximum header of a safetensors file, bytes; the limit of the format.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes of the hash in the fingerprint; two checkpoints collide with probability 2^-64.
const SHOWN: usize = 8;

/// Returns the fingerprint of files, hashed in the order of their names.
pub(super) fn of(files: &[(String, PathBuf)]) -> Result<String, LoadError> {
    let mut hash = Sha256::new();
    let mut files: Vec<&(String, PathBuf)> = files.iter().collect();
    files.sort();
    for (name, file) in files {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        add(&mut hash, file).map_err(|source| LoadError::Io {
            path: file.clone(),
            source,
        })?;
    }
    Ok(shown(&hash.finalize()))
}

/// Returns the fingerprint of a checkpoint in memory: its configuration and its weights.
pub fn fingerprint_of_bytes(config: &[u8], weights: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [config, weights] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    shown(&hash.finalize())
}

fn shown(digest: &[u8]) -> String {
    digest.iter().take(SHOWN).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the files of a Hugging Face directory that determine the model's outputs, with their relative names.
pub(super) fn of_directory(path: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    // Gives a missing `config.json` the same hint as loading does.
    if !path.join("modules.json").exists() {
        Config::open(path)?;
    }
    let mut found = Vec::new();
    add_read(path, "", &mut found)?;
    for folder in folders(path) {
        let inside = path.join(&folder);
        if inside.is_dir() {
            add_read(&inside, &format!("{folder}/"), &mut found)?;
        }
    }
    Ok(found)
}

/// Returns an ONNX file, its external data, the configurations in its folder or the parent folder, and those of the
/// folders that `modules.json` names.
pub(super) fn of_onnx(path: &Path) -> Result<Vec<(String, PathBuf)>, LoadError> {
    let (own, folder) = (name_of(path), path.parent().unwrap_or_else(|| Path::new("")));
    let beside = |name: &str| name.starts_with(&own) || is_text(name);
    let mut found = Vec::new();
    add_files(folder, "", &beside, &mut found)?;
    let modules = modules_of_onnx(path);
    let above = [Some(folder_of_onnx(path)), modules];
    if let Some(above) = above.into_iter().flatten().find(|other| *other != folder) {
        add_files(above, "../", &is_text, &mut found)?;
    }
    if let Some(dir) = modules {
        let prefix = if dir == folder { "" } else { "../" };
        for name in folders(dir) {
            let inside = dir.join(&name);
            if inside.is_dir() {
                add_files(&inside, &format!("{prefix}{name}/"), &is_text, &mut found)?;
            }
        }
    }
    Ok(found)
}

/// Returns the folders that `modules.json` of sentence-transformers and other files of the directory refer to.
fn folders(path: &Path) -> Vec<String> {
    let modules = std::fs::read(path.join("modules.json")).unwrap_or_default();
    let modules: Vec<serde_json::Value> = serde_json::from_slice(&modules).unwrap_or_default();
    let named = modules.iter().filter_map(|module| module.get("path")?.as_str());
    let mut folders: Vec<String> = named.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    folders.push("additional_chat_templates".to_owned());
    folders
}

fn add_files(
    folder: &Path,
    prefix: &str,
    counts: &dyn Fn(&str) -> bool,
    found: &mut Vec<(String, PathBuf)>,
) -> Result<(), LoadError> {
    for path in entries(folder)? {
        let name = name_of(&path);
        if counts(&name) && path.is_file() {
            found.push((format!("{prefix}{name}"), path));
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, LoadError> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let failed = |source| LoadError::Io {
        path: folder.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    Ok(paths)
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Adds the files of a folder that loading reads: PyTorch's weights only without safetensors.
fn add_read(folder: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> Result<(), LoadError> {
    let is_safetensors = |name: &str| name.ends_with(".safetensors");
    let has_safetensors = entries(folder)?.iter().any(|path| is_safetensors(&name_of(path)));
    let is_read =
        |name: &str| is_text(name) || is_safetensors(name) || (!has_safetensors && is_of_pytorch(name));
    add_files(folder, prefix, &is_read, found)
}

/// Returns whether a file is a configuration, a vocabulary or a template, and not a record of a training run.
fn is_text(name: &str) -> bool {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let counts = match extension {
        "json" => !stem.ends_with("_results") && stem != "trainer_state",
        "txt" => matches!(stem, "vocab" | "merges" | "dict"),
        "model" | "jinja" | "tiktoken" | "vocab" | "bpe" => true,
        _ => false,
    };
    counts && !name.starts_with('.')
}

fn add(hash: &mut Sha256, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    hash.update(length.to_le_bytes());
    if length <= WHOLE {
        std::io::copy(&mut file, hash)?;
        return Ok(());
    }
    let ends = match tensors(&mut file, length)? {
        Some((header, ends)) => {
            hash.update(&header);
            ends
        }
        None => places(length),
    };
    for at in ends {
        file.seek(SeekFrom::Start(at))?;
        std::io::copy(&mut file.by_ref().take(SAMPLE), hash)?;
    }
    Ok(())
}

/// Returns evenly spaced offsets in a file, including its beginning and its end.
fn places(length: u64) -> Vec<u64> {
    let last = length.saturating_sub(SAMPLE);
    (0..PLACES)
        .map(|place| last / (PLACES - 1) * place)
        .chain([last])
        .collect()
}

/// Returns the header of a file of safetensors or PyTorch, and the offsets of the beginning and the end of each tensor.
/// `None` for another format.
fn tensors(file: &mut File, length: u64) -> std::io::Result<Option<(Vec<u8>, Vec<u64>)>> {
    let of_pytorch = pytorch::ranges(&Source::File(Arc::new(file.try_clone()?)), length);
    let (header, ranges) = match of_pytorch {
        Some(found) => found,
        None => match of_safetensors(file, length)? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    let ends = ranges
        .into_iter()
        .flat_map(|(start, end)| [start, end.saturating_sub(SAMPLE).max(start)]);
    let mut ends: Vec<u64> = ends.collect();
    ends.sort_unstable();
    ends.dedup();
    Ok(Some((header, ends)))
}

fn of_safetensors(file: &mut File, length: u64) -> std::io::Result<Option<Ranges>> {
    file.seek(SeekFrom::Start(0))?;
    let mut size = [0; 8];
    file.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    if size > MAX_HEADER.min(length) {
        return Ok(None);
    }
    let mut header = Vec::new();
    file.by_ref().take(size).read_to_end(&mut header)?;
    let Ok(named) = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&header) else {
        return Ok(None);
    };
    let tensors = named.values().filter_map(|tensor| {
        let offset = |index: usize| {
            let offset = tensor.get("data_offsets")?.get(index)?.as_u64()?;
            Some(offset.saturating_add(8 + size))
        };
        Some((offset(0)?, offset(1)?))
    });
    Ok(Some((header, tensors.collect())))
}

#[cfg(test)]
mod tests;
