//! Errors of a configuration, and reading its files.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// An app's configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {reason}; name an app's TOML file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Message of the operating system.
        reason: String,
    },
    /// A value is malformed.
    #[error("{}:{line}: {reason}; `kaskade schema app` prints what this file may hold", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Line of the offending value, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
    /// Values contradict each other, or files are missing or unusable.
    #[error("{}: {}", path.display(), problems.join("; "))]
    Inconsistent {
        /// The file.
        path: PathBuf,
        /// All problems, each with the path of its value.
        problems: Vec<String>,
    },
}

/// Reads a configuration file.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// Returns line and reason of a parser's error.
pub(super) fn malformed(text: &str, error: &toml::de::Error) -> (usize, String) {
    let start = error.span().map_or(0, |span| span.start);
    // Some messages of the parser have several lines; they are printed as one.
    let reason = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
    (line_of(text, start), reason)
}

/// Returns the line of a position, from 1.
pub(super) fn line_of(text: &str, position: usize) -> usize {
    1 + text.bytes().take(position).filter(|byte| *byte == b'\n').count()
}
