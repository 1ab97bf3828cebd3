//! Converts replies of a language model to the choices and the usage of an answer.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use kaskade_models::language::{REASONING, REASONING_TOKENS};
use serde_json::{Value, json};

use super::described_prompt::{DescribedPrompt, finite, names, top};
use super::formats_and_tools;
use super::text_offsets::Offsets;
use crate::http::failure::Failure;
use crate::http::json_body::set_field;
use crate::requests::call::Call;

/// Message field with the reasoning of a chat answer, as in the APIs of `DeepSeek`, vLLM and others.
pub(super) const REASONING_CONTENT: &str = "reasoning_content";

/// The answer of a language model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Choice {
    pub(super) text: String,
    /// Reasoning text; empty if the model does not reason.
    pub(super) reasoning: String,
    /// Number of reasoning tokens, if the model counts them.
    pub(super) reasoning_tokens: Option<i64>,
    /// Tokens, if the model lists them: their texts, or ids for a model without a tokenizer.
    pub(super) tokens: Vec<String>,
    /// Natural log probabilities of the tokens, if the model returns them.
    pub(super) logprobs: Vec<f64>,
    /// Most probable tokens at every position with their log probabilities, if requested.
    pub(super) top: Vec<Vec<(String, f64)>>,
    pub(super) finish: &'static str,
    /// Tool calls.
    pub(super) calls: Vec<formats_and_tools::Call>,
    /// Tokens of the prompt, if requested.
    pub(super) prompt: Option<DescribedPrompt>,
    /// Number of prompt tokens, if the model counts them.
    pub(super) prompt_tokens: Option<i64>,
    /// Number of answer tokens, if the model counts them; remote endpoints may not list the tokens.
    pub(super) completion_tokens: Option<i64>,
}

impl Choice {
    /// Reads the outputs of a language model, or of a stage with an output `text`.
    ///
    /// # Errors
    /// `KSK0003` if there is no text, so the app is not a language model.
    pub(super) fn read(reply: &InferReply) -> Result<Self, Failure> {
        let output = |name: &str| reply.outputs.iter().find(|output| output.name == name);
        let text = output("text").and_then(|text| Some(text.to_texts().ok()?.concat()));
        let text = text.ok_or_else(|| {
            let names: Vec<&str> = reply.outputs.iter().map(|output| output.name.as_str()).collect();
            let message = format!(
                "the app answered without a `text`; its outputs are {names:?}. This endpoint needs an app with `task = \"generation\"`"
            );
            Failure::wrong_kind(message)
        })?;
        let tokens = output("token_texts").or_else(|| output("tokens"));
        let probabilities = output("probabilities")
            .and_then(|found| found.to_f32().ok())
            .unwrap_or_default();
        let end = output("end").and_then(|end| Some(end.to_texts().ok()?.concat()));
        let usage = usage(reply);
        let top_tokens = output("top_token_texts").or_else(|| output("top_tokens"));
        let top = match (top_tokens, output("top_logprobs")) {
            (Some(tokens), Some(logprobs)) => top(tokens, logprobs),
            _ => Vec::new(),
        };
        let calls = formats_and_tools::calls(reply);
        let tokens = tokens.map(names).unwrap_or_default();
        let logprobs = probabilities
            .into_iter()
            .map(|probability| f64::from(probability).ln());
        let mut logprobs: Vec<f64> = logprobs.collect();
        for ((token, logprob), top) in tokens.iter().zip(&mut logprobs).zip(&top) {
            // Clients compare the log probability with those of the most probable tokens, which were not rounded twice.
            let listed = top
                .iter()
                .find(|(other, value)| other == token && (value - *logprob).abs() < 1e-3);
            *logprob = listed.map_or(*logprob, |(_, value)| *value);
        }
        Ok(Self {
            text,
            reasoning: text_of(reply, REASONING),
            reasoning_tokens: output(REASONING_TOKENS)
                .and_then(|count| count.to_i64().ok()?.first().copied()),
            tokens,
            top,
            logprobs,
            prompt: DescribedPrompt::read(reply),
            finish: match (end.as_deref(), calls.is_empty()) {
                (Some("length"), _) => "length",
                (_, true) => "stop",
                (_, false) => "tool_calls",
            },
            calls,
            prompt_tokens: usage.map(|[prompt, _]| prompt),
            completion_tokens: usage.map(|[_, answer]| answer),
        })
    }

    /// Removes the first `count` tokens, which the client has already.
    pub(super) fn skip_tokens(&mut self, count: usize) {
        self.tokens.drain(..count.min(self.tokens.len()));
        self.logprobs.drain(..count.min(self.logprobs.len()));
        self.top.drain(..count.min(self.top.len()));
    }

