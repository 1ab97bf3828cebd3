//! Chat completions, and the older completions: classification by label words, and generation. They differ in the form of the
//! prompt and of the answer alone.

use bytes::Bytes;
use kaskade_models::language::request;
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, ModelError, Signature};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::formats_and_tools::{self, RawCall};
use super::logprobs::Logprobs;
use super::prompt::{MAX_TOKENS, Prompt};
use super::sampling::Sampling;
use super::text::{self, Piece, Text};
use super::{UsageField, malformed, or_default, text_or_empty, usage};
use crate::endpoint::{Chat, ChatTask, Confidence, Style};
use crate::error::CallError;
use crate::error_body::error_in;
use crate::prepared::{Answer, Prepared};

/// The inputs of a local language model for generation, and `text` BYTES `[1]` for classification.
pub(crate) fn signature(chat: &Chat) -> Signature {
    let inputs = match chat.task {
        ChatTask::Generate => {
            let mut inputs = request::prompt_inputs(MAX_TOKENS);
            inputs.extend(request::sampling_inputs(true));
            inputs
        }
        ChatTask::Classify { .. } => {
            let one = vec![Extent::Exactly(1)];
            vec![InputSpec::required("text", Datatype::Bytes, one)]
        }
    };
    Signature { inputs }
}

/// Writes a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub(crate) fn prepare(chat: &Chat, inputs: &Inputs, streamed: bool) -> Result<Prepared, ModelError> {
    signature(chat).check(inputs)?;
    let sampling = Sampling::of(chat, inputs)?;
    let (field, prompt) = Prompt::read(inputs)?.field(chat)?;
    let mut body = Map::new();
    body.insert("model".to_owned(), chat.model.clone().into());
    body.insert(field.to_owned(), prompt);
    sampling.write(chat, &mut body);
    if let ChatTask::Generate = chat.task {
        formats_and_tools::write(chat, inputs, &mut body)?;
    }
    let mut choices = 1;
    if let Confidence::Agreement { samples, .. } = chat.confidence {
        choices = samples;
        body.insert("n".to_owned(), samples.into());
    }
    // Whether samples agree is known when all are complete.
    let streamed = streamed && choices == 1;
    if streamed {
        body.insert("stream".to_owned(), true.into());
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    for name in &chat.fields.omit {
        body.remove(name);
    }
    body.extend(chat.fields.extra.clone());
    let path = match chat.style {
        Style::Chat => "chat/completions",
        Style::Completions => "completions",
    };
    Ok(Prepared {
        path: path.to_owned(),
        content_type: "application/json",
        headers: Vec::new(),
        body: Value::Object(body).to_string().into(),
        head: None,
        streamed,
        max_tokens: sampling.max_tokens.saturating_mul(choices),
        top_logprobs: sampling.top_logprobs,
        free_temperature: sampling.has_free_temperature(chat),
    })
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default, deserialize_with = "or_default")]
    choices: Vec<Choice>,
    #[serde(default, deserialize_with = "usage")]
    usage: Option<UsageField>,
    /// Of [joined](super::samples::joined) samples.
    #[serde(default, rename = "kaskade_calls")]
    calls: Option<u32>,
}

#[derive(Deserialize)]
struct Choice {
    /// Of chat completions.
    #[serde(default)]
    message: Option<Message>,
    /// Of completions.
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

/// A message, or the part of one that a stream gives.
#[derive(Default, Deserialize)]
pub(super) struct Message {
    #[serde(default, deserialize_with = "text_of")]
    content: String,
    /// The reasoning, as `DeepSeek`, `SGLang` and vLLM name it.
    #[serde(default, deserialize_with = "text_or_empty")]
    reasoning_content: String,
    /// The reasoning, as newer releases of vLLM and `OpenRouter` name it.
    #[serde(default, deserialize_with = "text_or_empty")]
    reasoning: String,
    /// What the model says instead of an answer that it refuses.
    #[serde(default, deserialize_with = "text_or_empty")]
    refusal: String,
    #[serde(default, deserialize_with = "or_default")]
    tool_calls: Vec<RawCall>,
}

impl Message {
    /// Returns a message with this text alone, as completions have it.
    pub(super) fn of_text(content: String) -> Self {
        Self {
            content,
            ..Self::default()
        }
    }

