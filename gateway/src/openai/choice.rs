//! Choices of an answer, and its usage, from replies of a language model.

use std::time::{SystemTime, UNIX_EPOCH};

use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use serde_json::{Value, json};

use crate::call::Call;
use crate::failure::Failure;

/// The answer of a language model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Choice {
    pub(super) text: String,
    pub(super) tokens: Vec<i64>,
    /// Natural logarithms of the tokens' probabilities, if the model gives them.
    pub(super) logprobs: Vec<f64>,
    pub(super) finish: &'static str,
    /// Tokens of the prompt, if the model counts them.
    pub(super) prompt_tokens: Option<i64>,
}

impl Choice {
    /// Reads the outputs of a language model, or of a stage that gives a `text`.
    ///
    /// # Errors
    /// `KSK0009` if there is no text.
    pub(super) fn read(reply: &InferReply) -> Result<Self, Failure> {
        let output = |name: &str| reply.outputs.iter().find(|output| output.name == name);
        let text = output("text").and_then(|text| Some(text.to_texts().ok()?.concat()));
        let text = text.ok_or_else(|| {
            let names: Vec<&str> = reply.outputs.iter().map(|output| output.name.as_str()).collect();
            let message = format!(
                "the app answered without a `text`; its outputs are {names:?}. Is it a language model?"
            );
            Failure::from(kaskade_actors::Fault::new(
                kaskade_actors::Code::BadOutput,
                message,
            ))
        })?;
        let tokens = output("tokens")
            .and_then(|tokens| tokens.to_i64().ok())
            .unwrap_or_default();
        let probabilities = output("probabilities")
            .and_then(|found| found.to_f32().ok())
            .unwrap_or_default();
        let end = output("end").and_then(|end| Some(end.to_texts().ok()?.concat()));
        let prompt_tokens = output("prompt_tokens").and_then(|count| count.to_i64().ok()?.first().copied());
        Ok(Self {
            text,
            tokens,
            logprobs: probabilities
                .into_iter()
                .map(|probability| f64::from(probability).ln())
                .collect(),
            finish: if end.as_deref() == Some("length") {
                "length"
            } else {
                "stop"
            },
            prompt_tokens,
        })
    }

    /// Returns the log-probabilities as chat has them. A token is named by its id, since pieces of text may not be tokens.
    pub(super) fn chat_logprobs(&self) -> Value {
        let content = self.tokens.iter().zip(&self.logprobs).map(|(token, logprob)| {
            json!({"token": named(*token), "logprob": finite(*logprob), "bytes": null, "top_logprobs": []})
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    /// Returns the log-probabilities as completions have them.
    pub(super) fn completion_logprobs(&self) -> Value {
        json!({
            "tokens": self.tokens.iter().map(|token| named(*token)).collect::<Vec<_>>(),
            "token_logprobs": self.logprobs.iter().map(|logprob| finite(*logprob)).collect::<Vec<_>>(),
            "top_logprobs": null,
            "text_offset": [],
        })
    }
}

fn named(token: i64) -> String {
    format!("token_id:{token}")
}

/// JSON has no infinities; OpenAI's API has -9999 for a probability of zero.
fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}

/// Sums of an answer's tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    prompt: Option<i64>,
    completion: i64,
    counted: bool,
    kaskade: Vec<Value>,
}

impl Usage {
    /// Adds the answer to one prompt. `known` is the number of tokens of a prompt that was sent as tokens.
    pub(super) fn add(
        &mut self,
        call: &Call,
        reply: &InferReply,
        choice: &Choice,
        known: Option<i64>,
        first: bool,
    ) {
        let prompt = known.or(choice.prompt_tokens);
        if first {
            // Choices of one prompt share it.
            self.prompt = if self.counted {
                self.prompt.zip(prompt).map(|(sum, more)| sum + more)
            } else {
                prompt
            };
            self.counted = true;
        }
        self.completion += i64::try_from(choice.tokens.len()).unwrap_or(i64::MAX);
        self.kaskade.push(call.description(reply));
    }

    /// Returns the usage; the tokens of the prompt are null if the model does not count them. `kaskade` says how the request was
    /// answered, for several choices one entry each.
    pub(super) fn json(&self) -> Value {
        let total = self.prompt.map(|prompt| prompt + self.completion);
        let kaskade = match self.kaskade.as_slice() {
            [one] => one.clone(),
            several => several.to_vec().into(),
        };
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": total,
            "kaskade": kaskade,
        })
    }
}

/// Returns the text of a part of a streamed answer, and its number of tokens.
pub(super) fn part(reply: &InferReply) -> String {
    let text = reply.outputs.iter().find(|output| output.name == "text");
    text.map(Tensor::to_texts)
        .and_then(Result::ok)
        .map(|texts| texts.concat())
        .unwrap_or_default()
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}
