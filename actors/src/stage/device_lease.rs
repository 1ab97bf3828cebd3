//! A device whose replicas run one batch at a time. [`kaskade_policy::device_queue`] decides the order; this module
//! connects it to the batchers' mailboxes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::actor::{Message, WeakRecipient};
use kaskade_policy::device_queue::DeviceQueue;

/// Notifies a replica that it holds the lease of its device until it releases it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct LeaseGranted {
    device: Device,
    member: u32,
}

/// A device of a worker. Clones refer to the same device.
#[derive(Clone, Default)]
pub(crate) struct Device(Arc<Mutex<Line>>);

#[derive(Default)]
struct Line {
    queue: DeviceQueue<u32>,
    /// Weak, because a strong address would keep a retired batcher alive.
    batchers: BTreeMap<u32, WeakRecipient<LeaseGranted>>,
    next: u32,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device {
    /// Registers a replica with the device.
    pub(crate) fn register(self, batcher: WeakRecipient<LeaseGranted>) -> Lease {
        let mut line = self.lock();
        let member = line.next;
        line.next += 1;
        line.batchers.insert(member, batcher);
        drop(line);
        Lease { device: self, member }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Notifies a batcher that it holds the lease of the device.
    fn grant(&self, device: &Device, member: u32) {
        // A batcher that is gone has cancelled its registration, or will in `stopped`; both pass the lease on.
        if let Some(batcher) = self.batchers.get(&member).and_then(WeakRecipient::upgrade) {
            batcher.do_send(LeaseGranted {
                device: device.clone(),
                member,
            });
        }
    }
}

/// A replica's registration with its device.
pub(crate) struct Lease {
    device: Device,
    member: u32,
}

impl Lease {
    /// Returns the device.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns whether the lease was granted to this registration, not to an earlier one of the same batcher.
    pub(crate) fn has(&self, granted: &LeaseGranted) -> bool {
        self.member == granted.member && self.device == granted.device
    }

    /// Requests the lease for a queue that is due at `now`, microseconds. Returns true if it is granted immediately;
    /// otherwise [`LeaseGranted`] follows.
    pub(crate) fn request(&self, now: u64) -> bool {
        self.device.lock().queue.request(self.member, now)
    }

    /// Releases the lease after a batch. Returns true if the replica keeps it because no other queue was due first.
    pub(crate) fn release(&self) -> bool {
        let mut line = self.device.lock();
        match line.queue.release(self.member) {
            Some(next) if next == self.member => true,
            Some(next) => {
                line.grant(&self.device, next);
                false
            }
            None => false,
        }
    }

    /// Removes the replica from the device.
    pub(crate) fn cancel(self) {
        let mut line = self.device.lock();
        line.batchers.remove(&self.member);
        if let Some(next) = line.queue.cancel(self.member) {
            line.grant(&self.device, next);
        }
    }
}