    /// Returns the message as a part of an answer. The reasoning may have two names, with the same text.
    pub(super) fn piece(self, logprobs: Option<Logprobs>) -> Piece {
        Piece {
            content: self.content,
            reasoning: if self.reasoning_content.is_empty() {
                self.reasoning
            } else {
                self.reasoning_content
            },
            refusal: self.refusal,
            calls: self.tool_calls,
            logprobs,
        }
    }
}

/// Reads the text of a message: a text, null, or a list of parts, of which those that are texts count.
fn text_of<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Content {
        Text(String),
        Parts(Vec<Part>),
    }
    #[derive(Deserialize)]
    struct Part {
        #[serde(default)]
        text: Option<String>,
    }
    Ok(match Option::deserialize(deserializer)? {
        None => String::new(),
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => parts.into_iter().filter_map(|part| part.text).collect(),
    })
}

impl Choice {
    fn read(self, chat: &Chat, top_logprobs: Option<usize>) -> Result<Text, CallError> {
        let message = match (self.text, self.message) {
            (Some(text), _) => Message::of_text(text),
            (None, Some(message)) => message,
            (None, None) => return Err(malformed("a choice has no text")),
        };
        let mut text = Text::wanting(top_logprobs);
        text.add(chat, message.piece(self.logprobs))?;
        text.end = self.finish_reason;
        Ok(text)
    }
}

