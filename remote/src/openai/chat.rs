//! Chat completions: classification by label words, and generation.

use bytes::Bytes;
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, ModelError, Outputs, Signature, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use super::logprobs::{Logprobs, Place, label_of};
use super::{UsageField, malformed};
use crate::call::{Answer, Prepared};
use crate::endpoint::{Chat, ChatTask, TEXT};
use crate::error::CallError;

/// Longest text of a request, bytes.
const MAX_TEXT: usize = 1 << 20;

/// The output of a classifier, as planners and routers read it.
const LOGITS: &str = "logits";

/// `text` BYTES `[1]`, and for generation optionally `max_tokens` (INT64 `[1]`), `temperature` (FP32 `[1]`).
pub(crate) fn signature(chat: &Chat) -> Signature {
    let one = vec![Extent::Exactly(1)];
    let mut inputs = vec![InputSpec::required("text", Datatype::Bytes, one.clone())];
    if chat.task == ChatTask::Generate {
        inputs.push(InputSpec::optional("max_tokens", Datatype::I64, one.clone()));
        inputs.push(InputSpec::optional("temperature", Datatype::F32, one));
    }
    Signature { inputs }
}

/// Writes a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub(crate) fn prepare(chat: &Chat, inputs: &Inputs, streamed: bool) -> Result<Prepared, ModelError> {
    signature(chat).check(inputs)?;
    let input = |name: &str| inputs.iter().find(|input| input.name == name);
    let mut text = String::new();
    if let Some(tensor) = input("text") {
        if tensor.data.len() > MAX_TEXT {
            return Err(bad("text", format!("it is longer than {MAX_TEXT} bytes")));
        }
        text.push_str(tensor.to_texts()?.first().copied().unwrap_or_default());
    }
    let (mut max_tokens, mut temperature) = (chat.max_tokens, chat.temperature);
    if let Some(tensor) = input("max_tokens") {
        let asked = tensor.to_i64()?.first().copied().unwrap_or_default();
        max_tokens =
            u32::try_from(asked).map_err(|_| bad("max_tokens", "it must not be negative".to_owned()))?;
    }
    if let Some(tensor) = input("temperature") {
        temperature = tensor.to_f32()?.first().copied().unwrap_or_default().into();
    }
    let mut messages = Vec::new();
    messages.extend(
        chat.system
            .as_ref()
            .map(|system| json!({"role": "system", "content": system})),
    );
    messages.push(json!({"role": "user", "content": chat.prompt.replace(TEXT, &text)}));
    let mut body = json!({
        "model": chat.model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": temperature,
    });
    let mut set = |name: &str, value: Value| {
        if let Some(body) = body.as_object_mut() {
            body.insert(name.to_owned(), value);
        }
    };
    if chat.top_logprobs > 0 {
        set("logprobs", true.into());
        set("top_logprobs", chat.top_logprobs.into());
    }
    if streamed {
        set("stream", true.into());
        set("stream_options", json!({"include_usage": true}));
    }
    Ok(Prepared {
        path: "chat/completions".to_owned(),
        content_type: "application/json",
        headers: Vec::new(),
        body: body.to_string().into(),
        head: None,
        streamed,
        max_tokens,
    })
}

fn bad(name: &str, reason: String) -> ModelError {
    ModelError::BadInput {
        name: name.to_owned(),
        reason,
    }
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<UsageField>,
}

