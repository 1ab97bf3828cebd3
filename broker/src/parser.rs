//! Parses the client's side of the NATS protocol.
//!
//! Pure and incremental: [`Parser::next`] takes complete operations off the front of a buffer and leaves the rest
//! until more data arrives. A payload is a slice of the buffer that it was read into, never a copy.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr;
use serde::Deserialize;
use thiserror::Error;

/// The longest control line, line end excluded; nats-server's default.
pub(super) const MAX_CONTROL_LINE: usize = 4096;
const CRLF: usize = 2;

/// An operation of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Op {
    /// `CONNECT`.
    Connect(ClientOptions),
    /// `PING`.
    Ping,
    /// `PONG`.
    Pong,
    /// `SUB`.
    Subscribe(Subscribe),
    /// `UNSUB`.
    Unsubscribe(Unsubscribe),
    /// `PUB` or `HPUB`.
    Publish(Publish),
    /// `+OK` or `INFO`: clients may send them; the server ignores them.
    Ignored,
}

/// Options of `CONNECT`. Missing options default as in nats-server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "they are the protocol's")]
pub(super) struct ClientOptions {
    /// Wants `+OK` after each operation.
    pub(super) verbose: bool,
    /// Wants to receive its own publications.
    pub(super) echo: bool,
    /// Supports headers.
    pub(super) headers: bool,
    /// Wants a notice if a request has no subscribers; requires `headers`.
    pub(super) no_responders: bool,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            verbose: true,
            echo: true,
            headers: false,
            no_responders: false,
        }
    }
}

/// `SUB <subject> [queue group] <sid>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subscribe {
    /// The pattern.
    pub(super) subject: Box<[u8]>,
    /// The queue group, if it joins one.
    pub(super) queue: Option<Box<[u8]>>,
    /// The client's id of the subscription.
    pub(super) sid: Box<[u8]>,
}

/// `UNSUB <sid> [max]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unsubscribe {
    /// The client's id of the subscription.
    pub(super) sid: Box<[u8]>,
    /// The total number of messages after which it ends; `None` ends it at once.
    pub(super) after: Option<u64>,
}

/// `PUB <subject> [reply] <bytes>` or `HPUB <subject> [reply] <header bytes> <total bytes>`, with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Publish {
    frame: Bytes,
    head: PublishHead,
}

/// Positions of the parts of a publish in its frame.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PublishHead {
    /// Bytes of the control line with its end.
    line: usize,
    subject: Range<usize>,
    reply: Option<Range<usize>>,
    /// Bytes of the header block; `None` for `PUB`.
    header: Option<usize>,
    /// Bytes of header block and payload.
    size: usize,
}

impl PublishHead {
    fn frame(&self) -> usize {
        self.line + self.size + CRLF
    }
}

impl Publish {
    /// The subject.
    pub(super) fn subject(&self) -> &[u8] {
        self.frame.get(self.head.subject.clone()).unwrap_or_default()
    }

    /// Returns the reply subject.
    pub(super) fn reply(&self) -> Option<&[u8]> {
        self.frame.get(self.head.reply.clone()?)
    }

    /// Returns the size of the header block at the front of the body; `None` if it was sent without one.
    pub(super) fn header(&self) -> Option<usize> {
        self.head.header
    }

    /// Bytes of header block and payload.
    pub(super) fn size(&self) -> usize {
        self.head.size
    }

    /// Returns header block, payload and the final line end, as they are sent to subscribers.
    pub(super) fn body(&self) -> Bytes {
        self.frame.slice(self.head.line..)
    }
}

/// Why a client's bytes are refused. Each ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum ParseError {
    /// Unknown operation.
    #[error("Unknown Protocol Operation")]
    UnknownOperation,
    /// Invalid arguments of an operation.
    #[error("Parser Error")]
    Arguments,
    /// A control line without an end.
    #[error("maximum control line exceeded")]
    ControlLine,
    /// A payload over `max_payload`.
    #[error("Maximum Payload Violation")]
    Payload,
}

/// Parses one connection's bytes.
#[derive(Debug)]
pub(super) struct Parser {
    max_payload: usize,
    /// Number of leading bytes known to contain no line end.
    scanned: usize,
    /// A publish whose payload is incomplete; its line is still at the front of the buffer.
    waiting: Option<PublishHead>,
}

impl Parser {
    /// Creates a parser that refuses payloads over `max_payload` bytes.
    pub(super) fn new(max_payload: usize) -> Self {
        Self {
            max_payload,
            scanned: 0,
            waiting: None,
        }
    }

    /// Returns how many more bytes the current operation is known to need.
    pub(super) fn missing(&self, buffer: &BytesMut) -> usize {
        let frame = self.waiting.as_ref().map_or(0, PublishHead::frame);
        frame.saturating_sub(buffer.len())
    }

    /// Returns the next operation, taken off the front of `buffer`; `None` if it is incomplete.
    ///
    /// # Errors
    /// [`ParseError`]; the connection cannot be used after it.
    pub(super) fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Op>, ParseError> {
        if let Some(head) = self.waiting.take() {
            return self.publish(head, buffer);
        }
        let Some(line) = self.line(buffer)? else {
            return Ok(None);
        };
        let text = buffer.get(..line).unwrap_or_default();
        // Subjects are forwarded to clients that read them as text.
        let text = std::str::from_utf8(text).map_err(|_| ParseError::Arguments)?;
        match parse_line(text)? {
            Line::Op(op) => {
                let _ = buffer.split_to(line);
                Ok(Some(op))
            }
            Line::Publish(head) if head.size > self.max_payload => Err(ParseError::Payload),
            Line::Publish(head) => self.publish(head, buffer),
        }
    }

