//! Message headers, which intermediaries can read without decoding the body.
//!
//! A budget is the remaining time, never a deadline, because clocks of two hosts differ by more than a small model
//! takes. Each holder of a message subtracts its own time before passing it on; the time on the wire is not counted.

use std::str::FromStr;
use std::time::Duration;

use async_nats::{HeaderMap, HeaderName, HeaderValue, Subject};

use crate::error::{Code, Fault};
use crate::ids;
use crate::wire::{ContentType, chunks::Chunk};

/// The request's id, set by the client or the ingress; `submit` is idempotent by it.
pub static REQUEST_ID: HeaderName = HeaderName::from_static("Kaskade-Request-Id");
/// Remaining time of the request, whole microseconds.
pub static BUDGET: HeaderName = HeaderName::from_static("Kaskade-Budget-Us");
/// The epoch that admitted the request.
pub static EPOCH: HeaderName = HeaderName::from_static("Kaskade-Epoch");
/// W3C trace context.
pub static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Media type of the body.
pub static CONTENT_TYPE: HeaderName = HeaderName::from_static("content-type");
/// Message of a failed service request (ADR-32).
pub static SERVICE_ERROR: HeaderName = HeaderName::from_static(async_nats::service::NATS_SERVICE_ERROR);
/// Number of a failed service request (ADR-32).
pub static SERVICE_ERROR_CODE: HeaderName =
    HeaderName::from_static(async_nats::service::NATS_SERVICE_ERROR_CODE);
/// Stable code of a failed service request; the number above is ambiguous, this is not.
pub static FAULT_CODE: HeaderName = HeaderName::from_static("Kaskade-Fault");

/// Position of a chunk, for messages above the broker's limit ([`crate::wire::chunks`]).
pub static CHUNK: HeaderName = HeaderName::from_static("Kaskade-Chunk");

/// Subject to which a durable request's result is also sent once it is stored.
pub static PUSH: HeaderName = HeaderName::from_static("Kaskade-Push");

/// Number of deliveries of a durable request that became a dead letter.
pub static DELIVERIES: HeaderName = HeaderName::from_static("Kaskade-Deliveries");

/// Marks a message without content, which every receiver ignores: a subscription that ends sends it to itself.
pub static PADDING: HeaderName = HeaderName::from_static("Kaskade-Padding");

/// Longest request id, bytes.
pub const MAX_REQUEST_ID: usize = 128;

/// Longest budget, one hour.
pub const MAX_BUDGET: Duration = Duration::from_hours(1);

/// Bytes of a fault's message in a header; the body has the complete text.
const MAX_ERROR_TEXT: usize = 512;

/// Returns the headers of a padding message.
pub(crate) fn for_padding() -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(PADDING.clone(), "1");
    headers
}

/// Returns whether a message is padding.
pub(crate) fn is_padding(headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| headers.get(PADDING.clone()).is_some())
}

/// The headers of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The request's id.
    pub request_id: Option<String>,
    /// Remaining time.
    pub budget: Option<Duration>,
    /// The trace context.
    pub trace: Trace,
    /// The epoch that admitted it.
    pub epoch: Option<u64>,
}

impl Context {
    /// Reads the headers. Without a valid trace context a new trace starts.
    ///
    /// # Errors
    /// [`Code::Malformed`] if the id, the budget or the epoch is present but invalid.
    pub fn read(headers: Option<&HeaderMap>) -> Result<Self, Fault> {
        let Some(headers) = headers else {
            return Ok(Self {
                request_id: None,
                budget: None,
                trace: Trace::start(),
                epoch: None,
            });
        };
        Ok(Self {
            request_id: request_id(headers)?.map(ToOwned::to_owned),
            budget: budget(headers)?,
            trace: Trace::read(headers).unwrap_or_else(Trace::start),
            epoch: epoch(headers)?,
        })
    }

    /// Returns the headers of this context.
    ///
    /// # Errors
    /// [`Code::Malformed`] if the request id is not a valid header value.
    pub fn write(&self) -> Result<HeaderMap, Fault> {
        let mut headers = HeaderMap::new();
        if let Some(id) = &self.request_id {
            put_request_id(&mut headers, id)?;
        }
        if let Some(budget) = self.budget {
            put_budget(&mut headers, budget);
        }
        if let Some(epoch) = self.epoch {
            headers.insert(EPOCH.clone(), HeaderValue::from(epoch));
        }
        self.trace.put(&mut headers);
        Ok(headers)
    }
}

/// Returns the headers of one hop between stages, without the budget: it is added when the message is written.
pub(crate) fn for_trace(trace: &Trace) -> HeaderMap {
    let mut headers = HeaderMap::new();
    trace.put(&mut headers);
    headers
}

/// Returns the headers of a body.
pub fn for_body(content_type: ContentType) -> HeaderMap {
    let mut headers = HeaderMap::new();
    put_content_type(&mut headers, content_type);
    headers
}

