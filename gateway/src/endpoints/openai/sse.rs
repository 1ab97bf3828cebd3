//! A streamed answer as server-sent events.
//!
//! The response starts after the first piece or a limited wait, so that a request that fails early gets an HTTP error
//! status. Parts come from a stage that can no longer defer. The complete answer then supplies the rest: all of it if
//! an earlier stage of the cascade answered.
//!
//! With [`Streaming::Optimistic`] parts come from every stage. If a later stage replaces the answer, a chunk with
//! `kaskade.retracted` says that all text of its choice so far is void; the answer then starts again.

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_actors::{Code, Fault};
use kaskade_models::language::REASONING;
use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use super::choice::{Choice, REASONING_CONTENT, Usage, fingerprint, text_of};
use super::stream_events::{self, Feed, SseAnswer};
use super::text_offsets::{Offsets, Position};
use crate::config::Streaming;
use crate::http::failure::Failure;
use crate::http::json_body::set_field;
use crate::requests::call::{Call, Piece};

/// API of a chunk, which determines its format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ApiKind {
    Chat,
    Completion,
}

/// Fields shared by all chunks of an answer.
pub(super) struct Head {
    pub(super) api: ApiKind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) logprobs: bool,
    pub(super) include_usage: bool,
    /// Whether an answer may have several tool calls.
    pub(super) parallel_calls: bool,
}

/// A request for one choice.
pub(super) struct ChoiceRequest {
    pub(super) request: InferRequest,
    /// Number of prompt tokens, if the prompt was sent as tokens.
    pub(super) prompt_tokens: Option<i64>,
    /// Whether this is the first choice of its prompt.
    pub(super) first: bool,
    /// Prompt text to return before the answer.
    pub(super) echo: String,
}

struct Streamed {
    prompt_tokens: Option<i64>,
    first: bool,
    /// Text sent to the client.
    sent: String,
    /// Reasoning sent to the client.
    sent_reasoning: String,
    /// Number of tokens whose log probabilities were sent.
    sent_tokens: usize,
    /// Position at which those tokens end.
    sent_until: Position,
    /// Stage whose text was sent.
    stage: String,
    begun: bool,
}

struct Events {
    call: Call,
    head: Head,
    feed: Feed,
    choices: Vec<Streamed>,
    open: usize,
    usage: Usage,
}

/// Sends the requests and returns their answers as a stream of events.
///
/// # Errors
/// The failure of a request that fails early, before its first piece.
pub(super) async fn respond(
    call: Call,
    head: Head,
    asked: Vec<ChoiceRequest>,
) -> Result<Response<Body>, Failure> {
    let (sender, pieces) = unbounded_channel();
    let mut choices = Vec::new();
    let mut echoes = Vec::new();
    let mut requests = Vec::new();
    for (index, asked) in asked.into_iter().enumerate() {
        requests.push(asked.request);
        if !asked.echo.is_empty() {
            echoes.push((index, asked.echo));
        }
        choices.push(Streamed {
            prompt_tokens: asked.prompt_tokens,
            first: asked.first,
            sent: String::new(),
            sent_reasoning: String::new(),
            sent_tokens: 0,
            sent_until: Position::default(),
            stage: String::new(),
            begun: false,
        });
    }
    call.stream(requests, sender);
    let mut events = Events {
        open: choices.len(),
        call,
        head,
        feed: Feed::new(pieces),
        choices,
        usage: Usage::default(),
    };
    for (index, echo) in echoes {
        events.chunk(index, &json!({"content": echo}), None, None, None);
    }
    let buffered = events.call.app.options.streaming == Streaming::Buffered;
    let mut described = HeaderMap::new();
    if let Some((index, piece)) = events.feed.first(buffered).await? {
        // A part comes from the stage that answers, so its confidence is not known yet.
        if let Piece::Part(reply) | Piece::End(Ok(reply)) = &piece {
            events.call.describe(reply, &mut described);
        }
        events.take(index, piece);
    }
    let mut response = stream_events::response(events);
    response.headers_mut().extend(described);
    Ok(response)
}

impl SseAnswer for Events {
    fn feed(&mut self) -> &mut Feed {
        &mut self.feed
    }

    fn take(&mut self, index: usize, piece: Piece) {
        let buffered = self.call.app.options.streaming == Streaming::Buffered;
        match piece {
            Piece::Part(_) if buffered => {}
            Piece::Part(reply) => {
                self.of_stage(index, &reply.stage);
                self.reasoning(index, &text_of(&reply, REASONING));
                let tokens = if self.head.logprobs {
                    Choice::read(&reply).ok()
                } else {
                    None
                };
                let logprobs = tokens.and_then(|tokens| self.logprobs(index, &tokens));
                self.text(index, &text_of(&reply, "text"), logprobs.as_ref());
            }
            Piece::End(Ok(reply)) => {
                if let Err(failure) = self.end(index, &reply) {
                    self.fail(&failure);
                }
            }
            Piece::End(Err(failure)) => self.fail(&failure),
        }
    }

    fn fail(&mut self, failure: &Failure) {
        self.event(&failure.openai());
        self.feed.done();
    }
}

impl Events {
    /// Sets the stage of the following text, and retracts the text of another stage.
    fn of_stage(&mut self, index: usize, stage: &str) {
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        let before = std::mem::replace(&mut choice.stage, stage.to_owned());
        if before != stage {
            self.retract(index, &before);
        }
    }

    /// Sends an event that voids the text of a choice so far.
    fn retract(&mut self, index: usize, stage: &str) {
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        let sent = std::mem::take(&mut choice.sent);
        let reasoning = std::mem::take(&mut choice.sent_reasoning);
        choice.sent_tokens = 0;
        choice.sent_until = Position::default();
        if sent.is_empty() && reasoning.is_empty() {
            return;
        }
        let retracted = json!({"retracted": true, "stage": stage, "characters": sent.chars().count()});
        self.chunk(index, &json!({}), None, None, Some(retracted));
    }

