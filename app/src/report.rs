//! Output for people: tables, units, progress, files.

pub mod profile_warnings;
pub mod progress;
pub mod table;
pub mod units;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A file cannot be written.
#[derive(Debug, Error)]
#[error("{} cannot be written", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The system's message.
    pub source: io::Error,
}

/// Writes a file whole: a reader sees the old one or the new one, never half of it. A symbolic link stays one, and what is no file, such as
/// a pipe, is written to.
///
/// # Errors
/// When the folder cannot be made or the file not written, naming it.
pub fn write_file(path: &Path, text: &str) -> Result<(), WriteError> {
    let failed = |source| WriteError {
        path: path.to_owned(),
        source,
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let found = path.canonicalize();
    if let Ok(found) = &found
        && !found.is_file()
        && !found.is_dir()
    {
        return std::fs::write(found, text).map_err(failed);
    }
    let path = found.as_deref().unwrap_or(path);
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    std::fs::write(&beside, text).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}

/// An error and its causes on one line, each reason once: many errors repeat the text of their cause.
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
        // A folder is no file to write.
        assert!(write_file(&at("new"), "three").is_err());
        write_file(Path::new("/dev/null"), "four").unwrap();
        assert!(!Path::new("/dev/null").is_file());
    }
}
