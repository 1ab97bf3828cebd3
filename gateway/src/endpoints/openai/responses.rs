//! `/v1/responses`: one answer as a response with an output message (the OpenAI API and Open Responses). Responses are not
//! stored, so that none can continue another: a client sends the whole conversation.

mod events;
mod resource;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use kaskade_actors::wire::InferRequest;
use kaskade_models::Tensor;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::chat::content_of;
use super::choice::{Choice, Usage, unix_seconds};
use super::completions::{NOT_TEXT, begin};
use super::refused_fields::{Requests, refusal};
use super::sampling::{Common, NO_TOKEN};
use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::failure::Failure;
use crate::http::json_body::set_field;
use crate::state::GatewayState;
use resource::Resource;

#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a response")]
struct RequestBody {
    input: Input,
    #[serde(default)]
    instructions: Option<String>,
    #[serde(default)]
    max_output_tokens: Option<i64>,
    #[serde(default)]
    metadata: Option<Map<String, Value>>,
    #[serde(default)]
    text: Option<Value>,
    #[serde(default)]
    reasoning: Option<Reasoning>,
    #[serde(flatten)]
    common: Common,
}

#[derive(Deserialize)]
struct Reasoning {
    #[serde(default)]
    effort: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`input` must be a text or a list of items")]
enum Input {
    Text(String),
    Items(Vec<Value>),
}

pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = respond(&shared, request).await;
    answered.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

async fn respond(shared: &GatewayState, request: Request) -> Result<Response<Body>, Failure> {
    let (call, asked): (_, RequestBody) = begin(shared, request, |asked: &RequestBody| {
        asked.common.model.as_deref()
    })
    .await?;
    call.app.check_answer_kind(&NOT_TEXT)?;
    let asked = asked.checked()?;
    let mut inputs = vec![Tensor::from_texts("messages", &[&asked.messages()?])?];
    inputs.extend(asked.common.inputs(None)?);
    let request = InferRequest {
        inputs: asked.common.of_choice(&inputs, 0)?,
        ..InferRequest::default()
    };
    let streamed = asked.common.stream.unwrap_or(false);
    let resource = Resource {
        id: format!("resp_{}", kaskade_actors::ids::unique_token()),
        item: format!("msg_{}", kaskade_actors::ids::unique_token()),
        created: unix_seconds(),
        model: call.app.options.name.clone(),
        instructions: asked.instructions,
        max_output_tokens: asked.max_output_tokens,
        temperature: asked.common.temperature(),
        top_p: asked.common.top_p(),
        penalties: asked.common.penalties(),
        effort: asked.common.reasoning_effort().map(ToOwned::to_owned),
        metadata: asked.metadata.unwrap_or_default(),
        structured: asked.common.structured,
    };
    if streamed {
        return events::respond(call, resource, request).await;
    }
    let reply = call.ask(request).await;
    let reply = reply.map_err(|failure| resource.structured.with_field(failure))?;
    let choice = Choice::read(&reply)?;
    let mut usage = Usage::default();
    usage.add(&call, &reply, &choice, None, true);
    let mut body = resource.ended(&choice);
    usage.write_of_response(&mut body);
    let mut response = json_response(StatusCode::OK, body.to_string());
    call.describe(&reply, response.headers_mut());
    Ok(response)
}

impl RequestBody {
    /// Refuses what would be answered wrongly.
    fn checked(mut self) -> Result<Self, Failure> {
        let effort = self.reasoning.take().and_then(|reasoning| reasoning.effort);
        self.common.set_reasoning_effort(effort);
        let format = self
            .text
            .as_mut()
            .and_then(|text| text.get_mut("format"))
            .map(Value::take);
        self.common.structured.of_response(format);
        if self.max_output_tokens.is_some_and(|most| most < 1) {
            return Err(Failure::param("max_output_tokens", NO_TOKEN));
        }
        if self.max_output_tokens.is_some() {
            self.common.set_max_tokens(self.max_output_tokens);
        }
        self.common.check(Requests::Responses)?;
        if self.common.prompt_logprobs()?.is_some() {
            return Err(refusal(Requests::Responses, "prompt_logprobs"));
        }
        if self.common.choices() != 1 {
            return Err(refusal(Requests::Responses, "n"));
        }
        Ok(self)
    }

    /// Returns the conversation as a JSON array of `{role, content}`, with calls of tools and their results.
    fn messages(&self) -> Result<String, Failure> {
        let mut messages = Vec::new();
        if let Some(instructions) = &self.instructions {
            messages.push(json!({"role": "system", "content": instructions}));
        }
        match &self.input {
            Input::Text(text) => messages.push(json!({"role": "user", "content": text})),
            Input::Items(items) => {
                for item in items {
                    add(&mut messages, item)?;
                }
            }
        }
        if !messages
            .iter()
            .any(|message| message.get("role").is_some_and(|role| role != "system"))
        {
            return Err(Failure::param("input", "send at least one message"));
        }
        Ok(Value::from(messages).to_string())
    }
}

/// Adds an input item to the messages. Calls that follow each other, or a text of the assistant, are one message.
fn add(messages: &mut Vec<Value>, item: &Value) -> Result<(), Failure> {
    let refuse = |reason: &str| Failure::param("input", reason);
    let text = |name: &str| {
        let text = item.get(name).and_then(Value::as_str);
        text.ok_or_else(|| Failure::param("input", format!("an item lacks the text `{name}`")))
    };
    match item.get("type").and_then(Value::as_str).unwrap_or("message") {
        "message" => messages.push(message(item)?),
        "function_call" => {
            let function = json!({"name": text("name")?, "arguments": text("arguments")?});
            let call = json!({"id": text("call_id")?, "type": "function", "function": function});
            let last = messages
                .last_mut()
                .filter(|last| last.get("role").is_some_and(|role| role == "assistant"));
            match last {
                Some(last) => match last.get_mut("tool_calls").and_then(Value::as_array_mut) {
                    Some(calls) => calls.push(call),
                    None => set_field(last, "tool_calls", json!([call])),
                },
                None => messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]})),
            }
        }
        "function_call_output" => {
            let content = match item.get("output") {
                Some(Value::String(output)) => output.clone().into(),
                Some(parts @ Value::Array(_)) => content(Some(parts))?,
                _ => return Err(refuse("the `output` of a function is a text or a list of parts")),
            };
            messages.push(json!({"role": "tool", "tool_call_id": text("call_id")?, "content": content}));
        }
        // What a model thought is no part of the conversation.
        "reasoning" => {}
        _ => {
            let reason = "only items of the types `message`, `function_call`, `function_call_output` and `reasoning` are supported";
            return Err(refuse(reason));
        }
    }
    Ok(())
}