#[derive(Deserialize)]
struct Choice {
    message: Message,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

/// Reads a whole answer.
///
/// # Errors
/// [`CallError::Malformed`], or [`CallError::Useless`] for an answer that is none of the labels or has no text.
pub(crate) fn decode(chat: &Chat, body: &Bytes) -> Result<Answer, CallError> {
    let completion: Completion = serde_json::from_slice(body).map_err(malformed)?;
    let choice = completion.choices.into_iter().next();
    let choice = choice.ok_or_else(|| malformed("it has no choices"))?;
    let mut text = Text::default();
    text.add(chat, &choice.message.content.unwrap_or_default(), choice.logprobs)?;
    text.end = choice.finish_reason;
    Ok(Answer {
        outputs: text.outputs(chat)?,
        usage: completion.usage.map(Into::into),
    })
}

/// The text of an answer, with its probabilities.
#[derive(Debug, Default)]
pub(super) struct Text {
    content: String,
    places: Vec<Place>,
    pub end: Option<String>,
}

impl Text {
    /// Adds a part.
    ///
    /// # Errors
    /// [`CallError::Malformed`] for log probabilities that are none.
    pub(super) fn add(
        &mut self,
        chat: &Chat,
        content: &str,
        logprobs: Option<Logprobs>,
    ) -> Result<(), CallError> {
        self.content.push_str(content);
        if chat.top_logprobs > 0 {
            for place in logprobs.and_then(|logprobs| logprobs.content).unwrap_or_default() {
                place.check()?;
                self.places.push(place);
            }
        }
        Ok(())
    }

    /// Returns the outputs of the complete answer.
    ///
    /// # Errors
    /// [`CallError::Useless`].
    pub(super) fn outputs(self, chat: &Chat) -> Result<Outputs, CallError> {
        if chat.top_logprobs > 0 && self.places.is_empty() && !self.content.is_empty() {
            return Err(useless(
                "the endpoint gives no log probabilities, so the answer has no confidence; set `top_logprobs = 0` for a \
                 variant that never has to decide whether to escalate",
            ));
        }
        let outputs = match &chat.task {
            ChatTask::Classify { labels } => self.classified(chat, labels)?,
            ChatTask::Generate => self.generated()?,
        };
        outputs.into_iter().collect::<Result<_, _>>().map_err(malformed)
    }

    fn classified(
        self,
        chat: &Chat,
        labels: &[String],
    ) -> Result<Vec<Result<Tensor, kaskade_models::TensorError>>, CallError> {
        let shown = || self.content.chars().take(40).collect::<String>();
        let none = || {
            useless(format!(
                "the answer `{}` is none of the labels {labels:?}",
                shown()
            ))
        };
        let scores = if chat.top_logprobs > 0 {
            // White space before the answer says nothing.
            let first = self.places.iter().find(|place| !place.token.trim().is_empty());
            first.and_then(|place| place.scores(labels)).ok_or_else(none)?
        } else {
            let class = label_of(&self.content, labels).ok_or_else(none)?;
            (0..labels.len())
                .map(|other| f32::from(u8::from(other == class)))
                .collect()
        };
        Ok(vec![Tensor::from_f32(LOGITS, &[scores.len()], &scores)])
    }