    /// Sends the role before the first part of a choice.
    fn begin(&mut self, index: usize) {
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        let begun = std::mem::replace(&mut choice.begun, true);
        if self.head.api == ApiKind::Chat && !begun {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            self.chunk(index, &delta, None, None, None);
        }
    }

    /// Sends new reasoning of a choice. A completion has none.
    fn reasoning(&mut self, index: usize, text: &str) {
        if text.is_empty() || self.head.api == ApiKind::Completion {
            return;
        }
        self.begin(index);
        if let Some(choice) = self.choices.get_mut(index) {
            choice.sent_reasoning.push_str(text);
            self.chunk(index, &json!({REASONING_CONTENT: text}), None, None, None);
        }
    }

    /// Sends new text of a choice.
    fn text(&mut self, index: usize, text: &str, logprobs: Option<&Value>) {
        self.begin(index);
        let Some(choice) = self.choices.get_mut(index) else {
            return;
        };
        choice.sent.push_str(text);
        if text.is_empty() && logprobs.is_none() {
            return;
        }
        self.chunk(index, &json!({"content": text}), logprobs, None, None);
    }

    /// Returns the log probabilities of further tokens of a choice, if requested.
    fn logprobs(&mut self, index: usize, further: &Choice) -> Option<Value> {
        let choice = self.choices.get_mut(index).filter(|_| self.head.logprobs)?;
        if further.tokens.is_empty() {
            return None;
        }
        let offsets = Offsets::from(choice.sent_until);
        let (_, end) = offsets.of_tokens(further.tokens.iter().map(String::as_str));
        choice.sent_tokens += further.tokens.len();
        choice.sent_until = end;
        Some(match self.head.api {
            ApiKind::Chat => further.chat_logprobs(),
            ApiKind::Completion => further.completion_logprobs(&offsets),
        })
    }

    fn end(&mut self, index: usize, reply: &InferReply) -> Result<(), Failure> {
        let mut answer = Choice::read(reply)?;
        if self.call.app.options.streaming == Streaming::Optimistic {
            self.of_stage(index, &reply.stage);
            // Another replica restarted the answer, with a different text.
            let differs = |choice: &Streamed| {
                !(answer.text.starts_with(&choice.sent)
                    && answer.reasoning.starts_with(&choice.sent_reasoning))
            };
            if self.choices.get(index).is_some_and(differs) {
                self.retract(index, &reply.stage);
            }
        }
        let Some(choice) = self.choices.get(index) else {
            return Ok(());
        };
        let (known, first) = (choice.prompt_tokens, choice.first);
        let rest = [
            (&answer.reasoning, &choice.sent_reasoning),
            (&answer.text, &choice.sent),
        ];
        let [reasoning, rest] =
            rest.map(|(whole, sent)| whole.strip_prefix(sent.as_str()).map(ToOwned::to_owned));
        let (Some(reasoning), Some(rest)) = (reasoning, rest) else {
            return Err(Failure::from(Fault::new(
                Code::ReplicasLost,
                "the answer was restarted on another replica and differs",
            )));
        };
        self.reasoning(index, &reasoning);
        let completion_tokens = answer.completion_tokens();
        answer.skip_tokens(self.choices.get(index).map_or(0, |choice| choice.sent_tokens));
        let logprobs = self.logprobs(index, &answer);
        answer.completion_tokens = Some(completion_tokens);
        self.text(index, &rest, logprobs.as_ref());
        let max_calls = if self.head.parallel_calls { usize::MAX } else { 1 };
        for (number, call) in answer.calls.iter().take(max_calls).enumerate() {
            let mut call = call.chat();
            set_field(&mut call, "index", number.into());
            self.chunk(index, &json!({"tool_calls": [call]}), None, None, None);
        }
        self.chunk(
            index,
            &json!({}),
            None,
            Some(answer.finish),
            Some(self.call.description(reply)),
        );
        self.usage.add(&self.call, reply, &answer, known, first);
        self.open -= 1;
        if self.open == 0 {
            if self.head.include_usage {
                let mut usage = self.envelope();
                set_field(&mut usage, "choices", json!([]));
                self.usage.write(&mut usage);
                self.event(&usage);
            }
            self.feed.done();
        }
        Ok(())
    }

    fn envelope(&self) -> Value {
        let object = match self.head.api {
            ApiKind::Chat => "chat.completion.chunk",
            ApiKind::Completion => "text_completion",
        };
        let mut chunk = json!({
            "id": self.head.id,
            "object": object,
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": fingerprint(&self.call),
        });
        if self.head.include_usage {
            set_field(&mut chunk, "usage", Value::Null);
        }
        chunk
    }

    fn chunk(
        &mut self,
        index: usize,
        delta: &Value,
        logprobs: Option<&Value>,
        finish: Option<&str>,
        kaskade: Option<Value>,
    ) {
        let mut choice = json!({"index": index, "logprobs": logprobs, "finish_reason": finish});
        match self.head.api {
            ApiKind::Chat => set_field(&mut choice, "delta", delta.clone()),
            ApiKind::Completion => {
                let text = delta.get("content").cloned().unwrap_or_else(|| "".into());
                set_field(&mut choice, "text", text);
            }
        }
        let mut chunk = self.envelope();
        set_field(&mut chunk, "choices", json!([choice]));
        if let Some(kaskade) = kaskade {
            set_field(&mut chunk, "kaskade", kaskade);
        }
        self.event(&chunk);
    }

    fn event(&mut self, value: &Value) {
        self.feed.event(format!("data: {value}\n\n"));
    }
}