/// Reads a whole answer to a request that wants to see `top_logprobs` most probable tokens.
///
/// # Errors
/// [`CallError::Malformed`], or [`CallError::Useless`] for an answer that is none of the labels or has no text.
pub(crate) fn decode(chat: &Chat, top_logprobs: Option<usize>, body: &Bytes) -> Result<Answer, CallError> {
    let completion: Completion = serde_json::from_slice(body).map_err(malformed)?;
    if completion.choices.is_empty()
        && let Some(error) = error_in(body)
    {
        return Err(error);
    }
    let mut choices = completion.choices.into_iter();
    let outputs = if let Confidence::Agreement { samples, .. } = chat.confidence {
        let texts: Result<Vec<Text>, CallError> =
            choices.map(|choice| choice.read(chat, top_logprobs)).collect();
        text::agreed(chat, texts?, samples)?
    } else {
        let choice = choices.next().ok_or_else(|| malformed("it has no choices"))?;
        let mut text = choice.read(chat, top_logprobs)?;
        text.reasoning_tokens = completion.usage.and_then(|usage| usage.reasoning);
        text.outputs(chat)?
    };
    Ok(Answer {
        outputs,
        usage: completion.usage.and_then(UsageField::counted),
        calls: completion.calls.unwrap_or(1),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use kaskade_models::Tensor;
    use kaskade_models::generation::SamplingOptions;

    use super::*;
    use crate::endpoint::Fields;

    pub(in crate::openai) fn chat(task: ChatTask) -> Chat {
        Chat {
            model: "m".to_owned(),
            task,
            system: None,
            prompt: "Review: {text}".to_owned(),
            sampling: SamplingOptions {
                max_tokens: Some(8),
                ..SamplingOptions::default()
            },
            top_logprobs: 5,
            style: Style::Chat,
            confidence: Confidence::Logprobs,
            fields: Fields::default(),
        }
    }

    fn classifier() -> Chat {
        chat(ChatTask::Classify {
            labels: vec!["bad".to_owned(), "good".to_owned()],
        })
    }

    fn read(chat: &Chat, body: &str) -> Result<Answer, CallError> {
        decode(chat, None, &Bytes::copy_from_slice(body.as_bytes()))
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
    fn fields_are_left_out_and_added() {
        let mut asked = classifier();
        asked.fields = Fields {
            extra: json!({"reasoning_effort": "minimal"})
                .as_object()
                .unwrap()
                .clone(),
            omit: vec!["temperature".to_owned()],
        };
        let inputs = vec![Tensor::from_texts("text", &["so good"]).unwrap()];
        let prepared = prepare(&asked, &inputs, false).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(
            (body.get("temperature"), &body["reasoning_effort"]),
            (None, &json!("minimal"))
        );
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
        let uncounted = r#"{"choices": [{"message": {"content": "Bad."}}], "usage": {"prompt_tokens": null, "completion_tokens": 1}}"#;
        assert_eq!(
            read(&unsure, uncounted).unwrap().usage,
            None,
            "unknown is not zero"
        );
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
        ] {
            assert!(
                matches!(read(&classifier(), body), Err(CallError::Malformed { .. })),
                "{body}"
            );
        }
        let other = place("-0.5").replace("good", "maybe");
        for body in [
            other.as_str(),
            // Null is an unknown log probability, as if there were none.
            &place("null"),
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

    #[test]
    fn reasoning_is_an_output_and_leaves_the_confidence_to_the_text() {
        let answer = |name: &str, content: &str, end: &str| {
            let place =
                |token: &str, logprob: f64| json!({"token": token, "logprob": logprob, "top_logprobs": []});
            let body = json!({
                "choices": [{
                    "message": {"content": content, name: "So 4 or 5?"},
                    "finish_reason": end,
                    "logprobs": {"content": [place("So 4", -3.0), place(" or 5?", -4.0), place("</think>", -5.0), place("\n4", -0.1), place(".", -0.2)]},
                }],
                "usage": {"prompt_tokens": 7, "completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}},
            });
            read(&chat(ChatTask::Generate), &body.to_string()).unwrap()
        };
        for name in ["reasoning_content", "reasoning"] {
            let answer = answer(name, "4.", "stop");
            let named = |name: &str| answer.outputs.iter().find(|output| output.name == name).unwrap();
            assert_eq!(named("text").to_texts().unwrap(), ["4."]);
            assert_eq!(named("reasoning").to_texts().unwrap(), ["So 4 or 5?"]);
            assert_eq!(named("reasoning_tokens").to_i64().unwrap(), [3]);
            assert_eq!(named("probabilities").shape, [5], "those of all tokens");
            let confidence = named("confidence").to_f32().unwrap()[0];
            assert!((confidence - (-0.4_f32).exp()).abs() < 1e-3, "{confidence}");
        }
        let cut = answer("reasoning", "", "length");
        let confidence = cut.outputs.iter().find(|output| output.name == "confidence");
        assert_eq!(
            confidence.unwrap().to_f32().unwrap(),
            [0.0],
            "no text is no answer"
        );
    }

    #[test]
    fn reasoning_says_nothing_of_a_label() {
        let place = |token: &str, of: [f64; 2]| {
            let top = json!([{"token": "good", "logprob": of[0]}, {"token": "bad", "logprob": of[1]}]);
            json!({"token": token, "logprob": of[0].max(of[1]), "top_logprobs": top})
        };
        let body = json!({"choices": [{
            "message": {"content": "good", "reasoning": "bad?"},
            "logprobs": {"content": [place("bad", [-3.0, -0.1]), place("?", [-3.0, -0.1]), place("good", [-0.1, -3.0])]},
        }]});
        let logits = read(&classifier(), &body.to_string()).unwrap().outputs[0]
            .to_f32()
            .unwrap();
        assert!(logits[1] > logits[0], "{logits:?}");
    }

    #[test]
    fn the_older_interface_says_the_same_in_another_form() {
        let older = Chat {
            style: Style::Completions,
            system: Some("Be brief.".to_owned()),
            top_logprobs: 20,
            ..classifier()
        };
        let inputs = vec![Tensor::from_texts("text", &["so good"]).unwrap()];
        let prepared = prepare(&older, &inputs, false).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!(prepared.path, "completions");
        assert_eq!(
            (&body["prompt"], &body["logprobs"]),
            (&json!("Be brief.\n\nReview: so good"), &json!(5))
        );
        let text = |logprob: &str| {
            format!(
                "{{\"choices\": [{{\"text\": \" good\", \"logprobs\": {{\"tokens\": [\" good\"], \"token_logprobs\": [{logprob}], \
                 \"top_logprobs\": [{{\" good\": -0.1, \" bad\": -3.0}}]}}}}]}}"
            )
        };
        let logits = read(&older, &text("-0.1")).unwrap().outputs[0].to_f32().unwrap();
        assert!(
            (logits[1] + 0.1).abs() < 1e-6 && (logits[0] + 3.0).abs() < 1e-6,
            "{logits:?}"
        );
        for bad in ["0.5", "\"x\""] {
            assert!(
                matches!(read(&older, &text(bad)), Err(CallError::Malformed { .. })),
                "{bad}"
            );
        }
        // An unknown log probability is as if there were none.
        assert!(matches!(
            read(&older, &text("null")),
            Err(CallError::Useless { .. })
        ));
        let nothing = r#"{"choices": [{"finish_reason": "stop"}]}"#;
        assert!(matches!(read(&older, nothing), Err(CallError::Malformed { .. })));
    }

    #[test]
    fn labels_of_which_one_begins_another_are_separated() {
        let label = |labels: &[&str], content: &str, top: &[(&str, f64)]| {
            let top: Vec<Value> = top
                .iter()
                .map(|(token, probability)| json!({"token": token, "logprob": probability.ln()}))
                .collect();
            let first = json!({"token": top[0]["token"], "logprob": top[0]["logprob"], "top_logprobs": top});
            let body =
                json!({"choices": [{"message": {"content": content}, "logprobs": {"content": [first]}}]});
            let labels = labels.iter().map(|label| (*label).to_owned()).collect();
            let asked = chat(ChatTask::Classify { labels });
            let answer = read(&asked, &body.to_string()).unwrap();
            let scores = answer.outputs[0].to_f32().unwrap();
            let probabilities: Vec<f32> = scores.iter().map(|score| score.exp()).collect();
            (answer.outputs[1].to_texts().unwrap()[0].to_owned(), probabilities)
        };
        let rating = ["1", "2", "10"];
        let (said, probabilities) = label(&rating, "10", &[("10", 0.97), ("1", 0.02)]);
        assert_eq!(said, "10");
        assert!((probabilities[2] - 0.97).abs() < 1e-3 && (probabilities[0] - 0.02).abs() < 1e-3);
        // A tokenizer that splits numbers: the text says which label its first token begins.
        let (said, _) = label(&rating, "10", &[("1", 0.9), ("2", 0.05)]);
        assert_eq!(said, "10");
        let (said, _) = label(&rating, "1", &[("1", 0.9), ("2", 0.05)]);
        assert_eq!(said, "1");
        let (said, _) = label(&["no", "not sure"], "not sure", &[(" not", 0.8), (" no", 0.1)]);
        assert_eq!(said, "not sure");
        let (said, _) = label(&["left", "left-leaning"], "left", &[("left", 0.8)]);
        assert_eq!(said, "left");
    }

    #[test]
    fn an_answer_that_the_endpoint_ended_early_is_none() {
        let of = |task: ChatTask, end: &str| {
            let body = json!({"choices": [{"message": {"content": "good"}, "finish_reason": end}]});
            let asked = Chat {
                top_logprobs: 0,
                ..chat(task)
            };
            read(&asked, &body.to_string())
        };
        for end in ["error", "abort", "aborted", "insufficient_system_resource"] {
            for task in [ChatTask::Generate, classifier().task] {
                let error = of(task, end).unwrap_err();
                assert!(
                    matches!(error, CallError::Broken { .. }) && error.retryable(),
                    "{end}: {error}"
                );
            }
        }
        let ended = |end: &str| {
            let outputs = of(ChatTask::Generate, end).unwrap().outputs;
            let found = outputs.iter().find(|output| output.name == "end").unwrap();
            found.to_texts().unwrap()[0].to_owned()
        };
        for end in ["stop", "eos_token", "stop_sequence", "tool_calls", "unheard_of"] {
            assert_eq!(ended(end), "stop", "{end}");
        }
        assert_eq!(ended("length"), "length");
        let sure = |end: &str| {
            let body = json!({"choices": [{"message": {"content": "4"}, "finish_reason": end, "logprobs": {"content":
                [{"token": "4", "logprob": -0.1, "top_logprobs": []}]}}]});
            let outputs = read(&chat(ChatTask::Generate), &body.to_string())
                .unwrap()
                .outputs;
            let found = outputs.iter().find(|output| output.name == "confidence").unwrap();
            found.to_f32().unwrap()[0]
        };
        assert!(sure("stop") > 0.5);
        assert!(sure("unheard_of") < 1e-6, "an unknown end is never sure");
    }

    #[test]
    fn a_refusal_by_the_model_is_no_empty_answer() {
        let body = json!({"choices": [{"message": {"content": null, "refusal": "I cannot help."}, "finish_reason": "stop"}]});
        let error = read(&chat(ChatTask::Generate), &body.to_string()).unwrap_err();
        assert!(
            matches!(&error, CallError::Useless { reason } if reason.contains("I cannot help.")),
            "{error}"
        );
        let none = json!({"choices": [{"message": {"content": "4", "refusal": null}, "logprobs": {"content":
            [{"token": "4", "logprob": -0.1}]}}]});
        assert!(read(&chat(ChatTask::Generate), &none.to_string()).is_ok());
    }

    #[test]
    fn samples_that_agree_make_an_answer_sure() {
        let sampled = |task| Chat {
            top_logprobs: 0,
            confidence: Confidence::Agreement {
                samples: 4,
                temperature: 0.7,
            },
            ..chat(task)
        };
        let inputs = vec![Tensor::from_texts("text", &["so good"]).unwrap()];
        let prepared = prepare(&sampled(ChatTask::Generate), &inputs, true).unwrap();
        let body: Value = serde_json::from_slice(&prepared.body).unwrap();
        assert_eq!((&body["n"], body.get("stream")), (&json!(4), None));
        assert_eq!(prepared.max_tokens, 32, "every sample is paid for");
        let choices = |texts: &[&str]| {
            let choices = texts
                .iter()
                .map(|text| json!({"message": {"content": text}, "finish_reason": "stop"}));
            json!({"choices": choices.collect::<Vec<_>>()}).to_string()
        };
        let ChatTask::Classify { labels } = classifier().task else {
            panic!("it classifies")
        };
        let classify = sampled(ChatTask::Classify { labels });
        let logits = |texts: &[&str]| {
            read(&classify, &choices(texts)).map(|answer| answer.outputs[0].to_f32().unwrap())
        };
        let (all, most) = (
            logits(&["good", "Good.", "good", "good"]).unwrap(),
            logits(&["good", "bad", "good", "no idea"]).unwrap(),
        );
        assert!(
            all[1] - all[0] > most[1] - most[0] && most[1] > most[0],
            "{all:?} {most:?}"
        );
        for few in [&["good"][..], &["good", "eh", "hm", "er"]] {
            assert!(matches!(logits(few), Err(CallError::Useless { .. })), "{few:?}");
        }
        let generate = sampled(ChatTask::Generate);
        let answer = read(&generate, &choices(&["To be", "or", "to  be", "TO BE"])).unwrap();
        let named = |name: &str| answer.outputs.iter().find(|output| output.name == name).unwrap();
        assert_eq!(named("text").to_texts().unwrap(), ["To be"]);
        let confidence = named("confidence").to_f32().unwrap()[0];
        assert!((confidence - 3.5 / 5.5).abs() < 1e-6, "{confidence}");
    }
}
