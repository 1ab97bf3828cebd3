//! Keys that no log, error or metric shows.

use std::fmt;
use std::path::Path;

use thiserror::Error;

/// What stands in place of a key.
const SHOWN: &str = "[redacted]";

/// A key. `Debug` and `Display` do not show it, and it is not serialisable.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

/// A key cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The environment variable is not set, or empty.
    #[error("the environment variable `{name}` is not set, or is empty")]
    Variable {
        /// Its name.
        name: String,
    },
    /// The file cannot be read.
    #[error("`{path}` cannot be read: {source}")]
    File {
        /// The file.
        path: String,
        /// Message of the operating system.
        source: std::io::Error,
    },
    /// The key is empty or has characters that no header can carry.
    #[error("the key from {origin} is empty, or holds characters other than visible ASCII")]
    Unusable {
        /// Where it comes from.
        origin: String,
    },
}

impl Secret {
    /// Takes a key, without white space around it.
    ///
    /// # Errors
    /// [`SecretError::Unusable`] if it is empty or not visible ASCII; `origin` says where it comes from.
    pub fn new(key: &str, origin: &str) -> Result<Self, SecretError> {
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(SecretError::Unusable {
                origin: origin.to_owned(),
            });
        }
        Ok(Self(key.to_owned()))
    }

    /// Reads a key from an environment variable.
    ///
    /// # Errors
    /// [`SecretError`], naming the variable.
    pub fn from_variable(name: &str) -> Result<Self, SecretError> {
        let key = std::env::var(name).ok().filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| SecretError::Variable {
            name: name.to_owned(),
        })?;
        Self::new(&key, &format!("the environment variable `{name}`"))
    }

    /// Reads a key from a file.
    ///
    /// # Errors
    /// [`SecretError`], naming the file.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let key = std::fs::read_to_string(path).map_err(|source| SecretError::File {
            path: path.display().to_string(),
            source,
        })?;
        Self::new(&key, &format!("`{}`", path.display()))
    }

    /// Returns a text of another party without the key, which it may repeat.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(&self.0, SHOWN)
    }

    /// The value of an `Authorization` header.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_nowhere() {
        let key = Secret::new(" sk-1234\n", "a test").unwrap();
        assert_eq!(
            format!("{key} {key:?} {:?}", Some(&key)),
            "[redacted] [redacted] Some([redacted])"
        );
        assert_eq!(key.redact("no such key: sk-1234!"), "no such key: [redacted]!");
        assert_eq!(key.bearer(), "Bearer sk-1234");
    }

    #[test]
    fn unusable_keys_are_refused_by_their_origin() {
        for bad in ["", "  ", "two words", "line\nbreak", "schlüssel"] {
            let error = Secret::new(bad, "`key.txt`").unwrap_err().to_string();
            assert!(
                error.contains("`key.txt`") && (bad.trim().is_empty() || !error.contains(bad)),
                "{error}"
            );
        }
        assert!(matches!(
            Secret::from_variable("KASKADE_NO_SUCH_VARIABLE"),
            Err(SecretError::Variable { .. })
        ));
        assert!(Secret::from_file(Path::new("/no/such/file")).is_err());
    }
}
