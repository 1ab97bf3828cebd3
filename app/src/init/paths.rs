//! Paths as written to the app file: relative to its folder.

use std::io;
use std::path::{Component, Path, PathBuf, absolute};

/// Returns the path of an existing file as written to a file in `folder`: relative to the folder, which need not exist.
/// Absolute if the given path is absolute, or if the folder's path contains `..` or a link, so that a relative path
/// might lead elsewhere.
///
/// # Errors
/// An error if the current folder is unknown or the file does not exist.
pub(super) fn from_folder(path: &Path, folder: &Path) -> io::Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    let leads_up = |path: &Path| path.components().any(|part| part == Component::ParentDir);
    // An empty path means the current folder.
    let (from, to) = (absolute(folder.join("."))?, absolute(path)?);
    let existing = from.ancestors().find(|ancestor| ancestor.exists());
    let is_link =
        existing.is_some_and(|existing| existing.canonicalize().is_ok_and(|found| found != existing));
    if leads_up(&from) || is_link {
        return path.canonicalize();
    }
    let to = if leads_up(&to) { path.canonicalize()? } else { to };
    let shared = from.components().zip(to.components());
    let shared = shared.take_while(|(one, other)| one == other).count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    Ok(up.chain(to.components().skip(shared)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_folder_of_the_app() {
        for (path, folder, stated) in [
            ("checkpoints/small", "reviews", "../checkpoints/small"),
            ("checkpoints/small", "", "checkpoints/small"),
            ("checkpoints/small", ".", "checkpoints/small"),
            ("a/data.tsv", "a/b/c", "../../data.tsv"),
            ("a/data.tsv", "a", "data.tsv"),
            ("/data/a.tsv", "reviews", "/data/a.tsv"),
        ] {
            assert_eq!(
                from_folder(Path::new(path), Path::new(folder)).unwrap(),
                Path::new(stated)
            );
        }
    }
}