    /// Removes the answer, and keeps the prompt.
    pub(super) fn leave_answer_out(&mut self) {
        *self = Self {
            prompt: self.prompt.take(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: Some(0),
            finish: "length",
            ..Self::default()
        };
    }

    /// Returns the number of answer tokens: as counted by the model, or the listed ones.
    pub(super) fn completion_tokens(&self) -> i64 {
        let listed = i64::try_from(self.tokens.len()).unwrap_or(i64::MAX);
        self.completion_tokens.unwrap_or(listed)
    }

    /// Returns the log probabilities in the chat format.
    pub(super) fn chat_logprobs(&self) -> Value {
        let tops = self
            .top
            .iter()
            .map(Vec::as_slice)
            .chain(std::iter::repeat(&[][..]));
        let content = self
            .tokens
            .iter()
            .zip(&self.logprobs)
            .zip(tops)
            .map(|((token, logprob), top)| {
                let top = top.iter().map(
                    |(token, logprob)| json!({"token": token, "logprob": finite(*logprob), "bytes": bytes(token)}),
                );
                let top: Vec<Value> = top.collect();
                json!({"token": token, "logprob": finite(*logprob), "bytes": bytes(token), "top_logprobs": top})
            });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    /// Returns the log probabilities in the completions format: of the prompt, if requested, and of the answer. The
    /// first prompt token has none. The most probable tokens at each position include the actual token.
    pub(super) fn completion_logprobs(&self, offsets: &Offsets<'_>) -> Value {
        let prompt = self.prompt.as_ref();
        let first = || prompt.map(|_| Value::Null).into_iter();
        let of_prompt = prompt.map_or(&[][..], |prompt| &prompt.tokens);
        let tokens: Vec<&String> = of_prompt.iter().chain(&self.tokens).collect();
        let (offsets, _) = offsets.of_tokens(tokens.iter().map(|token| token.as_str()));
        let logprobs = prompt.map_or(&[][..], |prompt| &prompt.logprobs);
        let top = prompt.map_or(&[][..], |prompt| &prompt.top);
        let later = tokens.iter().skip(first().count());
        let top = padded(top, logprobs.len()).chain(padded(&self.top, self.logprobs.len()));
        let logprobs: Vec<f64> = logprobs.iter().chain(&self.logprobs).copied().collect();
        let top = later
            .zip(&logprobs)
            .zip(top)
            .map(|((token, logprob), top)| by_name(token, *logprob, top));
        let top: Vec<Value> = first().chain(top).collect();
        let logprobs = first().chain(logprobs.iter().map(|logprob| finite(*logprob).into()));
        json!({
            "tokens": tokens,
            "token_logprobs": logprobs.collect::<Vec<Value>>(),
            "top_logprobs": top,
            "text_offset": offsets,
        })
    }
}

/// Returns the most probable tokens of `count` positions; empty where they are unknown.
fn padded(top: &[Vec<(String, f64)>], count: usize) -> impl Iterator<Item = &[(String, f64)]> {
    let places = top.iter().map(Vec::as_slice);
    places.chain(std::iter::repeat(&[][..])).take(count)
}

/// Returns the actual token and the most probable tokens at its position, by name. Of tokens with the same name, such
/// as parts of characters, the most probable is kept.
fn by_name(token: &str, logprob: f64, top: &[(String, f64)]) -> Value {
    let mut named: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, logprob) in top
        .iter()
        .map(|(name, logprob)| (name.as_str(), *logprob))
        .chain([(token, logprob)])
    {
        let most = named.entry(name).or_insert(logprob);
        *most = most.max(logprob);
    }
    let named = named
        .into_iter()
        .map(|(name, logprob)| (name.to_owned(), json!(finite(logprob))));
    Value::Object(named.collect())
}

/// Returns the bytes of a token's text; `None` for a part of a character. Further parts of a character have no text.
fn bytes(token: &str) -> Option<&[u8]> {
    (!token.is_empty() && !token.contains(char::REPLACEMENT_CHARACTER)).then_some(token.as_bytes())
}

/// Token counts of an answer, summed over its choices.
#[derive(Debug, Clone, Default)]
pub(super) struct Usage {
    prompt: Option<i64>,
    completion: i64,
    /// Number of reasoning tokens, if a model counts them.
    reasoning: Option<i64>,
    counted: bool,
    kaskade: Vec<Value>,
}

impl Usage {
    /// Adds a choice. `known` is the length of a prompt that was sent as tokens; `first` marks the first choice of a
    /// prompt.
    pub(super) fn add(
        &mut self,
        call: &Call,
        reply: &InferReply,
        choice: &Choice,
        known: Option<i64>,
        first: bool,
    ) {
        let prompt = choice.prompt_tokens.or(known);
        if first {
            // Choices of one prompt share the prompt's tokens.
            self.prompt = if self.counted {
                let both = self.prompt.zip(prompt);
                both.map(|(sum, more)| sum.saturating_add(more))
            } else {
                prompt
            };
            self.counted = true;
        }
        self.completion = self.completion.saturating_add(choice.completion_tokens());
        if let Some(reasoning) = choice.reasoning_tokens {
            self.reasoning = Some(self.reasoning.unwrap_or(0).saturating_add(reasoning));
        }
        self.kaskade.push(call.description(reply));
    }

