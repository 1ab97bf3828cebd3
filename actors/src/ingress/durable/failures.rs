//! Counts of model failures per durable request, shared by the ingresses of an app.
//!
//! A count is the newest message on the request's subject in a stream. It is replaced by compare-and-set, so that no
//! ingress overwrites another's update. While the stream is unavailable, an ingress uses only the failures that it has
//! seen itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::{self, context::PublishErrorKind};
use async_nats::{HeaderMap, header};
use bytes::Bytes;
use kaskade_policy::redelivery::{FailureCause, Failures};

use crate::bus::Bus;
use crate::subjects::{self, App};

/// Retention of a count after the last failure.
pub(super) const RETENTION: Duration = Duration::from_hours(24);

/// Largest number of counts kept; the oldest are dropped first.
pub(super) const MAX_COUNTED: i64 = 65_536;

/// Attempts to update a count that another ingress updates concurrently.
const MAX_ATTEMPTS: u32 = 3;

/// Access of one ingress to the failure counts.
pub(super) struct SharedFailures {
    bus: Bus,
    app: App,
    jetstream: jetstream::Context,
    /// Failures that this ingress has seen itself.
    seen: Mutex<Failures>,
    /// Whether the stream of counts is available.
    is_shared: AtomicBool,
}

/// Identifies a durable request in its count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    /// Sequence number in the stream of requests.
    pub(super) number: u64,
    /// Time of storage in that stream. A stream that is created again restarts its sequence numbers.
    pub(super) submitted: SystemTime,
}

/// A count as stored, and the sequence number of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    failures: u32,
    submitted_us: u128,
    sequence: u64,
}

impl SharedFailures {
    pub(super) fn new(bus: &Bus, app: &App) -> Self {
        Self {
            bus: bus.clone(),
            app: app.clone(),
            jetstream: jetstream::new(bus.client().clone()),
            seen: Mutex::default(),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Sets whether the stream of counts is available.
    pub(super) fn set_shared(&self, is_shared: bool) {
        self.is_shared.store(is_shared, Ordering::Relaxed);
    }

    /// Counts a failure if [the request](FailureCause::Request) may have caused it. Returns the failures of the request
    /// so far, over all ingresses.
    pub(super) async fn record(&self, request: Counted, blame: FailureCause) -> u32 {
        let seen = {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.record(request.number, blame)
        };
        if blame != FailureCause::Request || !self.is_shared.load(Ordering::Relaxed) {
            return seen;
        }
        for _ in 0..MAX_ATTEMPTS {
            let stored = self.stored(request.number).await;
            match self.add(request, stored, seen).await {
                Ok(failures) => return failures,
                Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {}
                Err(error) => {
                    tracing::warn!(%error, "a failure of a durable request is counted by this ingress alone");
                    return seen;
                }
            }
        }
        seen
    }

    /// Forgets the failures of a settled request. The stored count expires.
    pub(super) fn forget(&self, number: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.forget(number);
    }

    async fn stored(&self, number: u64) -> Option<Stored> {
        let subject = subjects::failures_query(&self.app, number);
        let request = async_nats::Request::new().payload(Bytes::new());
        let message = self.bus.client().send_request(subject, request).await.ok()?;
        let sequence = message.headers.as_ref()?.get(header::NATS_SEQUENCE)?;
        Some(parse(&message.payload, sequence.as_str().parse().ok()?))
    }

    /// Stores the count plus one, or `seen` if that is larger. Returns the new count.
    async fn add(
        &self,
        request: Counted,
        stored: Option<Stored>,
        seen: u32,
    ) -> Result<u32, jetstream::context::PublishError> {
        let submitted_us = micros(request.submitted);
        let before = stored.filter(|stored| stored.submitted_us == submitted_us);
        let before = before.map_or(0, |stored| stored.failures);
        let failures = before.saturating_add(1).max(seen);
        let sequence = stored.map_or(0, |stored| stored.sequence);
        let mut headers = HeaderMap::new();
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, sequence.to_string());
        let subject = self.app.failures_of(request.number);
        let payload = format!("{failures} {submitted_us}").into();
        let sent = self.jetstream.publish_with_headers(subject, headers, payload);
        sent.await?.await?;
        Ok(failures)
    }
}

/// Returns a time in microseconds since the Unix epoch.
pub(super) fn micros(time: SystemTime) -> u128 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

/// Parses a stored count. An invalid count is read as zero, and is replaced by the next update.
fn parse(payload: &[u8], sequence: u64) -> Stored {
    let text = std::str::from_utf8(payload).unwrap_or_default();
    let mut numbers = text.split(' ');
    let failures = numbers.next().and_then(|number| number.parse().ok());
    let submitted_us = numbers.next().and_then(|number| number.parse().ok());
    Stored {
        failures: failures.unwrap_or(0),
        submitted_us: submitted_us.unwrap_or(0),
        sequence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_cannot_be_read_is_replaced() {
        let stored = |failures, submitted_us| Stored {
            failures,
            submitted_us,
            sequence: 9,
        };
        assert_eq!(parse(b"3 17", 9), stored(3, 17));
        for unreadable in [&b""[..], b"x", b"\xff 1"] {
            assert_eq!(parse(unreadable, 9).failures, 0);
            assert_eq!(parse(unreadable, 9).sequence, 9);
        }
    }
}
