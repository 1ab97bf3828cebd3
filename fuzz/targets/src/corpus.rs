//! The inputs that lie in the repository: `fuzz/corpus`, to begin with, and `fuzz/regressions`, what once broke a promise.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// This repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The inputs of a target in `corpus` or `regressions`, in the order of their names.
///
/// # Errors
/// Where the folder cannot be read; one that is not there is empty.
pub fn inputs(folder: &str, target: &str) -> io::Result<Vec<Vec<u8>>> {
    let folder = repository().join("fuzz").join(folder).join(target);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = entries.collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    paths.into_iter().map(fs::read).collect()
}