/// Returns an input message as `{role, content}`.
fn message(item: &Value) -> Result<Value, Failure> {
    let refuse = |reason: &str| Failure::param("input", reason);
    let role = match item.get("role").and_then(Value::as_str) {
        // Chat templates know the older name.
        Some("developer") => "system",
        Some(role) => role,
        None => return Err(refuse("every message needs a `role`")),
    };
    let content = content(item.get("content"))?;
    Ok(json!({"role": role, "content": content}))
}

/// Returns a content as chats have it.
fn content(content: Option<&Value>) -> Result<Value, Failure> {
    let refuse = |reason: &str| Failure::param("input", reason);
    match content {
        Some(Value::String(text)) => Ok(text.clone().into()),
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| {
                let kind = part.get("type").and_then(Value::as_str);
                let is_text = matches!(kind, Some("input_text" | "output_text" | "text"));
                let text = part.get("text").and_then(Value::as_str).filter(|_| is_text);
                text.ok_or_else(|| {
                    refuse("only parts of the types `input_text` and `output_text` are supported")
                })
            });
            Ok(content_of(&texts.collect::<Result<Vec<&str>, _>>()?))
        }
        _ => Err(refuse("the `content` of a message is a text or a list of parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: Value) -> Result<RequestBody, Failure> {
        let asked: RequestBody = serde_json::from_value(body).unwrap();
        asked.checked()
    }

    #[test]
    fn input_becomes_messages_after_the_instructions() {
        let items = json!([
            {"type": "message", "role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
            {"type": "message", "role": "assistant", "phase": "final_answer", "content": [{"type": "output_text", "text": "c"}]},
        ]);
        let asked_of = |input: Value| {
            let asked =
                asked(json!({"input": input, "instructions": "be brief", "store": true, "x": 1})).unwrap();
            serde_json::from_str::<Value>(&asked.messages().unwrap()).unwrap()
        };
        assert_eq!(
            asked_of(items),
            json!([
                {"role": "system", "content": "be brief"},
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": "c"},
            ])
        );
        let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let called = json!([
            {"role": "user", "content": "go"},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "7"},
        ]);
        assert_eq!(
            asked_of(called).as_array().unwrap()[1..],
            [
                json!({"role": "user", "content": "go"}),
                json!({"role": "assistant", "content": null, "tool_calls": [call, call]}),
                json!({"role": "tool", "tool_call_id": "1", "content": "7"}),
            ]
        );
        assert_eq!(asked_of(json!("hi"))[1], json!({"role": "user", "content": "hi"}));
    }

    #[test]
    fn what_needs_a_store_or_other_modalities_is_refused_with_its_field() {
        for (body, param) in [
            (
                json!({"input": "x", "previous_response_id": "resp_1"}),
                "previous_response_id",
            ),
            (json!({"input": "x", "conversation": {"id": "c"}}), "conversation"),
            (json!({"input": "x", "background": true}), "background"),
            (json!({"input": "x", "prompt": {"id": "p"}}), "prompt"),
            (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
            (json!({"input": "x", "n": 2}), "n"),
            (json!({"input": "x", "truncation": "auto"}), "truncation"),
            (json!({"input": "x", "top_logprobs": 2}), "top_logprobs"),
            (json!({"input": "x", "prompt_logprobs": 0}), "prompt_logprobs"),
            (
                json!({"input": "x", "include": ["message.output_text.logprobs"]}),
                "include",
            ),
        ] {
            assert_eq!(
                asked(body.clone())
                    .err()
                    .and_then(|failure| failure.param)
                    .as_deref(),
                Some(param),
                "{body}"
            );
        }
        for input in [
            json!([]),
            json!([{"type": "function_call_output", "output": "x"}]),
            json!([{"type": "item_reference", "id": "x"}]),
            json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
            json!([{"content": "x"}]),
            json!([{"role": "user"}]),
        ] {
            let asked = asked(json!({"input": input})).unwrap();
            assert_eq!(asked.messages().unwrap_err().param.as_deref(), Some("input"));
        }
        let fine = json!({"input": "x", "previous_response_id": null, "background": false, "text": {"format": {"type": "text"}},
            "truncation": "disabled", "top_logprobs": 0, "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}});
        assert_eq!(asked(fine).unwrap().common.reasoning_effort(), Some("high"));
    }
}
