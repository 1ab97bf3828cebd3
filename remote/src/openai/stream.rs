//! Streamed chat completions and completions: server-sent events.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use kaskade_models::Outputs;
use serde::Deserialize;
use tokio::time::timeout;

use super::chat::{self, Message};
use super::logprobs::Logprobs;
use super::text::Text;
use super::{UsageField, malformed, of_this_answer, or_default, usage};
use crate::endpoint::{Api, Chat};
use crate::error::CallError;
use crate::error_body::error_in;
use crate::http::{Http, MAX_ANSWER};
use crate::prepared::{Answer, Parts};

/// Longest line of a stream, bytes.
const MAX_LINE: usize = 4 << 20;

/// Longest time in which the body of a complete answer may end, so that its connection can be used again.
const ENDING: Duration = Duration::from_millis(500);

#[derive(Deserialize)]
struct Chunk {
    #[serde(default, deserialize_with = "or_default")]
    choices: Vec<StreamedChoice>,
    #[serde(default, deserialize_with = "usage")]
    usage: Option<UsageField>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct StreamedChoice {
    /// Of chat completions.
    #[serde(default, deserialize_with = "or_default")]
    delta: Message,
    /// Of completions.
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

/// Ends the wait for the next piece of a streamed answer after `gap`.
///
/// # Errors
/// [`CallError::Stalled`], or the error of what was awaited.
pub(crate) async fn within<T>(
    gap: Duration,
    awaited: impl Future<Output = Result<T, CallError>>,
) -> Result<T, CallError> {
    let piece = timeout(gap, awaited).await;
    piece.unwrap_or(Err(CallError::Stalled { after: gap }))
}

/// Reads a stream to its end, and passes on the parts of its text. The request wants to see `top_logprobs` most probable tokens. The
/// stream may pause for `gap`.
///
/// # Errors
/// [`CallError::Broken`] for a stream without its end, [`CallError::Stalled`] for one that pauses for longer, [`CallError::Status`] for
/// an error in it, [`CallError::Malformed`].
pub(crate) async fn read(
    http: &Http,
    answer: Response<Incoming>,
    api: &Api,
    top_logprobs: Option<usize>,
    gap: Duration,
    parts: Parts<'_>,
) -> Result<Answer, CallError> {
    let Api::Chat(chat) = api else {
        return Err(malformed("only chat completions and completions are streamed"));
    };
    let content_type = answer.headers().get(CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/json")) {
        // Some servers do not stream and answer at once.
        let body = within(gap, http.read(answer)).await?;
        let answer = chat::decode(chat, top_logprobs, &body);
        return answer.map_err(|error| of_this_answer(error, &body));
    }
    let mut body = answer.into_body();
    let mut stream = Stream {
        chat,
        text: Text::wanting(top_logprobs),
        usage: None,
        done: false,
    };
    let mut lines = Lines::default();
    while let Some(frame) = within(gap, next(http, &mut body)).await? {
        let Ok(data) = frame.into_data() else { continue };
        lines.add(&data)?;
        while let Some(line) = lines.next() {
            stream.take(&line, parts)?;
        }
        if stream.done {
            tokio::spawn(finish(body));
            return stream.end();
        }
    }
    if is_whole(&lines.bytes) {
        stream.take(&lines.bytes, parts)?;
    }
    stream.end()
}

/// Returns the next piece of a body; `None` at its end.
async fn next(http: &Http, body: &mut Incoming) -> Result<Option<Frame<Bytes>>, CallError> {
    let frame = body.frame().await.transpose();
    frame.map_err(|error| CallError::Broken {
        reason: http.redact(&error.to_string()),
    })
}

/// Reads what follows a complete answer, so that its connection can be used again.
async fn finish(mut body: Incoming) {
    let ended = timeout(ENDING, async { while let Some(Ok(_)) = body.frame().await {} });
    // A connection that does not end in time is closed.
    drop(ended.await);
}

/// An answer of which parts have arrived.
struct Stream<'a> {
    chat: &'a Chat,
    text: Text,
    usage: Option<UsageField>,
    /// Whether the mark of the end has arrived.
    done: bool,
}

impl Stream<'_> {
    /// Reads a line, and passes on the part in it.
    fn take(&mut self, line: &[u8], parts: &mut (dyn FnMut(Outputs) + Send)) -> Result<(), CallError> {
        let Some(data) = data_of(line) else { return Ok(()) };
        if data == b"[DONE]" {
            self.done = true;
            return Ok(());
        }
        let taken = self.take_chunk(data, parts);
        taken.map_err(|error| of_this_answer(error, data))
    }

    fn take_chunk(&mut self, data: &[u8], parts: &mut (dyn FnMut(Outputs) + Send)) -> Result<(), CallError> {
        let chunk: Chunk = serde_json::from_slice(data).map_err(malformed)?;
        let states_error = chunk.error.is_some_and(|error| !error.is_null());
        let is_answer = !chunk.choices.is_empty() || chunk.usage.is_some();
        if (states_error || !is_answer)
            && let Some(error) = error_in(data)
        {
            return Err(error);
        }
        self.usage = chunk.usage.or(self.usage);
        if let Some(choice) = chunk.choices.into_iter().next() {
            let delta = choice.text.map_or(choice.delta, Message::of_text);
            let piece = delta.piece(choice.logprobs);
            let part = piece.part();
            self.text.add(self.chat, piece)?;
            self.text.end = choice.finish_reason.or(self.text.end.take());
            if !part.is_empty() {
                parts(part);
            }
        }
        Ok(())
    }

