//! What the broker counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What went through an embedded broker so far, and what is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BrokerStats {
    /// Clients connected now.
    pub connections: u64,
    /// Subscriptions of all clients now.
    pub subscriptions: u64,
    /// Messages published to it.
    pub messages_in: u64,
    /// Messages it delivered, one per receiver.
    pub messages_out: u64,
    /// Bytes of headers and payloads published to it.
    pub bytes_in: u64,
    /// Bytes of headers and payloads it delivered.
    pub bytes_out: u64,
    /// Clients it disconnected because they did not read fast enough.
    pub slow_consumers: u64,
}

/// Written by the broker's thread alone, read by any.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) connections: Counter,
    pub(super) subscriptions: Counter,
    pub(super) slow_consumers: Counter,
    messages_in: Counter,
    messages_out: Counter,
    bytes_in: Counter,
    bytes_out: Counter,
}

impl Counters {
    /// Counts a published message of `bytes` bytes that `receivers` clients got.
    pub(super) fn count(&self, bytes: u64, receivers: u64) {
        self.messages_in.add(1);
        self.bytes_in.add(bytes);
        self.messages_out.add(receivers);
        self.bytes_out.add(bytes.saturating_mul(receivers));
    }

    pub(super) fn snapshot(&self) -> BrokerStats {
        BrokerStats {
            connections: self.connections.get(),
            subscriptions: self.subscriptions.get(),
            messages_in: self.messages_in.get(),
            messages_out: self.messages_out.get(),
            bytes_in: self.bytes_in.get(),
            bytes_out: self.bytes_out.get(),
            slow_consumers: self.slow_consumers.get(),
        }
    }
}

/// A number with one writer, which therefore needs no locked addition.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(super) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    pub(super) fn subtract(&self, less: u64) {
        self.set(self.get().wrapping_sub(less));
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
