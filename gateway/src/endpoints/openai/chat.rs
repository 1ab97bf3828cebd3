//! `/v1/chat/completions`. The messages go to the worker as one JSON text; the worker renders the model's chat template.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use kaskade_actors::wire::InferRequest;
use kaskade_models::Tensor;
use kaskade_models::language::request::PROMPT_LOGPROBS;
use serde::Deserialize;
use serde_json::{Value, json};

use super::choice::{Choice, REASONING_CONTENT, Usage, fingerprint, unix_seconds};
use super::completions::{NOT_TEXT, answers, begin};
use super::described_prompt::undescribed;
use super::formats_and_tools::Call;
use super::refused_fields::Requests;
use super::sampling::{Common, MAX_TOP};
use super::sse::{self, ApiKind, ChoiceRequest, Head};
use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::http::json_body::set_field;
use crate::state::GatewayState;

#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a chat completion")]
struct Chat {
    messages: Vec<Message>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<u32>,
    #[serde(flatten)]
    common: Common,
}

/// A message of a chat.
#[derive(Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    tool_calls: Option<Vec<Value>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, alias = "reasoning")]
    reasoning_content: Option<String>,
    /// The older name of `tool_calls`.
    #[serde(default)]
    function_call: Option<Value>,
}

#[derive(Deserialize, Default)]
#[serde(
    untagged,
    expecting = "the `content` of a message must be a text or a list of parts"
)]
enum Content {
    Text(String),
    Parts(Vec<Value>),
    #[default]
    Empty,
}

pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = chat(&shared, request).await;
    answered.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

async fn chat(shared: &GatewayState, request: Request) -> Result<Response<Body>, Failure> {
    let (call, asked): (_, Chat) =
        begin(shared, request, |asked: &Chat| asked.common.model.as_deref()).await?;
    call.app.check_answer_kind(&NOT_TEXT)?;
    asked.common.check(Requests::Chat)?;
    let messages = messages(asked.messages)?;
    let logprobs = asked.logprobs.unwrap_or(false);
    let top = asked.top_logprobs.unwrap_or(0);
    if top > 0 && !logprobs {
        let message = "`top_logprobs` needs `logprobs: true`";
        return Err(Failure::param("top_logprobs", message));
    }
    if top > MAX_TOP {
        let message = format!("`top_logprobs` must be at most {MAX_TOP}");
        return Err(Failure::param("top_logprobs", message));
    }
    let prompt_logprobs = asked.common.prompt_logprobs()?;
    let mut requests = Vec::new();
    let mut inputs = vec![Tensor::from_texts("messages", &[&messages])?];
    inputs.extend(asked.common.inputs(logprobs.then_some(top))?);
    if let Some(count) = prompt_logprobs {
        inputs.push(Tensor::from_i64(PROMPT_LOGPROBS, &[1], &[count.into()])?);
    }
    for choice in 0..asked.common.choices() {
        requests.push(ChoiceRequest {
            request: InferRequest {
                inputs: asked.common.of_choice(&inputs, choice)?,
                ..InferRequest::default()
            },
            prompt_tokens: None,
            first: choice == 0,
            echo: String::new(),
        });
    }
    let head = Head {
        api: ApiKind::Chat,
        id: format!("chatcmpl-{}", kaskade_actors::ids::unique_token()),
        created: unix_seconds(),
        model: call.app.options.name.clone(),
        logprobs,
        include_usage: asked.common.include_usage(),
        parallel_calls: asked.common.structured.parallel(),
    };
    let structured = &asked.common.structured;
    let with_field = |failure| structured.with_field(failure);
    if asked.common.stream.unwrap_or(false) {
        return sse::respond(call, head, requests).await.map_err(with_field);
    }
    let replies = answers(&call, &mut requests).await.map_err(with_field)?;
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    let mut prompt = None;
    for (index, (asked, reply)) in requests.iter().zip(&replies).enumerate() {
        let choice = Choice::read(reply)?;
        if let Some(count) = prompt_logprobs.filter(|_| prompt.is_none()) {
            let described = choice.prompt.as_ref().map(|prompt| prompt.logprobs_by_id(count));
            prompt = Some(
                described
                    .ok_or_else(|| undescribed("prompt_logprobs", "leave `prompt_logprobs` out", reply))?,
            );
        }
        usage.add(&call, reply, &choice, None, asked.first);
        let calls = structured.calls(choice.calls.clone());
        let content = Some(choice.text.as_str()).filter(|text| !text.is_empty() || calls.is_empty());
        let mut message =
            json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
        if !choice.reasoning.is_empty() {
            set_field(&mut message, REASONING_CONTENT, choice.reasoning.clone().into());
        }
        if !calls.is_empty() {
            let calls: Vec<Value> = calls.iter().map(Call::chat).collect();
            set_field(&mut message, "tool_calls", calls.into());
        }
        choices.push(json!({
            "index": index,
            "message": message,
            "logprobs": logprobs.then(|| choice.chat_logprobs()),
            "finish_reason": choice.finish,
        }));
    }
    let mut body = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "system_fingerprint": fingerprint(&call),
        "service_tier": "default",
    });
    if let Some(prompt) = prompt {
        set_field(&mut body, "prompt_logprobs", prompt);
    }
    usage.write(&mut body);
    let mut response = json_response(axum::http::StatusCode::OK, body.to_string());
    if let Some(reply) = replies.first() {
        call.describe(reply, response.headers_mut());
    }
    Ok(response)
}

