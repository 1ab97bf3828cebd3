//! Spans of requests, exported over OTLP (HTTP, JSON).
//!
//! | module | holds |
//! |---|---|
//! | [`span`] | [`Span`]: what one part of a request did, and when |
//! | [`sink`] | the queue of the process: [`record`] puts spans into it, and drops what finds no room |
//! | [`exporter`] | [`Exporter`]: the thread that sends them to a collector |
//! | `otlp` | spans as the JSON of OTLP |
//!
//! Off until [`Exporter::start`]: [`is_on`] is then one load of an atomic, and nothing is recorded.

pub mod exporter;
mod otlp;
pub mod sink;
pub mod span;

pub use exporter::{Exporter, ExporterConfig, TelemetryError};
pub use sink::{Counts, counts, is_on, record, samples};
pub use span::{Kind, Span, Value, unix_nanos};