    /// Returns the complete answer.
    fn end(mut self) -> Result<Answer, CallError> {
        // Some servers end without the mark, but none without a reason.
        if !self.done && self.text.end.is_none() {
            return Err(CallError::Broken {
                reason: "the stream ended before the answer".to_owned(),
            });
        }
        self.text.reasoning_tokens = self.usage.and_then(|usage| usage.reasoning);
        Ok(Answer {
            outputs: self.text.outputs(self.chat)?,
            usage: self.usage.and_then(UsageField::counted),
            calls: 1,
        })
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Bytes that are known to hold no end of a line.
    searched: usize,
    /// Bytes of the stream so far.
    added: usize,
}

impl Lines {
    fn add(&mut self, data: &[u8]) -> Result<(), CallError> {
        if self.bytes.len() + data.len() > MAX_LINE {
            return Err(malformed(format!(
                "a line of the stream is longer than {MAX_LINE} bytes"
            )));
        }
        self.added += data.len();
        if self.added > MAX_ANSWER {
            return Err(malformed(format!("it is longer than {MAX_ANSWER} bytes")));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let rest = self.bytes.get(self.searched..)?;
        let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
            self.searched = self.bytes.len();
            return None;
        };
        let end = self.searched + end;
        self.searched = 0;
        let mut line: Vec<u8> = self.bytes.drain(..=end).collect();
        while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            line.pop();
        }
        Some(line)
    }
}

/// Returns whether a line without its end is whole: one that is not was cut off with the connection.
fn is_whole(line: &[u8]) -> bool {
    let data = data_of(line).unwrap_or_default();
    data == b"[DONE]" || serde_json::from_slice::<serde::de::IgnoredAny>(data).is_ok()
}

/// The data of an event's line; `None` for comments, other fields and empty lines.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    // The mark of UTF-8 may stand before the first line.
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    let data = line.strip_prefix(b"data:")?;
    Some(data.trim_ascii())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::endpoint::ChatTask;

    #[test]
    fn reasoning_is_streamed_beside_an_empty_text() {
        let chat = chat::tests::chat(ChatTask::Generate);
        for name in ["reasoning_content", "reasoning"] {
            let mut stream = Stream {
                chat: &chat,
                text: Text::wanting(None),
                usage: None,
                done: false,
            };
            let mut parts = Vec::new();
            for (delta, token, logprob) in [
                (json!({"role": "assistant", "content": ""}), "", 0.0),
                (json!({name: "4 or 5?", "content": null}), "4 or 5?", -3.0),
                (json!({}), "</think>", -5.0),
                (json!({name: null, "content": "4"}), "4", -0.1),
                (json!({"content": "."}), ".", -0.2),
            ] {
                let logprobs = json!({"content": [{"token": token, "logprob": logprob, "top_logprobs": []}]});
                let chunk = json!({"choices": [{"delta": delta, "logprobs": logprobs}]});
                let line = format!("data: {chunk}");
                stream
                    .take(line.as_bytes(), &mut |part| parts.push(part))
                    .unwrap();
            }
            let usage = json!({"prompt_tokens": 1, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}});
            let last = format!("data: {}", json!({"choices": [], "usage": usage}));
            stream
                .take(last.as_bytes(), &mut |part| parts.push(part))
                .unwrap();
            stream.done = true;
            let said = |outputs: &Outputs, name: &str| {
                let found = outputs.iter().find(|output| output.name == name);
                found.map(|found| found.to_texts().unwrap().concat())
            };
            let parts: Vec<_> = parts
                .iter()
                .map(|part| (said(part, "text").unwrap(), said(part, "reasoning")))
                .collect();
            let expected = [("", Some("4 or 5?")), ("4", None), (".", None)];
            let expected = expected.map(|(text, reasoning)| (text.to_owned(), reasoning.map(str::to_owned)));
            assert_eq!(parts, expected, "{name}");
            let outputs = stream.end().unwrap().outputs;
            assert_eq!(said(&outputs, "text").unwrap(), "4.");
            assert_eq!(said(&outputs, "reasoning").unwrap(), "4 or 5?");
            let named = |name: &str| outputs.iter().find(|output| output.name == name).unwrap();
            assert_eq!(named("reasoning_tokens").to_i64().unwrap(), [2]);
            let confidence = named("confidence").to_f32().unwrap()[0];
            assert!((confidence - (-0.4_f32).exp()).abs() < 1e-3, "{confidence}");
        }
    }

    #[test]
    fn lines_are_found_wherever_the_stream_is_cut() {
        let stream = b": ping\r\n\ndata: {\"a\": 1}\n\ndata:[DONE]\n";
        for size in 1..stream.len() {
            let (mut lines, mut found) = (Lines::default(), Vec::new());
            for piece in stream.chunks(size) {
                lines.add(piece).unwrap();
                while let Some(line) = lines.next() {
                    found.extend(data_of(&line).map(<[u8]>::to_vec));
                }
            }
            assert_eq!(found, [&b"{\"a\": 1}"[..], b"[DONE]"], "{size}");
        }
    }

    #[test]
    fn a_stream_is_no_longer_than_another_answer() {
        let mut line = vec![b' '; MAX_LINE];
        line[MAX_LINE - 1] = b'\n';
        let mut lines = Lines::default();
        let mut add = || {
            let added = lines.add(&line);
            while lines.next().is_some() {}
            added
        };
        assert!((0..MAX_ANSWER / MAX_LINE).all(|_| add().is_ok()));
        assert!(add().is_err());
    }
}
