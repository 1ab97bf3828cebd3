//! Authentication by an nkey seed in a file. The seed is passed to the client only; it is never printed or logged.

use std::path::Path;

use async_nats::ConnectOptions;
use nkeys::{KeyPair, KeyPairType};

use super::BusError;
use crate::subjects::inbox_prefix;

/// Adds the nkey in the file at `path` to the options, and sets the inbox prefix of that user.
///
/// # Errors
/// [`BusError::Credentials`], without the content of the file.
pub(super) fn with_nkey(options: ConnectOptions, path: &Path) -> Result<ConnectOptions, BusError> {
    let refused = |reason: String| BusError::Credentials {
        path: path.display().to_string(),
        reason,
    };
    let text = std::fs::read_to_string(path);
    let text = text.map_err(|error| refused(format!("{error}; `kaskade auth init` creates such files")))?;
    let seed = text.trim();
    let user = KeyPair::from_seed(seed).ok();
    let user = user.filter(|user| matches!(user.key_pair_type(), KeyPairType::User));
    let user = user.ok_or_else(|| {
        refused(
            "it does not contain a user seed (`SU...`); `kaskade auth init` creates such files".to_owned(),
        )
    })?;
    Ok(options
        .custom_inbox_prefix(inbox_prefix(&user.public_key()))
        .nkey(seed.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    #[test]
    fn a_users_seed_is_taken_with_or_without_a_line_end() {
        let seed = KeyPair::new_user().seed().unwrap();
        for text in [seed.clone(), format!("{seed}\n")] {
            assert!(with_nkey(ConnectOptions::new(), file(&text).path()).is_ok());
        }
    }

    #[test]
    fn anything_else_is_refused_without_printing_it() {
        let account = KeyPair::new_account().seed().unwrap();
        for text in [account.as_str(), "SUABC", ""] {
            let error = with_nkey(ConnectOptions::new(), file(text).path())
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains("kaskade auth init"), "{error}");
            assert!(text.is_empty() || !error.contains(text), "{error}");
        }
        let missing = with_nkey(ConnectOptions::new(), Path::new("/nowhere"));
        let error = missing.err().unwrap().to_string();
        assert!(
            error.contains("/nowhere") && error.contains("kaskade auth init"),
            "{error}"
        );
    }
}
