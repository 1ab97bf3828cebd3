//! Names used as tokens of subjects.

use thiserror::Error;

/// Longest name, bytes.
pub const MAX_TOKEN: usize = 64;

/// Error of a name that cannot be part of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SubjectError {
    /// The name is empty.
    #[error("the {what} has no name; give it 1 to {MAX_TOKEN} letters, digits, `-` or `_`")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The name is longer than [`MAX_TOKEN`].
    #[error("the {what}'s name has {length} bytes; at most {MAX_TOKEN} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Length of the name, bytes.
        length: usize,
    },
    /// The name contains a character that is special in NATS, or not ASCII.
    #[error("the {what}'s name {name:?} contains {character:?}; use letters, digits, `-` and `_`")]
    BadCharacter {
        /// The kind of name.
        what: &'static str,
        /// The name.
        name: String,
        /// The first invalid character.
        character: char,
    },
}

/// Checks that `name` is one token.
///
/// # Errors
/// [`SubjectError`], with `what` as the kind of name.
pub fn check_token(what: &'static str, name: &str) -> Result<(), SubjectError> {
    if name.is_empty() {
        return Err(SubjectError::Empty { what });
    }
    if name.len() > MAX_TOKEN {
        return Err(SubjectError::TooLong {
            what,
            length: name.len(),
        });
    }
    match name.chars().find(|character| !fits(*character)) {
        None => Ok(()),
        Some(character) => Err(SubjectError::BadCharacter {
            what,
            name: name.to_owned(),
            character,
        }),
    }
}

/// Returns the token of a request id: letters, digits, `-` and `_` unchanged, every other byte as `=` and two
/// hexadecimal digits.
pub(super) fn key(id: &str) -> String {
    let mut key = String::with_capacity(id.len());
    for byte in id.bytes() {
        let character = char::from(byte);
        if fits(character) {
            key.push(character);
        } else {
            key.push('=');
            key.extend([byte >> 4, byte & 15].map(|half| char::from_digit(half.into(), 16).unwrap_or('0')));
        }
    }
    key
}

/// Returns whether a token may be a result of [`key`].
pub(super) fn is_key(token: &str) -> bool {
    !token.is_empty() && token.chars().all(|character| fits(character) || character == '=')
}

fn fits(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

/// Parses a number in the form that `done` writes. `str::parse` would also accept `+7` and `007`.
pub(super) fn parse_id(token: &str) -> Option<u64> {
    let canonical = token == "0" || !token.starts_with('0');
    (canonical && token.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| token.parse().ok())
        .flatten()
}
