//! A span.

use std::time::{SystemTime, UNIX_EPOCH};

/// A timed part of a request (OpenTelemetry).
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// Id of the trace; not 0.
    pub trace_id: u128,
    /// Id of the span; not 0.
    pub span_id: u64,
    /// The span that caused it; 0 if there is none.
    pub parent_id: u64,
    /// Name of the span, of low cardinality: `stage small`.
    pub name: String,
    /// The span's side of the exchange.
    pub kind: Kind,
    /// When it began, nanoseconds since 1970.
    pub start: u64,
    /// When it ended, nanoseconds since 1970.
    pub end: u64,
    /// Attributes of the span.
    pub attributes: Vec<(&'static str, Value)>,
    /// Why it failed; `None` if it did not.
    pub error: Option<String>,
}

/// A span's side of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Inside a process.
    Internal,
    /// Answers a request.
    Server,
    /// Sends a request and waits.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Yes or no.
    Bool(bool),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Int(number.into())
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// Returns the current time, nanoseconds since 1970.
pub fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
