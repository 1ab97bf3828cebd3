//! Output for users: tables, units, progress, files.

pub mod profile_warnings;
pub mod progress;
pub mod table;
pub mod units;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Error of writing a file.
#[derive(Debug, Error)]
#[error("{} cannot be written", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Error of the operating system.
    pub source: io::Error,
}

/// Content that [`check_writable`] writes: on a full disk a file may be created, but not its content.
const TRIAL: [u8; 4096] = [b' '; 4096];

/// Writes a file atomically: a reader sees the old content or the new one. Symbolic links are followed; a path that is
/// not a regular file, such as a pipe, is written directly.
///
/// # Errors
/// [`WriteError`] if the folder cannot be created or the file cannot be written.
pub fn write_file(path: &Path, text: &str) -> Result<(), WriteError> {
    let failed = failed(path);
    if let Some(folder) = folder_of(path) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let found = path.canonicalize();
    if let Ok(found) = &found
        && is_device(found)
    {
        return std::fs::write(found, text).map_err(failed);
    }
    let path = found.as_deref().unwrap_or(path);
    let temporary = temporary_path(path);
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    written.map_err(|error| {
        // The partial file may be what fills the disk.
        let _ = std::fs::remove_file(&temporary);
        failed(error)
    })
}

/// Checks that [`write_file`] can write a file, before the work that produces its content: writes and removes a small
/// file beside it, or in the nearest existing parent folder.
///
/// # Errors
/// As [`write_file`].
pub fn check_writable(path: &Path) -> Result<(), WriteError> {
    let failed = failed(path);
    let found = path.canonicalize();
    let path = found.as_deref().unwrap_or(path);
    if path.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    if is_device(path) {
        return Ok(());
    }
    let mut folder = folder_of(path);
    while let Some(missing) = folder.filter(|folder| !folder.exists()) {
        folder = folder_of(missing);
    }
    let name = Path::new(path.file_name().unwrap_or_default());
    let trial = temporary_path(&folder.map_or_else(|| name.to_owned(), |folder| folder.join(name)));
    let written = std::fs::write(&trial, TRIAL);
    let removed = std::fs::remove_file(&trial);
    written.and(removed).map_err(failed)
}

/// Writes text to a new file in the temporary folder, as a fallback for `path`, and returns the new path.
///
/// # Errors
/// An error if that folder cannot be written to either.
pub fn write_elsewhere(path: &Path, text: &str) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let elsewhere = std::env::temp_dir().join(format!("kaskade-{}-{name}", std::process::id()));
    let mut file = File::create_new(&elsewhere)?;
    match file.write_all(text.as_bytes()) {
        Ok(()) => Ok(elsewhere),
        Err(error) => {
            let _ = std::fs::remove_file(&elsewhere);
            Err(error)
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> WriteError + Copy {
    move |source| WriteError {
        path: path.to_owned(),
        source,
    }
}

/// Returns the folder of a path; `None` if it is the working folder.
fn folder_of(path: &Path) -> Option<&Path> {
    path.parent().filter(|folder| !folder.as_os_str().is_empty())
}

/// Returns whether a path is neither a file nor a folder, such as a pipe.
fn is_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Returns the path of the temporary file that is renamed to `path`.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    temporary.into()
}

/// Formats an error and its causes on one line, each reason once, since many errors repeat the text of their cause.
pub fn in_one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let mut message = String::new();
    let mut next = Some(error);
    while let Some(cause) = next {
        next = cause.source();
        let reason = cause.to_string();
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        if message.ends_with(&reason) {
            continue;
        }
        if !message.is_empty() {
            message.push_str(": ");
        }
        message.push_str(&reason);
    }
    message
}

#[cfg(test)]
mod tests {
    use kaskade_policy::plan::Plan;

    use super::*;

    /// An error with a cause.
    #[derive(Debug, Error)]
    #[error("{message}")]
    struct Outer {
        message: &'static str,
        source: Box<dyn std::error::Error>,
    }

    fn outer(message: &'static str, source: impl Into<Box<dyn std::error::Error>>) -> Outer {
        Outer {
            message,
            source: source.into(),
        }
    }

    #[test]
    fn a_reason_is_said_once() {
        let message = in_one_line(&outer("plan.json", Plan::from_json("{\n").unwrap_err()));
        assert_eq!(message.matches("EOF while parsing").count(), 1, "{message}");
        assert!(
            message
                .starts_with("plan.json: not a valid plan (`kaskade plan` writes one): it is not JSON: EOF"),
            "{message}"
        );
        let error = outer("high", outer("middle\n line", "low"));
        assert_eq!(in_one_line(&error), "high: middle line: low");
    }

    #[test]
    fn a_link_stays_one_and_a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write_file(&at("new/plan.json"), "one").unwrap();
        std::os::unix::fs::symlink("new/plan.json", at("link")).unwrap();
        write_file(&at("link"), "two").unwrap();
        assert!(at("link").is_symlink());
        assert_eq!(std::fs::read_to_string(at("new/plan.json")).unwrap(), "two");
        // A folder cannot be written as a file.
        assert!(write_file(&at("new"), "three").is_err());
        write_file(Path::new("/dev/null"), "four").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Regression: `profile.json.<pid>.tmp` was left behind.
    #[test]
    fn a_failed_write_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("taken")).unwrap();
        // The temporary file can be written, but cannot replace a folder.
        assert!(write_file(&dir.path().join("taken"), "text").is_err());
        assert_eq!(names(dir.path()), ["taken"]);
    }

    /// Regression: hours of measurements ended with "cannot be written".
    #[test]
    fn an_output_is_checked_before_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("old.json"), "old").unwrap();
        for good in ["new.json", "old.json", "new/folder/plan.json"] {
            check_writable(&at(good)).unwrap();
        }
        check_writable(Path::new("/dev/null")).unwrap();
        assert_eq!(names(dir.path()), ["old.json"], "nothing is left");
        assert_eq!(std::fs::read_to_string(at("old.json")).unwrap(), "old");
        // A folder, a path below a file, and a place where no process may create files.
        for bad in [
            dir.path(),
            &at("old.json/plan.json"),
            Path::new("/proc/plan.json"),
        ] {
            let error = check_writable(bad).unwrap_err().to_string();
            assert!(error.contains(&bad.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_text_that_has_no_place_goes_to_the_folder_for_temporary_files() {
        let name = "kept-elsewhere.json";
        let kept = write_elsewhere(&Path::new("/proc").join(name), "text").unwrap();
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), "text");
        // An existing file is not replaced.
        assert!(write_elsewhere(Path::new(name), "other").is_err());
        std::fs::remove_file(&kept).unwrap();
    }
}
