//! The OpenAI API.

pub(crate) mod chat;
pub(crate) mod embeddings;
pub(crate) mod judge;
mod logprobs;
pub(crate) mod stream;
mod text;

use serde::Deserialize;

use crate::error::CallError;

/// Tokens as the API counts them.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct UsageField {
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl From<UsageField> for kaskade_policy::remote::price::Usage {
    fn from(usage: UsageField) -> Self {
        Self {
            input_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "it is the argument of `map_err`")]
fn malformed(reason: impl std::fmt::Display) -> CallError {
    CallError::Malformed {
        reason: reason.to_string(),
    }
}
