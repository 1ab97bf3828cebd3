//! The queue of a device that runs one batch at a time (CascadeServe appendix C.1).
//!
//! A replica whose batch is due requests the device; replicas are served in the order in which their batches fell due. Without
//! order the queue that is polled first wins every time, and under load a small model's replica starves the large one beside
//! it.

use std::collections::{BTreeMap, BTreeSet};

/// The queue of one device. `R` identifies its replicas; of replicas whose batches fell due at the same time the smaller goes first.
#[derive(Debug, Clone)]
pub struct DeviceQueue<R> {
    holder: Option<R>,
    line: BTreeSet<(u64, R)>,
    since: BTreeMap<R, u64>,
}

impl<R: Copy + Ord> Default for DeviceQueue<R> {
    fn default() -> Self {
        Self {
            holder: None,
            line: BTreeSet::new(),
            since: BTreeMap::new(),
        }
    }
}

impl<R: Copy + Ord> DeviceQueue<R> {
    /// The queue of this replica fell due at `now`, microseconds. Returns true if the replica gets the device: start a batch. Otherwise
    /// it is queued until [`DeviceQueue::release`] names it; a repeated request keeps its position. The holder may request too,
    /// for the batch after the one it runs.
    pub fn request(&mut self, replica: R, now: u64) -> bool {
        if self.holder.is_none() {
            self.holder = Some(replica);
            return true;
        }
        if let std::collections::btree_map::Entry::Vacant(place) = self.since.entry(replica) {
            place.insert(now);
            self.line.insert((now, replica));
        }
        false
    }

    /// Notes that the holder's batch has ended, or that it had none to start. Returns the next replica in the queue, which holds the
    /// device from now on. A call by any other replica changes nothing.
    pub fn release(&mut self, replica: R) -> Option<R> {
        if self.holder != Some(replica) {
            return None;
        }
        self.holder = self.line.pop_first().map(|(_, next)| next);
        if let Some(next) = self.holder {
            self.since.remove(&next);
        }
        self.holder
    }

    /// Removes a lost replica from the queue, and from the device if it held it. Returns the new holder if the holder
    /// changed.
    pub fn cancel(&mut self, replica: R) -> Option<R> {
        if let Some(since) = self.since.remove(&replica) {
            self.line.remove(&(since, replica));
        }
        self.release(replica)
    }

    /// The replica that holds the device.
    pub fn holder(&self) -> Option<R> {
        self.holder
    }

    /// Number of replicas in the queue.
    pub fn waiting(&self) -> usize {
        self.line.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_free_device_is_had_at_once() {
        let mut queue = DeviceQueue::default();
        assert!(queue.request("a", 0));
        assert_eq!(queue.release("a"), None);
        assert_eq!(queue.holder(), None);
    }

    #[test]
    fn the_line_is_by_time_then_by_replica_and_asking_again_keeps_the_place() {
        let mut queue = DeviceQueue::default();
        assert!(queue.request("x", 0));
        assert!(!queue.request("c", 1));
        assert!(!queue.request("b", 2));
        assert!(!queue.request("a", 2));
        assert!(!queue.request("c", 9));
        assert_eq!(queue.waiting(), 3);
        assert_eq!(queue.release("x"), Some("c"));
        assert_eq!(queue.release("c"), Some("a"));
        assert_eq!(queue.release("a"), Some("b"));
        assert_eq!(queue.release("b"), None);
    }

    #[test]
    fn the_holder_may_stand_in_line_for_its_next_batch() {
        let mut queue = DeviceQueue::default();
        assert!(queue.request("a", 0));
        assert!(!queue.request("a", 1));
        assert!(!queue.request("b", 2));
        assert_eq!(queue.release("a"), Some("a"));
        assert_eq!(queue.release("a"), Some("b"));
    }

    #[test]
    fn a_replica_that_leaves_the_queue_frees_the_device() {
        let mut queue = DeviceQueue::default();
        assert!(queue.request("a", 0));
        assert!(!queue.request("b", 1));
        assert!(!queue.request("c", 2));
        assert_eq!(queue.release("c"), None, "only the holder releases");
        assert_eq!(queue.cancel("b"), None);
        assert_eq!(queue.cancel("a"), Some("c"));
        assert_eq!(queue.cancel("c"), None);
        assert!(queue.request("b", 3));
    }

    proptest! {
        /// Every replica that requests the device gets it once, in the order of requests.
        #[test]
        fn every_replica_is_served_in_order(asks in prop::collection::vec((0..8_u32, 0..3_u64), 1..60)) {
            let mut queue = DeviceQueue::default();
            let (mut now, mut line) = (0, Vec::<(u64, u32)>::new());
            prop_assert!(queue.request(99, 0));
            for (replica, later) in asks {
                now += later;
                prop_assert!(!queue.request(replica, now));
                if line.iter().all(|(_, waits)| *waits != replica) {
                    line.push((now, replica));
                }
            }
            line.sort_unstable();
            let mut holder = 99;
            for (_, expected) in line {
                prop_assert_eq!(queue.release(holder), Some(expected));
                holder = expected;
            }
            prop_assert_eq!(queue.release(holder), None);
        }
    }
}
