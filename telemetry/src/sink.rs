//! The queue of a process's spans.
//!
//! There is one, as there is one log: spans come from every thread and actor, and none of them decides where they go.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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
    ON.store(true, Relaxed);
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
