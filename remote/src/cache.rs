//! Answers on disk, by the hash of their request: what was paid for once is not paid for again.
//!
//! An answer is a file named by the SHA-256 of address and body, which do not contain the key. It is written beside its place
//! and renamed, so that an interrupted recording is continued with the answers that it has.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest, Sha256};

/// A directory of answers.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
}

/// An answer, and how long it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Time from the request to the end of the answer.
    pub took: Duration,
    /// The answer's head, as the protocol needs it: the value of one header, or empty.
    pub head: String,
    /// The answer.
    pub body: Bytes,
}

impl Cache {
    /// Opens a directory, and creates it if it is missing.
    ///
    /// # Errors
    /// Message of the operating system.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        Ok(Self { dir })
    }

    /// Returns the answer to a request, if it was recorded. One that cannot be read was not.
    pub fn get(&self, url: &str, body: &[u8]) -> Option<Recorded> {
        let recorded = fs::read(self.file(url, body)).ok()?;
        let line = recorded.iter().position(|byte| *byte == b'\n')?;
        let (first, body) = recorded.split_at_checked(line)?;
        let (took, head) = std::str::from_utf8(first).ok()?.split_once(' ')?;
        Some(Recorded {
            took: Duration::from_micros(took.parse().ok()?),
            head: head.to_owned(),
            body: Bytes::copy_from_slice(body.get(1..)?),
        })
    }

    /// Records the answer to a request.
    ///
    /// # Errors
    /// Message of the operating system.
    pub fn put(&self, url: &str, body: &[u8], answer: &Recorded) -> io::Result<()> {
        let file = self.file(url, body);
        let mut content = format!("{} {}\n", answer.took.as_micros(), answer.head).into_bytes();
        content.extend_from_slice(&answer.body);
        let temporary = file.with_extension(format!("{}.partial", std::process::id()));
        fs::write(&temporary, content)?;
        fs::rename(temporary, file)
    }

    fn file(&self, url: &str, body: &[u8]) -> PathBuf {
        let hash = Sha256::new()
            .chain_update(url)
            .chain_update([0])
            .chain_update(body)
            .finalize();
        self.dir.join(format!("{hash:x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_by_their_request_and_damaged_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("answers")).unwrap();
        let answer = Recorded {
            took: Duration::from_millis(12),
            head: String::new(),
            body: Bytes::from_static(b"{\n}\n"),
        };
        assert_eq!(cache.get("chat", b"x"), None);
        cache.put("chat", b"x", &answer).unwrap();
        assert_eq!(cache.get("chat", b"x"), Some(answer));
        assert_eq!((cache.get("chat", b"y"), cache.get("cha", b"tx")), (None, None));
        fs::write(cache.file("chat", b"x"), b"12").unwrap();
        assert_eq!(cache.get("chat", b"x"), None);
    }
}
