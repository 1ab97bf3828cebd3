//! The queue of a process's spans.
//!
//! There is one, as there is one log: spans come from every thread and actor, and none of them decides where they go.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

use tokio::sync::mpsc::Sender;

use crate::span::Span;

static ON: AtomicBool = AtomicBool::new(false);
static SINK: OnceLock<Sink> = OnceLock::new();

/// The queue, and what became of spans.
pub(crate) struct Sink {
    pub(crate) queue: Sender<Span>,
    /// Share of new traces that are sampled, of `u32::MAX`.
    pub(crate) sample: u32,
    pub(crate) exported: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) failures: Failures,
}

/// Why the last export failed, so that each failure is logged once and not with every batch.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Option<String>>);

impl Failures {
    /// Notes a failure. Returns whether the one before it had another reason, or was followed by a success.
    pub(crate) fn is_new(&self, reason: &str) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = last.as_deref() != Some(reason);
        *last = Some(reason.to_owned());
        is_new
    }

    /// Notes a success.
    pub(crate) fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Numbers of spans of a process, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sent to the collector.
    pub exported: u64,
    /// Dropped: the queue was full, or the collector did not take them.
    pub dropped: u64,
}

/// Sets the queue. Returns false if there is one.
pub(crate) fn install(sink: Sink) -> bool {
    let first = SINK.set(sink).is_ok();
    if first {
        ON.store(true, Relaxed);
    }
    first
}

/// Ends recording.
pub(crate) fn close() {
    ON.store(false, Relaxed);
}

pub(crate) fn sink() -> Option<&'static Sink> {
    SINK.get()
}

/// Whether spans are exported.
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// Records a span. It is dropped and counted if the queue is full.
pub fn record(span: Span) {
    if !is_on() {
        return;
    }
    if let Some(sink) = SINK.get()
        && sink.queue.try_send(span).is_err()
    {
        sink.dropped.fetch_add(1, Relaxed);
    }
}

/// Whether to sample a trace that starts in this process: never while spans are not exported, otherwise the configured share.
pub fn samples() -> bool {
    if !is_on() {
        return false;
    }
    let share = SINK.get().map_or(0, |sink| sink.sample);
    match share {
        0 => false,
        u32::MAX => true,
        share => getrandom::u32().is_ok_and(|draw| draw < share),
    }
}

/// Returns what became of the process's spans.
pub fn counts() -> Counts {
    SINK.get().map_or_else(Counts::default, |sink| Counts {
        exported: sink.exported.load(Relaxed),
        dropped: sink.dropped.load(Relaxed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_new_once() {
        let failures = Failures::default();
        let mut new = Vec::new();
        for reason in ["refused", "refused", "HTTP 500", "refused"] {
            new.push(failures.is_new(reason));
        }
        failures.end();
        new.push(failures.is_new("refused"));
        assert_eq!(new, [true, false, true, true, true]);
    }
}