/// Returns the headers of a reply with a fault, as NATS service clients expect them.
pub fn for_fault(content_type: ContentType, fault: &Fault) -> HeaderMap {
    let mut headers = for_body(content_type);
    put_fault(&mut headers, fault);
    headers
}

/// Returns the headers of a dead letter after that many deliveries: the request's own, without those of the stream,
/// and the reason.
pub(crate) fn for_dead_letter(submitted: &HeaderMap, fault: &Fault, deliveries: u32) -> HeaderMap {
    let mut headers = without_nats(submitted);
    put_fault(&mut headers, fault);
    headers.insert(DELIVERIES.clone(), HeaderValue::from(u64::from(deliveries)));
    headers
}

/// Returns the headers without those of the server.
pub(crate) fn without_nats(given: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, values) in given.iter() {
        if !AsRef::<str>::as_ref(name).starts_with("Nats-") {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    headers
}

fn put_fault(headers: &mut HeaderMap, fault: &Fault) {
    let text = fault
        .message
        .chars()
        .map(|character| if character.is_control() { ' ' } else { character })
        .scan(0, |length, character| {
            *length += character.len_utf8();
            (*length <= MAX_ERROR_TEXT).then_some(character)
        })
        .collect::<String>();
    headers.insert(SERVICE_ERROR.clone(), text);
    headers.insert(SERVICE_ERROR_CODE.clone(), HeaderValue::from(fault.code.status()));
    headers.insert(FAULT_CODE.clone(), fault.code.id());
}

/// Returns the subject to which a durable request's result is also sent.
pub fn push(headers: &HeaderMap) -> Option<Subject> {
    find(headers, &PUSH)
        .map(|subject| Subject::from(subject.as_str()))
        .filter(Subject::is_valid)
}

/// Sets the subject to which a durable request's result is also sent.
pub(crate) fn put_push(headers: &mut HeaderMap, subject: &Subject) {
    headers.insert(PUSH.clone(), subject.as_str());
}

/// Returns the header of a name without regard to its case: NATS preserves it, and libraries of clients write names in either.
fn find<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let name: &str = name.as_ref();
    headers.get(name).or_else(|| {
        let mut others = headers.iter();
        let (_, values) = others.find(|(other, _)| {
            let other: &str = other.as_ref();
            other.eq_ignore_ascii_case(name)
        })?;
        values.first()
    })
}

/// Returns the fault in the headers of a reply; `None` for a good reply. Also understands replies of other NATS
/// services.
pub fn fault(headers: Option<&HeaderMap>) -> Option<Fault> {
    let headers = headers?;
    let number = headers.get(SERVICE_ERROR_CODE.clone())?.as_str();
    let text = headers.get(SERVICE_ERROR.clone()).map_or("", HeaderValue::as_str);
    let named = headers.get(FAULT_CODE.clone()).map(HeaderValue::as_str);
    Some(match named.and_then(Code::from_id) {
        Some(code) => Fault::new(code, text),
        None => Fault::new(Code::Internal, format!("{}: {text}", named.unwrap_or(number))),
    })
}

/// Returns the encoding of the body.
///
/// # Errors
/// [`Code::Malformed`] for a media type other than MessagePack and JSON.
pub fn content_type(headers: Option<&HeaderMap>) -> Result<ContentType, Fault> {
    let Some(headers) = headers else {
        return Ok(ContentType::default());
    };
    find(headers, &CONTENT_TYPE).map_or(Ok(ContentType::default()), |media_type| {
        ContentType::parse(media_type.as_str())
    })
}

/// Returns the encoding of a client's body. Without a `content-type`, one that begins with a brace, after white space, is JSON: to
/// MessagePack, these are numbers, and no message is one.
///
/// # Errors
/// As [`content_type`].
pub(crate) fn content_type_of(headers: Option<&HeaderMap>, body: &[u8]) -> Result<ContentType, Fault> {
    let is_named = headers.is_some_and(|headers| find(headers, &CONTENT_TYPE).is_some());
    if !is_named && body.trim_ascii_start().starts_with(b"{") {
        return Ok(ContentType::Json);
    }
    content_type(headers)
}

/// Sets the encoding of the body.
pub(crate) fn put_content_type(headers: &mut HeaderMap, content_type: ContentType) {
    headers.insert(CONTENT_TYPE.clone(), content_type.name());
}

/// Returns the remaining time of the request.
///
/// # Errors
/// [`Code::Malformed`] if the header is present but is not a whole number of microseconds up to [`MAX_BUDGET`].
pub fn budget(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(text) = find(headers, &BUDGET) else {
        return Ok(None);
    };
    let budget = number(text.as_str()).map(Duration::from_micros);
    match budget {
        Some(budget) if budget <= MAX_BUDGET => Ok(Some(budget)),
        _ => Err(malformed(
            "Kaskade-Budget-Us",
            text.as_str(),
            "whole microseconds, at most an hour",
        )),
    }
}

