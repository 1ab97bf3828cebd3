//! Publishes the state of an ingress: the epoch under which it admits and the oldest that it still needs.

use super::in_flight::Ingress;
use crate::wire::{IngressState, Message as _};

/// Interval at which an unchanged state is published again, microseconds: workers that missed it, or have just started,
/// learn it then.
const REPEAT_US: u64 = 1_000_000;

/// What was published last.
#[derive(Debug, Default)]
pub(super) struct Published {
    sequence: u64,
    at: Option<u64>,
    admits: u64,
    oldest: u64,
}

impl Ingress {
    /// Publishes the state if it has changed or is due again.
    pub(super) fn tell_state(&mut self, now: u64) {
        let admits = self.plans.current().map_or(0, |(version, _)| version.epoch);
        // Requests are in order of admission, and epochs only grow.
        let first = self.ledger.iter().next();
        let oldest = first.map_or(admits, |(_, entry)| entry.version.epoch);
        let published = &self.published;
        let due = published.at.is_none_or(|at| now.saturating_sub(at) >= REPEAT_US);
        if due || (published.admits, published.oldest) != (admits, oldest) {
            self.publish_state(admits, oldest, false, now);
        }
    }

    /// Publishes that this ingress needs no epoch any more.
    pub(super) fn tell_gone(&mut self, now: u64) {
        let (admits, oldest) = (self.published.admits, self.published.oldest);
        self.publish_state(admits, oldest, true, now);
    }

    fn publish_state(&mut self, admits: u64, oldest: u64, gone: bool, now: u64) {
        let state = IngressState {
            ingress: self.id.clone(),
            sequence: self.published.sequence,
            admits,
            oldest,
            unavailable: Vec::new(),
            gone,
        };
        self.published = Published {
            sequence: self.published.sequence + 1,
            at: Some(now),
            admits,
            oldest,
        };
        if let (Ok(subject), Ok(payload)) = (self.dispatcher.app().ingress(&self.id), state.encode()) {
            self.dispatcher.publish(subject, None, None, payload);
        }
    }
}
