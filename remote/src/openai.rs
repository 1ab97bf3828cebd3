//! The OpenAI API.

pub(crate) mod chat;
pub(crate) mod dialect;
pub(crate) mod embeddings;
mod formats_and_tools;
pub(crate) mod judge;
mod logprobs;
pub(crate) mod prompt;
pub(crate) mod samples;
mod sampling;
pub(crate) mod stream;
mod text;

use kaskade_models::ModelError;
use kaskade_policy::remote::price::Usage;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::error::CallError;

/// Tokens as the API counts them. A server that does not count the prompt's says null. Counts that are none are unknown: the
/// answer beside them is good.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct UsageField {
    #[serde(default, deserialize_with = "count")]
    prompt_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    completion_tokens: Option<u64>,
    /// Tokens of the reasoning, among those of the answer.
    #[serde(
        default,
        rename = "completion_tokens_details",
        deserialize_with = "reasoning_tokens"
    )]
    reasoning: Option<u64>,
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_u64())
}

fn reasoning_tokens<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let details = Value::deserialize(deserializer)?;
    Ok(details.get("reasoning_tokens").and_then(Value::as_u64))
}

/// Reads `usage`; anything but a map of counts is unknown.
fn usage<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UsageField>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(UsageField::deserialize(value).ok())
}

/// Reads a text; anything else is an empty one.
fn text_or_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        _ => String::new(),
    })
}

/// Reads null like a missing field: servers write both.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
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

/// Returns the failure to read an answer as one of this answer alone if its body has choices: another request may be answered
/// well, so the endpoint is in order.
pub(crate) fn of_this_answer(error: CallError, body: &[u8]) -> CallError {
    let has_choices = || {
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let choices = body.as_ref().and_then(|body| body.get("choices")?.as_array());
        choices.is_some_and(|choices| !choices.is_empty())
    };
    match error {
        CallError::Malformed { .. } if has_choices() => CallError::Useless {
            reason: error.to_string(),
        },
        other => other,
    }
}

fn bad(name: &str, reason: impl Into<String>) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason: reason.into(),
    }
}
