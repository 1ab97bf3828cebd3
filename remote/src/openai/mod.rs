//! The OpenAI API.

pub(crate) mod chat;
pub(crate) mod embeddings;
pub(crate) mod judge;
mod logprobs;
pub(crate) mod prompt;
mod sampling;
pub(crate) mod stream;
mod text;

use kaskade_models::ModelError;
use kaskade_policy::remote::price::Usage;
use serde::Deserialize;

use crate::error::CallError;

/// Tokens as the API counts them. A server that does not count the prompt's says null.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct UsageField {
    #[serde(default)]
    prompt_tokens: Option<u64>,
    #[serde(default)]
    completion_tokens: Option<u64>,
}

impl UsageField {
    /// Returns the counts, if the prompt's tokens are counted. An answer without tokens of its own has none, as of embeddings.
    fn counted(self) -> Option<Usage> {
        Some(Usage {
            input_tokens: self.prompt_tokens?,
            output_tokens: self.completion_tokens.unwrap_or_default(),
        })
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is the argument of `map_err`")]
fn malformed(reason: impl std::fmt::Display) -> CallError {
    CallError::Malformed {
        reason: reason.to_string(),
    }
}

fn bad(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason: reason.into(),
    }
}