/// Sets the remaining time, at most [`MAX_BUDGET`]: receivers refuse a longer one.
pub fn put_budget(headers: &mut HeaderMap, budget: Duration) {
    let micros = budget.min(MAX_BUDGET).as_micros() as u64;
    headers.insert(BUDGET.clone(), HeaderValue::from(micros));
}

/// Sets the position of a chunk.
pub fn put_chunk(headers: &mut HeaderMap, chunk: Chunk) {
    headers.insert(CHUNK.clone(), chunk.to_string());
}

/// Returns the position of a chunk; `None` for a whole message.
///
/// # Errors
/// [`Code::Malformed`] if the header is present but invalid.
pub fn chunk(headers: &HeaderMap) -> Result<Option<Chunk>, Fault> {
    let Some(text) = find(headers, &CHUNK).map(HeaderValue::as_str) else {
        return Ok(None);
    };
    match Chunk::parse(text) {
        Some(chunk) => Ok(Some(chunk)),
        None => Err(malformed(
            "Kaskade-Chunk",
            text,
            "<16 hex digits>/<index>/<count>, the index below the count",
        )),
    }
}

/// Sets the request's id.
///
/// # Errors
/// [`Code::Malformed`] if the id is not a valid header value.
pub fn put_request_id(headers: &mut HeaderMap, id: &str) -> Result<(), Fault> {
    check_request_id(id)?;
    headers.insert(REQUEST_ID.clone(), value(id)?);
    Ok(())
}

/// Returns the request's id.
///
/// # Errors
/// [`Code::Malformed`] if it is empty, longer than [`MAX_REQUEST_ID`] or not visible ASCII.
pub fn request_id(headers: &HeaderMap) -> Result<Option<&str>, Fault> {
    let Some(id) = find(headers, &REQUEST_ID).map(HeaderValue::as_str) else {
        return Ok(None);
    };
    check_request_id(id)?;
    Ok(Some(id))
}

/// Checks a request id, which becomes a header, a log field and a deduplication key.
///
/// # Errors
/// [`Code::Malformed`] if it is invalid.
pub fn check_request_id(id: &str) -> Result<(), Fault> {
    let fits = (1..=MAX_REQUEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    if fits {
        return Ok(());
    }
    Err(malformed(
        "Kaskade-Request-Id",
        id,
        "1 to 128 visible ASCII characters",
    ))
}

/// Returns the epoch that admitted the request.
///
/// # Errors
/// [`Code::Malformed`] if the header is present but is not a number.
pub fn epoch(headers: &HeaderMap) -> Result<Option<u64>, Fault> {
    let Some(text) = find(headers, &EPOCH).map(HeaderValue::as_str) else {
        return Ok(None);
    };
    match number(text) {
        Some(epoch) => Ok(Some(epoch)),
        None => Err(malformed("Kaskade-Epoch", text, "a whole number")),
    }
}

/// Digits only; `str::parse` would also accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

fn value(text: &str) -> Result<HeaderValue, Fault> {
    HeaderValue::from_str(text).map_err(|error| Fault::new(Code::Malformed, error.to_string()))
}

fn malformed(header: &str, text: &str, expected: &str) -> Fault {
    let shown = text.chars().take(64).collect::<String>();
    Fault::new(
        Code::Malformed,
        format!("header {header} is {shown:?}; it must be {expected}"),
    )
}

/// A position in a distributed trace (W3C Trace Context).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trace {
    /// The trace; never 0.
    pub trace_id: u128,
    /// The span that sent the message; never 0.
    pub span_id: u64,
    /// Its flags; bit 0: sampled.
    pub flags: u8,
}

impl Trace {
    /// Starts a new trace, sampled if this process exports its share of traces.
    pub fn start() -> Self {
        Self {
            trace_id: u128::from(ids::unique()) << 64 | u128::from(ids::unique()),
            span_id: ids::unique(),
            flags: kaskade_telemetry::samples().into(),
        }
    }

    /// Returns a new span of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            span_id: ids::unique(),
            ..*self
        }
    }

    /// Returns whether the trace is sampled.
    pub const fn sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Reads the trace context of the headers; `None` if it is missing or invalid.
    pub fn read(headers: &HeaderMap) -> Option<Self> {
        Self::parse(find(headers, &TRACEPARENT)?.as_str())
    }

    /// Sets the trace context.
    pub fn put(&self, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT.clone(), self.to_string());
    }

    /// Parses a `traceparent` value: `00-<32 hex>-<16 hex>-<2 hex>`, lower case. Later versions may add fields, which
    /// are ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)?;
        let trace = Self {
            trace_id: hex(fields.next()?, 32)?,
            span_id: hex(fields.next()?, 16)? as u64,
            flags: hex(fields.next()?, 2)? as u8,
        };
        let known = match version {
            0 => fields.next().is_none(),
            255 => false,
            _ => true,
        };
        (known && trace.trace_id != 0 && trace.span_id != 0).then_some(trace)
    }
}

impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id, self.span_id, self.flags
        )
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (text.len() == digits && text.bytes().all(lower))
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
}

#[cfg(test)]
mod tests;