    /// Returns the length of the control line at the front, including its end.
    fn line(&mut self, buffer: &BytesMut) -> Result<Option<usize>, ParseError> {
        let unseen = buffer.get(self.scanned..).unwrap_or_default();
        let end = memchr(b'\n', unseen).map(|at| self.scanned + at + 1);
        if end.unwrap_or(buffer.len()) > MAX_CONTROL_LINE + CRLF {
            return Err(ParseError::ControlLine);
        }
        self.scanned = if end.is_some() { 0 } else { buffer.len() };
        Ok(end)
    }

    fn publish(&mut self, head: PublishHead, buffer: &mut BytesMut) -> Result<Option<Op>, ParseError> {
        if buffer.len() < head.frame() {
            self.waiting = Some(head);
            return Ok(None);
        }
        let frame = buffer.split_to(head.frame()).freeze();
        // Without its line end, the payload was longer or shorter than announced.
        if !frame.ends_with(b"\r\n") {
            return Err(ParseError::UnknownOperation);
        }
        Ok(Some(Op::Publish(Publish { frame, head })))
    }
}

enum Line {
    Op(Op),
    Publish(PublishHead),
}

fn parse_line(line: &str) -> Result<Line, ParseError> {
    let (name, rest) = split_operation(line);
    let op = if name.eq_ignore_ascii_case("PUB") {
        return publish_head(line, false).map(Line::Publish);
    } else if name.eq_ignore_ascii_case("HPUB") {
        return publish_head(line, true).map(Line::Publish);
    } else if name.eq_ignore_ascii_case("SUB") {
        subscribe(rest)?
    } else if name.eq_ignore_ascii_case("UNSUB") {
        unsubscribe(rest)?
    } else if name.eq_ignore_ascii_case("PING") {
        Op::Ping
    } else if name.eq_ignore_ascii_case("PONG") {
        Op::Pong
    } else if name.eq_ignore_ascii_case("CONNECT") {
        Op::Connect(serde_json::from_str(rest).map_err(|_| ParseError::Arguments)?)
    } else if ["+OK", "INFO"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
    {
        Op::Ignored
    } else {
        return Err(ParseError::UnknownOperation);
    };
    Ok(Line::Op(op))
}

/// The operation's name and the rest of its line. `CONNECT{...}` needs no space.
fn split_operation(line: &str) -> (&str, &str) {
    let end = line.find(|c: char| c.is_ascii_whitespace() || c == '{');
    line.split_at_checked(end.unwrap_or(line.len()))
        .unwrap_or((line, ""))
}

fn subscribe(rest: &str) -> Result<Op, ParseError> {
    let mut words = rest.split_ascii_whitespace();
    let (subject, queue, sid) = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(subject), Some(sid), None, None) => (subject, None, sid),
        (Some(subject), Some(queue), Some(sid), None) => (subject, Some(queue), sid),
        _ => return Err(ParseError::Arguments),
    };
    Ok(Op::Subscribe(Subscribe {
        subject: subject.as_bytes().into(),
        queue: queue.map(|queue| queue.as_bytes().into()),
        sid: sid.as_bytes().into(),
    }))
}

fn unsubscribe(rest: &str) -> Result<Op, ParseError> {
    let mut words = rest.split_ascii_whitespace();
    let (Some(sid), after, None) = (words.next(), words.next(), words.next()) else {
        return Err(ParseError::Arguments);
    };
    let after = after.map(number).transpose()?;
    Ok(Op::Unsubscribe(Unsubscribe {
        sid: sid.as_bytes().into(),
        after,
    }))
}

fn publish_head(line: &str, with_header: bool) -> Result<PublishHead, ParseError> {
    let mut words = words_at(line).skip(1);
    let [Some(subject), second, third, fourth, None] = std::array::from_fn(|_| words.next()) else {
        return Err(ParseError::Arguments);
    };
    let (reply, header, size) = match (with_header, second, third, fourth) {
        (false, Some(size), None, None) => (None, None, size),
        (false, reply, Some(size), None) => (reply, None, size),
        (true, header, Some(size), None) => (None, header, size),
        (true, reply, header, Some(size)) => (reply, header, size),
        _ => return Err(ParseError::Arguments),
    };
    let size = length(size)?;
    let header = header.map(length).transpose()?;
    if header.is_some_and(|header| header > size) {
        return Err(ParseError::Arguments);
    }
    Ok(PublishHead {
        line: line.len(),
        subject: range(subject),
        reply: reply.map(range),
        header,
        size,
    })
}

fn range((start, word): (usize, &str)) -> Range<usize> {
    start..start + word.len()
}

/// Returns the words of a line with their positions.
fn words_at(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut start = 0;
    line.split(|c: char| c.is_ascii_whitespace())
        .map(move |word| {
            let at = start;
            start += word.len() + 1;
            (at, word)
        })
        .filter(|(_, word)| !word.is_empty())
}

fn length((_, word): (usize, &str)) -> Result<usize, ParseError> {
    usize::try_from(number(word)?).map_err(|_| ParseError::Payload)
}

/// Parses a decimal number of at most eighteen digits, more than any count here.
fn number(word: &str) -> Result<u64, ParseError> {
    let digits = (1..=18).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(ParseError::Arguments);
    }
    word.parse().map_err(|_| ParseError::Arguments)
}

#[cfg(test)]
mod tests;
