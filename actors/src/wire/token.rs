//! Tokens that prove which dispatch of a request a result answers.
//!
//! Request numbers are small. Without a token, an actor that may answer requests of its own stage could answer any
//! other request. The ingress issues a token for every dispatch of a request, and the subject of a result carries it.
//! The token of a branch is derived from its parent's token by a one-way function, so that a pipeline's task can answer
//! its own branch and those below it, but not its parent or a sibling.

use std::fmt;
use std::str::FromStr;

use kaskade_policy::fan_in::Branch;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// The token of one dispatch of a request: `<dispatch>-<proof>-<branch>`, in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Token {
    dispatch: u32,
    proof: u64,
    branch: u64,
}

impl Token {
    /// Returns the number of the dispatch at its ingress, from 1; 0 in a token that no ingress issued.
    pub fn dispatch(self) -> u32 {
        self.dispatch
    }

    /// Returns the token of the child branch `index` of a task.
    #[must_use]
    pub fn child(self, task: &str, index: u32) -> Self {
        self.below(&format!("{task}.{index}"))
    }

    /// Returns the token of a branch, derived from the root token `self`.
    #[must_use]
    pub(crate) fn of_branch(self, branch: &Branch) -> Self {
        if branch.is_root() {
            return self;
        }
        branch.to_string().split('/').fold(self, Self::below)
    }

    fn below(self, level: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(self.branch.to_le_bytes());
        hash.update(level);
        Self {
            branch: halves(hash).0,
            ..self
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:016x}-{:016x}", self.dispatch, self.proof, self.branch)
    }
}

/// Error of a text that is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not a token; a token is `<dispatch>-<16 hex digits>-<16 hex digits>`")]
pub struct NotAToken;

impl FromStr for Token {
    type Err = NotAToken;

    /// Parses a token; accepts only the form that `Display` writes.
    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let mut fields = text.split('-');
        let mut field = || fields.next().ok_or(NotAToken);
        let number = |field: &str| u64::from_str_radix(field, 16).map_err(|_| NotAToken);
        let token = Self {
            dispatch: u32::from_str_radix(field()?, 16).map_err(|_| NotAToken)?,
            proof: number(field()?)?,
            branch: number(field()?)?,
        };
        if token.to_string() == text {
            Ok(token)
        } else {
            Err(NotAToken)
        }
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

/// Secret key with which an ingress makes its tokens. It never leaves the process.
#[derive(Clone)]
pub struct TokenKey([u8; 32]);

impl TokenKey {
    /// Creates a key from the system's random numbers.
    ///
    /// # Errors
    /// An error if the system has no source of random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    /// Issues the token of dispatch number `dispatch` in an attempt of a request.
    pub(crate) fn issue(&self, id: u64, attempt: u32, dispatch: u32) -> Token {
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update(id.to_le_bytes());
        hash.update(attempt.to_le_bytes());
        hash.update(dispatch.to_le_bytes());
        let (proof, branch) = halves(hash);
        Token {
            dispatch,
            proof,
            branch,
        }
    }

    /// Returns whether the token was issued for this attempt, or derived from such a token.
    pub(crate) fn issued(&self, id: u64, attempt: u32, token: Token) -> bool {
        self.issue(id, attempt, token.dispatch).proof == token.proof
    }

    /// Returns whether the token permits answering a branch: it is the token of the branch or of an ancestor.
    pub fn permits(&self, id: u64, attempt: u32, token: Token, branch: &Branch) -> bool {
        let root = self.issue(id, attempt, token.dispatch);
        if root == token {
            return true;
        }
        let branch = branch.to_string();
        let mut derived = root;
        branch.split('/').any(|level| {
            derived = derived.below(level);
            derived == token
        })
    }
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

/// Returns the first 16 bytes of a hash as two numbers.
fn halves(hash: Sha256) -> (u64, u64) {
    let hash = hash.finalize();
    let mut numbers = hash
        .chunks_exact(8)
        .filter_map(|bytes| bytes.try_into().ok())
        .map(u64::from_le_bytes);
    (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(text: &str) -> Branch {
        text.parse().unwrap()
    }

    #[test]
    fn a_token_is_good_for_one_attempt_of_one_request_at_one_ingress() {
        let key = TokenKey::random().unwrap();
        let token = key.issue(7, 2, 3);
        assert!(key.issued(7, 2, token));
        assert!(!key.issued(8, 2, token));
        assert!(!key.issued(7, 1, token));
        assert!(!key.issued(7, 2, Token { dispatch: 4, ..token }));
        assert!(!key.issued(7, 2, Token::default()));
        assert!(!TokenKey::random().unwrap().issued(7, 2, token));
    }

    #[test]
    fn a_token_of_a_branch_permits_that_branch_and_those_below_it() {
        let key = TokenKey::random().unwrap();
        let root = key.issue(7, 1, 1);
        let child = root.child("classify", 3);
        assert_eq!(child, root.of_branch(&branch("classify.3")));
        assert_eq!(
            child.child("colour", 0),
            root.of_branch(&branch("classify.3/colour.0"))
        );
        assert!(key.issued(7, 1, child));
        for (token, may, text) in [
            (root, true, ""),
            (root, true, "classify.3/colour.0"),
            (child, true, "classify.3"),
            (child, true, "classify.3/colour.0"),
            (child, false, ""),
            (child, false, "classify.2"),
            (child, false, "classify.30"),
        ] {
            assert_eq!(key.permits(7, 1, token, &branch(text)), may, "{text:?}");
        }
    }

    #[test]
    fn a_token_has_one_spelling() {
        let token = TokenKey::random().unwrap().issue(1, 1, 17);
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token));
        assert!(text.starts_with("11-"));
        assert_eq!(crate::subjects::check_token("token", &text), Ok(()));
        for bad in [
            "",
            "1",
            "1-2-3",
            &text.to_uppercase().replace("11-", "+11-"),
            &format!("{text}-0"),
        ] {
            assert_eq!(bad.parse::<Token>(), Err(NotAToken), "{bad}");
        }
    }
}