    fn generated(self) -> Result<Vec<Result<Tensor, kaskade_models::TensorError>>, CallError> {
        let end = match self.end.as_deref() {
            Some("length") => "length",
            Some("content_filter") => {
                return Err(useless("the endpoint's content filter withheld the answer"));
            }
            _ => "stop",
        };
        let probabilities: Vec<f32> = self.places.iter().map(Place::probability).collect();
        let confidence = self.places.iter().map(Place::confidence).reduce(f32::min);
        let mut outputs = vec![Tensor::from_texts("text", &[&self.content])];
        if !probabilities.is_empty() {
            outputs.push(Tensor::from_f32(
                "probabilities",
                &[probabilities.len()],
                &probabilities,
            ));
        }
        // Without probabilities an answer is never sure.
        outputs.push(Tensor::from_f32("confidence", &[1], &[confidence.unwrap_or(0.0)]));
        outputs.push(Tensor::from_texts("end", &[end]));
        Ok(outputs)
    }
}

fn useless(reason: impl Into<String>) -> CallError {
    CallError::Useless {
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(task: ChatTask) -> Chat {
        Chat {
            model: "m".to_owned(),
            task,
            system: None,
            prompt: "Review: {text}".to_owned(),
            max_tokens: 8,
            temperature: 0.0,
            top_logprobs: 5,
        }
    }

    fn classifier() -> Chat {
        chat(ChatTask::Classify {
            labels: vec!["bad".to_owned(), "good".to_owned()],
        })
    }

    fn read(chat: &Chat, body: &str) -> Result<Answer, CallError> {
        decode(chat, &Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn a_request_holds_the_text_and_no_more() {
        let inputs = vec![Tensor::from_texts("text", &["so \"good\""]).unwrap()];
        let prepared = prepare(&classifier(), &inputs, false).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            body["messages"],
            json!([{"role": "user", "content": "Review: so \"good\""}])
        );
        assert_eq!((&body["top_logprobs"], body.get("stream")), (&json!(5), None));
        assert!(prepare(&classifier(), &vec![], false).is_err());
    }

    #[test]
    fn labels_become_logits() {
        let body = r#"{"choices": [{"message": {"content": "good"}, "logprobs": {"content": [{"token": "good",
            "logprob": -0.1, "top_logprobs": [{"token": "good", "logprob": -0.1}, {"token": "bad", "logprob": -3.0}]}]}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 1}, "new": {}}"#;
        let answer = read(&classifier(), body).unwrap();
        let logits = answer.outputs[0].to_f32().unwrap();
        assert!(
            (logits[1] + 0.1).abs() < 1e-6 && (logits[0] + 3.0).abs() < 1e-6,
            "{logits:?}"
        );
        assert_eq!(answer.usage.unwrap().input_tokens, 7);
        let unsure = Chat {
            top_logprobs: 0,
            ..classifier()
        };
        let answer = read(&unsure, r#"{"choices": [{"message": {"content": "Bad."}}]}"#).unwrap();
        assert_eq!(answer.outputs[0].to_f32().unwrap(), [1.0, 0.0]);
        assert_eq!(answer.usage, None);
    }

    #[test]
    fn garbage_is_a_typed_error() {
        let place = |logprob: &str| {
            format!(
                "{{\"choices\": [{{\"message\": {{\"content\": \"good\"}}, \"logprobs\": {{\"content\": [{{\"token\": \"good\", \
                 \"logprob\": {logprob}}}]}}}}]}}"
            )
        };
        assert!(read(&classifier(), &place("-0.5")).is_ok());
        for body in [
            "",
            "<html>",
            "{}",
            r#"{"choices": []}"#,
            &place("NaN"),
            &place("1e999"),
            &place("\"x\""),
            &place("3.0"),
            &place("null"),
        ] {
            assert!(
                matches!(read(&classifier(), body), Err(CallError::Malformed { .. })),
                "{body}"
            );
        }
        let other = place("-0.5").replace("good", "maybe");
        for body in [
            other.as_str(),
            r#"{"choices": [{"message": {"content": "good"}}]}"#,
        ] {
            assert!(
                matches!(read(&classifier(), body), Err(CallError::Useless { .. })),
                "{body}"
            );
        }
    }

    #[test]
    fn a_text_is_as_sure_as_its_least_sure_token() {
        let body = r#"{"choices": [{"message": {"content": "to be"}, "finish_reason": "length", "logprobs": {"content": [
            {"token": "to", "logprob": -0.01, "top_logprobs": []}, {"token": " be", "logprob": -0.7, "top_logprobs": []}]}}]}"#;
        let answer = read(&chat(ChatTask::Generate), body).unwrap();
        let named = |name: &str| answer.outputs.iter().find(|output| output.name == name).unwrap();
        assert_eq!(named("text").to_texts().unwrap(), ["to be"]);
        assert_eq!(named("end").to_texts().unwrap(), ["length"]);
        assert_eq!(named("probabilities").shape, [2]);
        let confidence = named("confidence").to_f32().unwrap()[0];
        assert!((confidence - (-1.4_f32).exp()).abs() < 1e-3, "{confidence}");
    }
}
