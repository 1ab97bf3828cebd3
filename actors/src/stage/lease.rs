//! A device that runs one batch at a time: its replicas take turns. *Whose* turn it is, is decided by
//! [`kaskade_plans::turns`]; here the turns meet the clock's time and the batchers' mailboxes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::actor::{Message, WeakRecipient};
use kaskade_plans::turns::Turns;

/// It is this replica's turn: it has the device until it releases it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LeaseGranted;

/// One device of a worker. Clones are the same device.
#[derive(Clone, Default)]
pub struct Device(Arc<Mutex<Line>>);

#[derive(Default)]
struct Line {
    turns: Turns<u32>,
    /// Weak, or a retired batcher would live on for its member.
    batchers: BTreeMap<u32, WeakRecipient<LeaseGranted>>,
    next: u32,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device {
    /// A place in the device's turns.
    pub fn register(self, batcher: WeakRecipient<LeaseGranted>) -> Lease {
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
    /// Tells who has the device now. A batcher that is gone gives way to the next.
    fn grant(&self, member: u32) {
        // One that is gone has cancelled, or is about to in `stopped`: either moves the line on.
        if let Some(batcher) = self.batchers.get(&member).and_then(WeakRecipient::upgrade) {
            batcher.do_send(LeaseGranted);
        }
    }
}

/// A replica's place in the turns of its device.
pub struct Lease {
    device: Device,
    member: u32,
}

impl Lease {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The queue is due at `now`, microseconds. True if the device is its own at once; otherwise [`LeaseGranted`] comes.
    pub fn request(&self, now: u64) -> bool {
        self.device.lock().turns.request(self.member, now)
    }

    /// The batch has ended. True if the device stays its own: nobody fell due before its own next batch.
    pub fn release(&self) -> bool {
        let mut line = self.device.lock();
        match line.turns.release(self.member) {
            Some(next) if next == self.member => true,
            Some(next) => {
                line.grant(next);
                false
            }
            None => false,
        }
    }

    /// Leaves the device for good.
    pub fn cancel(self) {
        let mut line = self.device.lock();
        line.batchers.remove(&self.member);
        if let Some(next) = line.turns.cancel(self.member) {
            line.grant(next);
        }
    }
}
