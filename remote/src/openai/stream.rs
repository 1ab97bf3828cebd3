//! Streamed chat completions and completions: server-sent events.

use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Incoming;
use kaskade_models::Tensor;
use serde::Deserialize;

use super::logprobs::Logprobs;
use super::text::Text;
use super::{UsageField, malformed};
use crate::call::{Answer, Parts};
use crate::endpoint::Api;
use crate::error::CallError;
use crate::http::Http;

/// Longest line of a stream, bytes.
const MAX_LINE: usize = 4 << 20;

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<StreamedChoice>,
    #[serde(default)]
    usage: Option<UsageField>,
    #[serde(default)]
    error: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct StreamedChoice {
    /// Of chat completions.
    #[serde(default)]
    delta: Content,
    /// Of completions.
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Content {
    #[serde(default)]
    content: Option<String>,
}

/// Reads a stream to its end, and passes on the parts of its text. The request wants to see `top_logprobs` most probable tokens.
///
/// # Errors
/// [`CallError::Broken`] for a stream without its end, [`CallError::Status`] for an error in it, [`CallError::Malformed`].
pub(crate) async fn read(
    http: &Http,
    answer: Response<Incoming>,
    api: &Api,
    top_logprobs: usize,
    parts: Parts<'_>,
) -> Result<Answer, CallError> {
    let Api::Chat(chat) = api else {
        return Err(malformed("only chat completions and completions are streamed"));
    };
    let mut body = answer.into_body();
    let (mut lines, mut text, mut usage, mut done) =
        (Lines::default(), Text::wanting(top_logprobs), None, false);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| CallError::Broken {
            reason: http.redact(&error.to_string()),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        lines.add(&data)?;
        while let Some(line) = lines.next() {
            let Some(data) = data_of(&line) else { continue };
            if data == b"[DONE]" {
                done = true;
                continue;
            }
            let chunk: Chunk = serde_json::from_slice(data).map_err(malformed)?;
            if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
                let message = error.get("message").unwrap_or(&error);
                return Err(CallError::Status {
                    status: 500,
                    message: http.redact(&message.to_string()),
                    retry_after: None,
                });
            }
            usage = chunk.usage.or(usage);
            if let Some(delta) = chunk.choices.into_iter().next() {
                let content = delta.text.or(delta.delta.content).unwrap_or_default();
                text.add(chat, &content, delta.logprobs)?;
                text.end = delta.finish_reason.or(text.end.take());
                if !content.is_empty() {
                    parts(Tensor::from_texts("text", &[&content]).into_iter().collect());
                }
            }
        }
    }
    // Some servers end without the mark, but none without a reason.
    if !done && text.end.is_none() {
        return Err(CallError::Broken {
            reason: "the stream ended before the answer".to_owned(),
        });
    }
    Ok(Answer {
        outputs: text.outputs(chat)?,
        usage: usage.and_then(UsageField::counted),
    })
}

/// Cuts a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Bytes that are known to hold no end of a line.
    searched: usize,
}

impl Lines {
    fn add(&mut self, data: &[u8]) -> Result<(), CallError> {
        if self.bytes.len() + data.len() > MAX_LINE {
            return Err(malformed(format!(
                "a line of the stream is longer than {MAX_LINE} bytes"
            )));
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

/// The data of an event's line; `None` for comments, other fields and empty lines.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let data = line.strip_prefix(b"data:")?;
    Some(data.strip_prefix(b" ").unwrap_or(data))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
