//! Finds the files of a split in a folder laid out like Hugging Face's `datasets`.

use std::path::{Path, PathBuf};

use super::DataError;
use crate::config::records::{Folder, Format, FormatError};

/// File extensions of supported images.
const IMAGES: [&str; 8] = ["png", "jpg", "jpeg", "jpe", "jfif", "webp", "gif", "bmp"];
/// File extensions of unsupported images. Skipping them would drop their classes or distort the class frequencies.
const OTHER_IMAGES: [&str; 6] = ["tif", "tiff", "avif", "heic", "ppm", "jp2"];
const TEXT: &str = "txt";

/// Description files that `datasets` writes beside a set.
const DESCRIPTIONS: [&str; 4] = [
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
];

/// Other names of the split `validation`.
const VALIDATION: [&str; 4] = ["validation", "valid", "val", "dev"];

/// Usual names of splits, most suitable first.
const USUAL: [&str; 6] = ["test", "validation", "valid", "val", "dev", "train"];

/// The files of one split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Split {
    /// Files of records, in their order.
    Records(Vec<PathBuf>),
    /// One directory per class with its files, both ascending by name.
    Classes(Vec<(String, Vec<PathBuf>)>),
}

impl Split {
    /// Finds the files of a split.
    ///
    /// # Errors
    /// [`DataError::NoSplit`] if there are none, [`DataError::Format`] if they are Arrow files.
    pub(super) fn find(spec: &Folder) -> Result<Self, DataError> {
        let split = spec.split.as_deref().unwrap_or("validation");
        let names: Vec<&str> = if split == "validation" {
            VALIDATION.to_vec()
        } else {
            vec![split]
        };
        for name in &names {
            if let Some(found) = Self::named(&spec.folder, name)? {
                return Ok(found);
            }
        }
        let has = |name: &&&str| matches!(Self::named(&spec.folder, name), Ok(Some(_)));
        Err(DataError::NoSplit {
            split: split.to_owned(),
            other: USUAL.iter().find(has).copied(),
            found: entries(&spec.folder)?.iter().map(|path| name_of(path)).collect(),
        })
    }

    fn named(folder: &Path, split: &str) -> Result<Option<Self>, DataError> {
        let own = if split == "." {
            folder.to_owned()
        } else {
            folder.join(split)
        };
        if own.is_dir() {
            let metadata = ["metadata.jsonl", "metadata.csv"].map(|name| own.join(name));
            if let Some(metadata) = metadata.into_iter().find(|path| path.is_file()) {
                return Ok(Some(Self::Records(vec![metadata])));
            }
            let classes = classes(&own)?;
            if !classes.is_empty() {
                return Ok(Some(Self::Classes(classes)));
            }
            let records = records(&own, |_| true)?;
            if !records.is_empty() {
                return Ok(Some(Self::Records(records)));
            }
        }
        for folder in [folder.to_owned(), folder.join("data")] {
            if folder.is_dir() {
                // Matches `test.csv`, `test-00000-of-00002.jsonl`, `test_1.csv`; not `testing.csv`.
                let of_split = |name: &str| {
                    let rest = name.strip_prefix(split);
                    rest.is_some_and(|rest| rest.starts_with(['.', '-', '_']))
                };
                let records = records(&folder, of_split)?;
                if !records.is_empty() {
                    return Ok(Some(Self::Records(records)));
                }
            }
        }
        Ok(None)
    }
}

/// Returns whether a folder has a split with this name, or for `validation` one of its other names.
pub(crate) fn has_split(folder: &Path, split: &str) -> bool {
    let spec = Folder {
        folder: folder.to_owned(),
        split: Some(split.to_owned()),
        ..Folder::default()
    };
    Split::find(&spec).is_ok()
}

/// Returns the entries of a folder, ascending, without hidden ones.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if !name_of(&path).starts_with('.') {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns the record files whose name satisfies `of_split`.
fn records(folder: &Path, of_split: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, DataError> {
    let files = entries(folder)?
        .into_iter()
        .filter(|path| path.is_file() && of_split(&name_of(path)))
        .filter(|path| !DESCRIPTIONS.contains(&name_of(path).as_str()));
    let (mut readable, mut arrow) = (Vec::new(), false);
    for file in files {
        match Format::of(&file) {
            Ok(_) => readable.push(file),
            Err(FormatError::Arrow) => arrow = true,
            Err(_) => (),
        }
    }
    if readable.is_empty() && arrow {
        return Err(FormatError::Arrow.into());
    }
    Ok(readable)
}

fn classes(folder: &Path) -> Result<Vec<(String, Vec<PathBuf>)>, DataError> {
    let mut classes = Vec::new();
    for class in entries(folder)?.into_iter().filter(|path| path.is_dir()) {
        let mut files = entries(&class)?;
        if let Some(other) = files.iter().find(|file| has_ending(file, &OTHER_IMAGES)) {
            return Err(DataError::in_file(other)(DataError::OtherImage));
        }
        if let Some(below) = files.iter().find(|path| path.is_dir() && holds_samples(path)) {
            return Err(DataError::in_file(below)(DataError::FolderInClass));
        }
        files.retain(|file| is_image(file) || is_text(file));
        if !files.is_empty() {
            classes.push((name_of(&class), files));
        }
    }
    Ok(classes)
}

/// Returns whether a directory contains samples, which would otherwise be left out silently.
fn holds_samples(folder: &Path) -> bool {
    let files = entries(folder).unwrap_or_default();
    files.iter().any(|file| is_image(file) || is_text(file))
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path
        .extension()
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    endings.contains(&ending.as_str())
}

/// Returns whether a file is an image, by its extension.
pub(super) fn is_image(path: &Path) -> bool {
    has_ending(path, &IMAGES)
}

fn is_text(path: &Path) -> bool {
    has_ending(path, &[TEXT])
}

/// Returns the files of all classes with the index of their class, interleaved in proportion to their numbers, so that
/// every prefix has about the same class frequencies as the whole.
pub(super) fn interleaved(classes: &[(String, Vec<PathBuf>)]) -> Vec<(usize, &Path)> {
    let files = classes.iter().enumerate().flat_map(|(class, (_, files))| {
        let count = files.len() as u128;
        (1..)
            .step_by(2)
            .zip(files)
            .map(move |(place, file)| ((place, count), class, file.as_path()))
    });
    let mut all: Vec<((u128, u128), usize, &Path)> = files.collect();
    // Files are sorted by their relative position in their class, `place / (2 count)`; in a tie the rarer class comes
    // first.
    all.sort_by(
        |((place, count), class, _), ((other_place, other_count), other, _)| {
            let shares = (place * other_count).cmp(&(other_place * count));
            shares.then(count.cmp(other_count)).then(class.cmp(other))
        },
    );
    all.into_iter().map(|(_, class, file)| (class, file)).collect()
}
