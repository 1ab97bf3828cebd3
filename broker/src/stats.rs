//! The broker's counters.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of an embedded broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BrokerStats {
    /// Connected clients.
    pub connections: u64,
    /// Active subscriptions.
    pub subscriptions: u64,
    /// Messages published.
    pub messages_in: u64,
    /// Messages delivered, one per receiver.
    pub messages_out: u64,
    /// Bytes of headers and payloads published.
    pub bytes_in: u64,
    /// Bytes of headers and payloads delivered.
    pub bytes_out: u64,
    /// Clients disconnected as slow consumers.
    pub slow_consumers: u64,
}

/// Written by the broker's thread only, read by any thread.
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
    /// Counts a published message of `bytes` bytes with `receivers` receivers.
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

/// A number with a single writer, which needs no atomic read-modify-write.
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
