//! A streamed response as server-sent events, numbered from 0.
//!
//! Each event is named by its type. This API cannot retract an event, so [`Streaming::Optimistic`] is treated like
//! [`Streaming::AfterCertain`]: parts of a stage that may defer wait for its decision.

use axum::body::Body;
use axum::http::Response;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_actors::{Code, Fault};
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::super::choice::{Choice, Usage, text_of};
use super::super::formats_and_tools::Call as ToolCall;
use super::super::stream_events::{self, Feed, SseAnswer};
use super::resource::{Resource, part, status};
use crate::config::Streaming;
use crate::http::failure::Failure;
use crate::http::json_body::set_field;
use crate::requests::call::{Call, Piece};

struct Events {
    call: Call,
    resource: Resource,
    feed: Feed,
    /// Whether the output message has started.
    begun: bool,
    /// Text sent to the client.
    sent: String,
    /// Number of the next event.
    next: u64,
}

/// Sends the request and returns its answer as a stream of events. Waits for a while for the first piece before
/// starting the response, so that a request that fails early gets an HTTP error status.
///
/// # Errors
/// The failure of a request that fails early, before its first piece.
pub(super) async fn respond(
    call: Call,
    resource: Resource,
    request: InferRequest,
) -> Result<Response<Body>, Failure> {
    let (sender, pieces) = unbounded_channel();
    call.stream_certain(vec![request], sender);
    let mut feed = Feed::new(pieces);
    let first = feed.first(false).await?;
    let mut described = axum::http::HeaderMap::new();
    if let Some((_, Piece::Part(reply) | Piece::End(Ok(reply)))) = &first {
        call.describe(reply, &mut described);
    }
    let mut events = Events {
        call,
        resource,
        feed,
        begun: false,
        sent: String::new(),
        next: 0,
    };
    events.begin();
    if let Some((_, piece)) = first {
        events.take(0, piece);
    }
    let mut response = stream_events::response(events);
    response.headers_mut().extend(described);
    Ok(response)
}

impl SseAnswer for Events {
    fn feed(&mut self) -> &mut Feed {
        &mut self.feed
    }

    fn take(&mut self, _: usize, piece: Piece) {
        let buffered = self.call.app.options.streaming == Streaming::Buffered;
        match piece {
            Piece::Part(_) if buffered => {}
            Piece::Part(reply) => self.delta(&text_of(&reply, "text")),
            Piece::End(Ok(reply)) => {
                if let Err(failure) = self.end(&reply) {
                    self.fail(&failure);
                }
            }
            Piece::End(Err(failure)) => self.fail(&failure),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        let response = self.resource.failed(failure);
        self.event("response.failed", json!({"response": response}));
        self.feed.done();
    }
}

impl Events {
    fn event(&mut self, kind: &str, mut value: Value) {
        set_field(&mut value, "type", kind.into());
        set_field(&mut value, "sequence_number", self.next.into());
        self.next += 1;
        self.feed.event(format!("event: {kind}\ndata: {value}\n\n"));
    }

    fn begin(&mut self) {
        for kind in ["response.created", "response.in_progress"] {
            let response = self.resource.in_progress();
            self.event(kind, json!({"response": response}));
        }
    }

    /// Starts the output message; an answer with only tool calls has none.
    fn begin_message(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let item = self.resource.message("", "in_progress");
        self.event(
            "response.output_item.added",
            json!({"output_index": 0, "item": item}),
        );
        let added = self.place(json!({"part": part("")}));
        self.event("response.content_part.added", added);
    }

    /// Adds the position of the output text to an event.
    fn place(&self, mut event: Value) -> Value {
        set_field(&mut event, "item_id", self.resource.item.as_str().into());
        set_field(&mut event, "output_index", 0.into());
        set_field(&mut event, "content_index", 0.into());
        event
    }

    fn delta(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.begin_message();
        self.sent.push_str(text);
        let delta = self.place(json!({"delta": text, "logprobs": []}));
        self.event("response.output_text.delta", delta);
    }

    /// Sends the events of a tool call.
    fn call(&mut self, index: usize, call: &ToolCall) {
        let added = json!({"output_index": index, "item": call.item("in_progress")});
        self.event("response.output_item.added", added);
        let done = call.item("completed");
        let place = json!({"item_id": done.get("id"), "output_index": index});
        for (kind, field) in [("delta", "delta"), ("done", "arguments")] {
            let mut event = place.clone();
            set_field(&mut event, field, call.arguments.as_str().into());
            if kind == "done" {
                set_field(&mut event, "name", call.name.as_str().into());
            }
            self.event(&format!("response.function_call_arguments.{kind}"), event);
        }
        self.event(
            "response.output_item.done",
            json!({"output_index": index, "item": done}),
        );
    }

    fn end(&mut self, reply: &InferReply) -> Result<(), Failure> {
        let choice = Choice::read(reply)?;
        let rest = choice
            .text
            .strip_prefix(self.sent.as_str())
            .map(ToOwned::to_owned);
        let rest = rest.ok_or_else(|| {
            Failure::from(Fault::new(
                Code::ReplicasLost,
                "the answer was restarted on another replica and differs",
            ))
        })?;
        self.delta(&rest);
        let (status, calls) = (status(&choice), self.resource.calls(&choice));
        if self.begun || calls.is_empty() {
            self.begin_message();
            let done = self.place(json!({"text": choice.text, "logprobs": []}));
            self.event("response.output_text.done", done);
            let done = self.place(json!({"part": part(&choice.text)}));
            self.event("response.content_part.done", done);
            let item = self.resource.message(&choice.text, status);
            self.event(
                "response.output_item.done",
                json!({"output_index": 0, "item": item}),
            );
        }
        for (index, call) in (usize::from(self.begun)..).zip(&calls) {
            self.call(index, call);
        }
        let mut usage = Usage::default();
        usage.add(&self.call, reply, &choice, None, true);
        let mut response = self.resource.ended(&choice);
        usage.write_of_response(&mut response);
        self.event(&format!("response.{status}"), json!({"response": response}));
        self.feed.done();
        Ok(())
    }
}
