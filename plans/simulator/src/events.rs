//! Future events, in order of time.
//!
//! Only events at times of their own wait in a heap: the ends of batches, timers, resends. Hops take about equally long, so they
//! end about in the order in which they begin, and a plain queue keeps them sorted; so does one of arrivals on their way to the first queue. The heap
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
    /// Place of the copy among the copies of pipelines, or [`NO_COPY`](super::branches::NO_COPY).
    pub(super) copy: u32,
}

/// Future events. Events of the same time come in the order in which they were added.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Reverse<(u64, u32, Event)>>,
    added: u32,
    hops: VecDeque<Hop>,
    /// Requests on their way to the first queue: when they join it, and when they were sent.
    entries: VecDeque<(u64, u64)>,
}

impl EventQueue {
    pub(super) fn add(&mut self, at: u64, event: Event) {
        self.added = self.added.wrapping_add(1);
        self.heap.push(Reverse((at, self.added, event)));
    }

    /// Adds a hop, behind those that end at the same time.
    pub(super) fn add_hop(&mut self, hop: Hop) {
        if self.hops.back().is_none_or(|last| last.at <= hop.at) {
            return self.hops.push_back(hop);
        }
        let place = self.hops.partition_point(|other| other.at <= hop.at);
        self.hops.insert(place, hop);
    }

    /// Adds a request on its way to the first queue. One may overtake another: the measured times of messages contain the waiting behind
    /// slow ones.
    pub(super) fn add_entry(&mut self, at: u64, sent: u64) {
        if self.entries.back().is_none_or(|last| last.0 <= at) {
            return self.entries.push_back((at, sent));
        }
        let place = self.entries.partition_point(|other| other.0 <= at);
        self.entries.insert(place, (at, sent));
    }

    pub(super) fn next_entry(&self) -> u64 {
        self.entries.front().map_or(NEVER, |entry| entry.0)
    }

    /// Removes the request that joins the first queue next; returns when it was sent.
    pub(super) fn pop_entry(&mut self) -> Option<u64> {
        self.entries.pop_front().map(|(_, sent)| sent)
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

    /// Removes the next event if it is a timer. Returns whether it was.
    pub(super) fn pop_timer(&mut self) -> bool {
        let is_timer = matches!(self.heap.peek(), Some(Reverse((_, _, Event::Timer(_)))));
        is_timer && self.heap.pop().is_some()
    }

    pub(super) fn pop_hop(&mut self) -> Option<Hop> {
        self.hops.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branches::NO_COPY;

    #[test]
    fn hops_end_in_order_of_time_whatever_the_order_in_which_they_begin() {
        let mut events = EventQueue::default();
        for (flight, at) in [(0, 5), (1, 9), (2, 7), (3, 9), (4, 5), (5, 1)] {
            let task = Task {
                flight,
                stage: 0,
                attempt: 0,
                copy: NO_COPY,
            };
            events.add_hop(Hop {
                at,
                task,
                edge: 0,
                replica: ON_ARRIVAL,
            });
        }
        assert_eq!(events.next_hop(), 1);
        let flights: Vec<u32> = std::iter::from_fn(|| events.pop_hop())
            .map(|hop| hop.task.flight)
            .collect();
        assert_eq!(flights, [5, 0, 4, 2, 1, 3]);
        assert_eq!(events.next_hop(), NEVER);
    }
}
