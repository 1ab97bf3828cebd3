//! The JSON of a response, in progress and complete.

use serde_json::{Map, Value, json};

use super::super::choice::{Choice, unix_seconds};
use super::super::formats_and_tools::{Call, FormatAndTools};
use crate::http::failure::Failure;
use crate::http::json_body::set_field;

/// Fields shared by all forms of a response.
pub(super) struct Resource {
    pub(super) id: String,
    /// Id of the output message.
    pub(super) item: String,
    /// Creation time, Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<i64>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    /// Presence and frequency penalty.
    pub(super) penalties: [f32; 2],
    /// Reasoning effort, if the request states it.
    pub(super) effort: Option<String>,
    pub(super) metadata: Map<String, Value>,
    pub(super) structured: FormatAndTools,
}

impl Resource {
    /// Returns the response before the answer.
    pub(super) fn in_progress(&self) -> Value {
        self.with("in_progress", &[])
    }

    /// Returns the response with its answer, without the usage; incomplete if the answer has the maximum number of
    /// tokens.
    pub(super) fn ended(&self, choice: &Choice) -> Value {
        let status = status(choice);
        let mut response = self.with(status, &self.output(choice));
        if status == "incomplete" {
            set_field(
                &mut response,
                "incomplete_details",
                json!({"reason": "max_output_tokens"}),
            );
        } else {
            set_field(&mut response, "completed_at", unix_seconds().into());
        }
        response
    }

    /// Returns the output items: the message, if there is one, and the tool calls.
    fn output(&self, choice: &Choice) -> Vec<Value> {
        let calls = self.calls(choice);
        let message = Some(self.message(&choice.text, status(choice)));
        let message = message.filter(|_| !choice.text.is_empty() || calls.is_empty());
        let calls = calls.iter().map(|call| call.item("completed"));
        message.into_iter().chain(calls).collect()
    }

    /// Returns the tool calls.
    pub(super) fn calls(&self, choice: &Choice) -> Vec<Call> {
        self.structured.calls(choice.calls.clone())
    }

    /// Returns a failed response.
    pub(super) fn failed(&self, failure: &Failure) -> Value {
        let mut response = self.with("failed", &[]);
        let code = if failure.status.as_u16() == 429 {
            "rate_limit_exceeded"
        } else {
            "server_error"
        };
        set_field(
            &mut response,
            "error",
            json!({"code": code, "message": failure.to_string()}),
        );
        response
    }

    /// Returns the output message.
    pub(super) fn message(&self, text: &str, status: &str) -> Value {
        let content = match status {
            "in_progress" => Vec::new(),
            _ => vec![part(text)],
        };
        json!({"id": self.item, "type": "message", "role": "assistant", "status": status, "content": content})
    }

    fn with(&self, status: &str, output: &[Value]) -> Value {
        json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": null,
            "status": status,
            "incomplete_details": null,
            "model": self.model,
            "previous_response_id": null,
            "instructions": self.instructions,
            "output": output,
            "error": null,
            "tools": self.structured.flat_tools(),
            "tool_choice": self.structured.flat_tool_choice(),
            "truncation": "disabled",
            "parallel_tool_calls": self.structured.parallel(),
            "text": {"format": self.structured.response_format()},
            // Clients require numbers, although the app or the checkpoint may have other defaults.
            "temperature": self.temperature.unwrap_or(1.0),
            "top_p": self.top_p.unwrap_or(1.0),
            "presence_penalty": self.penalties[0],
            "frequency_penalty": self.penalties[1],
            "top_logprobs": 0,
            "reasoning": {"effort": self.effort, "summary": null},
            "usage": null,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": null,
            "store": false,
            "background": false,
            "service_tier": "default",
            "metadata": self.metadata,
            "safety_identifier": null,
            "prompt_cache_key": null,
        })
    }
}

/// Returns the status of a response with this answer.
pub(super) fn status(choice: &Choice) -> &'static str {
    if choice.finish == "length" {
        "incomplete"
    } else {
        "completed"
    }
}

/// Returns the content part of the output message.
pub(super) fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
