//! `/v1/chat/completions`. The messages go to the worker as one JSON text; the worker renders the model's chat template.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use kaskade_actors::wire::InferRequest;
use kaskade_models::Tensor;
use serde::Deserialize;
use serde_json::{Value, json};

use super::choice::{Choice, Usage, fingerprint, unix_seconds};
use super::completions::{answers, begin};
use super::sampling::{Common, MAX_TOP};
use super::sse::{self, Asked, Form, Head};
use crate::failure::{Api, Failure};
use crate::oip::json_response;
use crate::shared::Shared;

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

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
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

pub(super) async fn create(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let answered = chat(&shared, request).await;
    answered.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

async fn chat(shared: &Shared, request: Request) -> Result<Response<Body>, Failure> {
    let (call, asked): (_, Chat) =
        begin(shared, request, |asked: &Chat| asked.common.model.as_deref()).await?;
    asked.common.check()?;
    let messages = messages(asked.messages)?;
    let logprobs = asked.logprobs.unwrap_or(false);
    let top = asked.top_logprobs.filter(|_| logprobs).unwrap_or(0);
    if top > MAX_TOP {
        let message = format!("`top_logprobs` must be at most {MAX_TOP}");
        return Err(Failure::param("top_logprobs", message));
    }
    let mut requests = Vec::new();
    for choice in 0..asked.common.choices() {
        let mut inputs = vec![Tensor::from_texts("messages", &[&messages])?];
        inputs.extend(asked.common.inputs(choice, logprobs.then_some(top))?);
        requests.push(Asked {
            request: InferRequest {
                inputs,
                ..InferRequest::default()
            },
            prompt_tokens: None,
            first: choice == 0,
            echo: String::new(),
        });
    }
    let head = Head {
        form: Form::Chat,
        id: format!("chatcmpl-{}", kaskade_actors::ids::unique_token()),
        created: unix_seconds(),
        model: call.app.options.name.clone(),
        logprobs,
        include_usage: asked.common.include_usage(),
    };
    if asked.common.stream.unwrap_or(false) {
        return sse::respond(call, head, requests).await;
    }
    let replies = answers(&call, &requests).await?;
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    for (index, (asked, reply)) in requests.iter().zip(&replies).enumerate() {
        let choice = Choice::read(reply)?;
        usage.add(&call, reply, &choice, None, asked.first);
        choices.push(json!({
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": null, "annotations": []},
            "logprobs": logprobs.then(|| choice.chat_logprobs()),
            "finish_reason": choice.finish,
        }));
    }
    let body = json!({
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": usage.json(),
        "system_fingerprint": fingerprint(&call),
        "service_tier": "default",
    });
    let mut response = json_response(axum::http::StatusCode::OK, body.to_string());
    if let Some(reply) = replies.first() {
        call.describe(reply, response.headers_mut());
    }
    Ok(response)
}

/// Returns the messages as a JSON array of `{role, content}`, content a text.
fn messages(messages: Vec<Message>) -> Result<String, Failure> {
    if messages.is_empty() {
        return Err(Failure::param("messages", "send at least one message"));
    }
    let messages = messages.into_iter().map(|message| {
        let content = match message.content {
            Content::Text(text) => text,
            Content::Empty => String::new(),
            Content::Parts(parts) => texts(&parts)?,
        };
        // Chat templates know the older name.
        let role = match message.role.as_str() {
            "developer" => "system",
            role => role,
        };
        Ok(json!({"role": role, "content": content}))
    });
    let messages = messages.collect::<Result<Vec<_>, Failure>>()?;
    Ok(Value::from(messages).to_string())
}

fn texts(parts: &[Value]) -> Result<String, Failure> {
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
        assert_eq!(value[0], json!({"role": "system", "content": "be brief"}));
        assert_eq!(value[1], json!({"role": "user", "content": "ab"}));
        let image = vec![Message {
            role: "user".to_owned(),
            content: Content::Parts(vec![json!({"type": "image_url"})]),
        }];
        assert_eq!(messages(image).unwrap_err().param, Some("messages"));
        assert!(messages(Vec::new()).is_err());
    }
}