/// Returns the messages as a JSON array of `{role, content}`, with `tool_calls`, `tool_call_id`, `name` and `reasoning_content` where
/// they have them. A content is a text, a list of several texts as parts, or null beside calls.
pub(super) fn messages(messages: Vec<Message>) -> Result<String, Failure> {
    if messages.is_empty() {
        return Err(Failure::param("messages", "send at least one message"));
    }
    let messages = messages.into_iter().map(|message| {
        if message.role == "function" || message.function_call.is_some_and(|call| !call.is_null()) {
            let reason = "`function_call` and the role `function` are not supported; send `tool_calls` and the role `tool`";
            return Err(Failure::param("messages", reason));
        }
        let calls = message.tool_calls.filter(|calls| !calls.is_empty());
        let content = match message.content {
            Content::Text(text) => text.into(),
            Content::Empty if calls.is_some() => Value::Null,
            // What a model said may be its reasoning alone.
            Content::Empty if message.role == "assistant" => String::new().into(),
            Content::Empty => {
                let reason = format!("a message of the role `{}` has no `content`", message.role);
                return Err(Failure::param("messages", reason));
            }
            Content::Parts(parts) => content_of(&texts(&parts)?),
        };
        // Chat templates know the older name.
        let role = match message.role.as_str() {
            "developer" => "system",
            role => role,
        };
        let mut written = json!({"role": role, "content": content});
        if let Some(calls) = calls {
            set_field(&mut written, "tool_calls", calls.into());
        }
        for (field, value) in [
            ("tool_call_id", message.tool_call_id),
            ("name", message.name),
            (REASONING_CONTENT, message.reasoning_content),
        ] {
            if let Some(value) = value {
                set_field(&mut written, field, value.into());
            }
        }
        Ok(written)
    });
    let messages = messages.collect::<Result<Vec<_>, Failure>>()?;
    Ok(Value::from(messages).to_string())
}

/// Returns the content of a message of several parts, whose chat template may read them; one part is a text.
pub(super) fn content_of(texts: &[&str]) -> Value {
    match texts {
        [] => String::new().into(),
        [text] => (*text).into(),
        texts => texts
            .iter()
            .map(|text| json!({"type": "text", "text": text}))
            .collect(),
    }
}

fn texts(parts: &[Value]) -> Result<Vec<&str>, Failure> {
    let texts = parts.iter().map(|part| {
        let is_text = part.get("type").and_then(Value::as_str) == Some("text");
        let text = part.get("text").and_then(Value::as_str).filter(|_| is_text);
        text.ok_or_else(|| Failure::param("messages", "only parts of the type `text` are supported"))
    });
    texts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_one_json_text() {
        let chat: Chat = serde_json::from_str(
            r#"{"messages":[{"role":"developer","content":"be brief","name":"x"},
                {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"user":"me"}"#,
        )
        .unwrap();
        let text = messages(chat.messages).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value[0],
            json!({"role": "system", "content": "be brief", "name": "x"})
        );
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(value[1], json!({"role": "user", "content": parts}));
        assert!(messages(Vec::new()).is_err());
    }

    #[test]
    fn messages_that_are_no_texts_are_refused() {
        let read = |message: Value| messages(serde_json::from_value(json!([message])).unwrap());
        for message in [
            json!({"role": "user", "content": [{"type": "image_url"}]}),
            json!({"role": "assistant", "content": null, "function_call": {"name": "f"}}),
            json!({"role": "function", "name": "f", "content": "7"}),
            json!({"role": "user"}),
            json!({"role": "tool", "content": null, "tool_call_id": "1"}),
        ] {
            assert_eq!(read(message).unwrap_err().param.as_deref(), Some("messages"));
        }
        let plain = json!({"role": "assistant", "content": "a", "tool_calls": null, "function_call": null, "refusal": null});
        assert!(read(plain).is_ok());
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        for message in [
            json!({"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": "x"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call]}),
            json!({"role": "tool", "content": "7", "tool_call_id": "1"}),
        ] {
            let text = read(message.clone()).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!([message]));
        }
    }
}