    /// Writes the usage into an answer, unless the number of prompt tokens is unknown, because clients expect integers.
    /// `kaskade` describes how the request was answered, as a list for several choices. It is a field of the usage, or
    /// of the answer if there is no usage.
    pub(super) fn write(&self, answer: &mut Value) {
        let usage = self.prompt.map(|prompt| {
            let mut usage = json!({
                "prompt_tokens": prompt,
                "completion_tokens": self.completion,
                "total_tokens": prompt.saturating_add(self.completion),
            });
            if let Some(reasoning) = self.reasoning {
                set_field(
                    &mut usage,
                    "completion_tokens_details",
                    json!({"reasoning_tokens": reasoning}),
                );
            }
            usage
        });
        self.write_with(answer, usage);
    }

    /// Writes the usage into a response of the Responses API, like [`Usage::write`].
    pub(super) fn write_of_response(&self, response: &mut Value) {
        let usage = self.prompt.map(|prompt| {
            json!({
                "input_tokens": prompt,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self.completion,
                "output_tokens_details": {"reasoning_tokens": self.reasoning.unwrap_or(0)},
                "total_tokens": prompt.saturating_add(self.completion),
            })
        });
        self.write_with(response, usage);
    }

    fn write_with(&self, answer: &mut Value, usage: Option<Value>) {
        let kaskade = match self.kaskade.as_slice() {
            [one] => one.clone(),
            several => several.to_vec().into(),
        };
        match usage {
            Some(mut usage) => {
                set_field(&mut usage, "kaskade", kaskade);
                set_field(answer, "usage", usage);
            }
            None => set_field(answer, "kaskade", kaskade),
        }
    }
}

/// Returns the numbers of prompt and answer tokens, if the model counts them.
pub(super) fn usage(reply: &InferReply) -> Option<[i64; 2]> {
    let usage = reply.outputs.iter().find(|output| output.name == "usage")?;
    usage.to_i64().ok()?.try_into().ok()
}

/// Returns a text output; empty if there is none.
pub(super) fn text_of(reply: &InferReply, output: &str) -> String {
    let text = reply.outputs.iter().find(|tensor| tensor.name == output);
    text.map(Tensor::to_texts)
        .and_then(Result::ok)
        .map(|texts| texts.concat())
        .unwrap_or_default()
}

/// Returns the fingerprint of a configuration: the version of the gateway and the epoch of the plan.
pub(super) fn fingerprint(call: &Call) -> String {
    let epoch = call.app.state.plan().map_or(0, |(epoch, _)| epoch);
    format!("kaskade-{}-{epoch}", env!("CARGO_PKG_VERSION"))
}

pub(super) fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::super::text_offsets::Position;
    use super::*;

    #[test]
    fn the_most_probable_tokens_of_a_completion_include_the_one_that_is_there() {
        let one = |token: &str, logprob: f64| (token.to_owned(), logprob);
        let top = |choice: &Choice| {
            choice.completion_logprobs(&Offsets::from(Position::default()))["top_logprobs"].clone()
        };
        let mut choice = Choice {
            tokens: vec!["b".into(), "\u{fffd}".into()],
            logprobs: vec![-2.0, -0.1],
            top: vec![
                vec![one("a", -0.5)],
                vec![one("\u{fffd}", -0.1), one("\u{fffd}", -3.0)],
            ],
            ..Choice::default()
        };
        assert_eq!(top(&choice), json!([{"a": -0.5, "b": -2.0}, {"\u{fffd}": -0.1}]));
        choice.top.clear();
        assert_eq!(top(&choice), json!([{"b": -2.0}, {"\u{fffd}": -0.1}]));
        choice.prompt = Some(DescribedPrompt {
            tokens: vec!["x".into(), "y".into()],
            logprobs: vec![-1.0],
            top: vec![vec![one("z", -0.25)]],
            ..DescribedPrompt::default()
        });
        let expected = json!([null, {"y": -1.0, "z": -0.25}, {"b": -2.0}, {"\u{fffd}": -0.1}]);
        assert_eq!(top(&choice), expected);
    }
}
