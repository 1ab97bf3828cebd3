//! A device that runs one batch at a time: its replicas take turns. *Whose* turn it is, is decided by
//! [`kaskade_plans::turns`]; here the turns meet the clock's time and the batchers' mailboxes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use actix::{Message, WeakRecipient};
use kaskade_plans::turns::Turns;

/// It is this replica's turn: it has the device until it releases it.
#[derive(Message)]
#[rtype(result = "()")]
pub struct YourTurn;

/// One device of a worker. Clones are the same device.
#[derive(Clone, Default)]
pub struct Device(Arc<Mutex<Seats>>);

#[derive(Default)]
struct Seats {
    turns: Turns<u32>,
    /// Weak, or a retired batcher would live on for its seat.
    batchers: BTreeMap<u32, WeakRecipient<YourTurn>>,
    next: u32,
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device {
    /// A place in the device's turns.
    pub fn seat(self, batcher: WeakRecipient<YourTurn>) -> Turn {
        let mut seats = self.lock();
        let seat = seats.next;
        seats.next += 1;
        seats.batchers.insert(seat, batcher);
        drop(seats);
        Turn { device: self, seat }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seats {
    /// Tells who has the device now. A batcher that is gone gives way to the next.
    fn tell(&self, seat: u32) {
        // One that is gone has cancelled, or is about to in `stopped`: either moves the line on.
        if let Some(batcher) = self.batchers.get(&seat).and_then(WeakRecipient::upgrade) {
            batcher.do_send(YourTurn);
        }
    }
}

/// A replica's place in the turns of its device.
pub struct Turn {
    device: Device,
    seat: u32,
}

impl Turn {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The queue is due at `now`, microseconds. True if the device is its own at once; otherwise [`YourTurn`] comes.
    pub fn request(&self, now: u64) -> bool {
        self.device.lock().turns.request(self.seat, now)
    }

    /// The batch has ended. True if the device stays its own: nobody fell due before its own next batch.
    pub fn release(&self) -> bool {
        let mut seats = self.device.lock();
        match seats.turns.release(self.seat) {
            Some(next) if next == self.seat => true,
            Some(next) => {
                seats.tell(next);
                false
            }
            None => false,
        }
    }

    /// Leaves the device for good.
    pub fn cancel(self) {
        let mut seats = self.device.lock();
        seats.batchers.remove(&self.seat);
        if let Some(next) = seats.turns.cancel(self.seat) {
            seats.tell(next);
        }
    }
}
