//! Future events, in order of time.
//!
//! Only events at times of their own wait in a heap: the ends of batches, timers, resends. Hops all take equally long, so they
//! end in the order in which they begin, and a plain queue keeps them sorted; arrivals come sorted from outside. The heap
//! therefore holds about one event per replica, whatever the number of requests.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A time that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// Times from here on count as never.
pub(super) const FAR: u64 = u64::MAX / 2;

/// An event with a separate time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The batch of this replica ends.
    RunEnds(u32),
    /// The batching policy of this replica is due for a poll.
    Timer(u32),
    /// The failure of this replica is noticed.
    Noticed(u32),
    /// The request in this place is sent again.
    Resend(u32),
    /// This replica's model may have been loaded.
    Loaded(u32),
}

/// A request on its way to a queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hop {
    pub(super) at: u64,
    pub(super) task: Task,
    pub(super) edge: u32,
    /// The replica, where it was chosen already; otherwise [`ON_ARRIVAL`].
    pub(super) replica: u32,
}

/// The replica is chosen when the hop ends.
pub(super) const ON_ARRIVAL: u32 = u32::MAX;

/// One copy of a request, at a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    /// The place of the request.
    pub(super) flight: u32,
    /// The stage, numbered over all gears of the plan that admitted the request.
    pub(super) stage: u16,
    /// The attempt that it belongs to.
    pub(super) attempt: u16,
    /// Its place among the copies of pipelines, or [`NO_COPY`](super::branches::NO_COPY).
    pub(super) copy: u32,
}

/// Future events. Events of the same time come in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Reverse<(u64, u32, Event)>>,
    added: u32,
    hops: VecDeque<Hop>,
}

impl Agenda {
    pub(super) fn add(&mut self, at: u64, event: Event) {
        self.added = self.added.wrapping_add(1);
        self.heap.push(Reverse((at, self.added, event)));
    }

    /// Adds a hop that ends no earlier than those added before it.
    pub(super) fn add_hop(&mut self, hop: Hop) {
        self.hops.push_back(hop);
    }

    pub(super) fn next_event(&self) -> u64 {
        self.heap.peek().map_or(NEVER, |Reverse((at, _, _))| *at)
    }

    pub(super) fn next_hop(&self) -> u64 {
        self.hops.front().map_or(NEVER, |hop| hop.at)
    }

    pub(super) fn pop_event(&mut self) -> Option<(u64, Event)> {
        self.heap.pop().map(|Reverse((at, _, event))| (at, event))
    }

    pub(super) fn pop_hop(&mut self) -> Option<Hop> {
        self.hops.pop_front()
    }
}
