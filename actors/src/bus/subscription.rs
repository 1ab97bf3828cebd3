//! A subscription that ends without losing messages.
//!
//! The client's own ways to unsubscribe stop accepting messages when the unsubscribe request leaves the process;
//! messages that the server sent in the meantime are dropped. Only automatic unsubscription after a number of messages
//! is counted by both ends. A subscription here therefore ends after a number slightly above the messages received, and
//! padding messages make up the difference.

use std::collections::VecDeque;

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::{sync::watch, task::unconstrained};

use super::{Bus, BusError, Link};
use crate::wire::headers;

/// Extra messages allowed for in transit when a subscription ends.
const MARGIN: u64 = 128;

/// Allowed ratio of messages in transit to messages received during the preceding round trip.
const BURST: u64 = 4;

/// Largest number of padding rounds. Each round supplies at least three quarters of the missing messages if the queue
/// group has at most three members.
const ROUNDS: u32 = 40;

/// A subscription whose messages are counted, so that it can end without losing any.
pub(crate) struct Subscription {
    bus: Bus,
    subject: Subject,
    group: Option<String>,
    counted: Counted,
    link: watch::Receiver<Link>,
    /// Count of lost connections when `subscriber` was created.
    disconnects: u64,
}

/// A subscriber, and the number of messages taken from it.
struct Counted {
    subscriber: Subscriber,
    /// Messages received before a connection was lost.
    buffered: VecDeque<Message>,
    /// Messages taken from `subscriber`, padding included.
    taken: u64,
    /// Padding messages among `taken`.
    padded: u64,
}

impl Counted {
    fn new(subscriber: Subscriber) -> Self {
        Self {
            subscriber,
            buffered: VecDeque::new(),
            taken: 0,
            padded: 0,
        }
    }

    /// Returns the next message that is not padding.
    async fn next(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.buffered.pop_front() {
                return Some(message);
            }
            let message = self.subscriber.next().await?;
            self.taken += 1;
            if !headers::is_padding(message.headers.as_ref()) {
                return Some(message);
            }
            self.padded += 1;
        }
    }

    /// Returns the next message that has already arrived; `None` if there is none.
    fn arrived(&mut self) -> Option<Message> {
        // Tokio's cooperative budget would hide some of them.
        unconstrained(self.next()).now_or_never().flatten()
    }
}

impl Subscription {
    /// Subscribes as [`Bus::subscribe`] does.
    ///
    /// # Errors
    /// [`BusError::Failed`].
    pub(crate) async fn open(bus: &Bus, subject: Subject, group: Option<String>) -> Result<Self, BusError> {
        let disconnects = bus.connection().counts().disconnects;
        Ok(Self {
            counted: Counted::new(bus.subscribe(subject.clone(), group.clone()).await?),
            link: bus.connection().link(),
            bus: bus.clone(),
            subject,
            group,
            disconnects,
        })
    }

    /// Returns the next message; `None` once the connection is closed. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            tokio::select! {
                biased;
                message = self.counted.next() => return message,
                () = lost(&self.bus, &mut self.link, self.disconnects) => self.renew().await?,
            }
        }
    }

    /// Replaces the subscriber after a lost connection, because the server counts the messages of a renewed
    /// subscription from zero while the client continues counting.
    async fn renew(&mut self) -> Option<()> {
        let disconnects = self.bus.connection().counts().disconnects;
        let renewed = self.bus.subscribe(self.subject.clone(), self.group.clone()).await;
        let renewed = Counted::new(renewed.ok()?);
        let mut old = std::mem::replace(&mut self.counted, renewed);
        while let Some(message) = old.arrived() {
            self.counted.buffered.push_back(message);
        }
        self.disconnects = disconnects;
        Some(())
    }

    /// Ends the subscription and passes every message that the server has sent or still sends to `take`.
    ///
    /// No message is lost if the client may publish to the subject, the connection stays up, and at most [`BURST`]
    /// times the messages of the preceding round trip plus [`MARGIN`] are in transit. In a cluster this covers the
    /// connected server, not messages between servers.
    pub(crate) async fn finish(mut self, mut take: impl FnMut(Message)) {
        let before = self.counted.taken;
        let ended = match self.round_trip(&mut take).await {
            Round::Ended | Round::Lost => true,
            Round::Over => self.count_down(before, &mut take).await,
            Round::Failed => false,
        };
        if ended || self.counted.subscriber.drain().await.is_err() {
            return self.take_arrived(&mut take);
        }
        loop {
            tokio::select! {
                biased;
                message = self.counted.next() => match message {
                    Some(message) => take(message),
                    None => return,
                },
                () = lost(&self.bus, &mut self.link, self.disconnects) => return,
            }
        }
    }

    /// Asks the server to end the subscription after a number of messages, and sends padding until it does. Returns
    /// false if the padding does not arrive.
    async fn count_down(&mut self, before: u64, take: &mut impl FnMut(Message)) -> bool {
        let last = self.counted.taken + MARGIN + BURST * self.counted.taken.saturating_sub(before);
        if self.counted.subscriber.unsubscribe_after(last).await.is_err() {
            return true;
        }
        // The first round suffices unless other members of the queue group receive some of the padding.
        let (mut each, padded) = (1, self.counted.padded);
        for _ in 0..ROUNDS {
            for _ in 0..each * last.saturating_sub(self.counted.taken) {
                let headers = Some(headers::for_padding());
                let sent = self
                    .bus
                    .publish(self.subject.clone(), None, headers, Bytes::new());
                if sent.await.is_err() {
                    return false;
                }
            }
            match self.round_trip(take).await {
                Round::Ended | Round::Lost => return true,
                Round::Failed => return false,
                // The server does not let this client publish to the subject.
                Round::Over if self.counted.padded == padded => return false,
                Round::Over => each = 4,
            }
        }
        tracing::warn!(subject = %self.subject, "a subscription did not receive its own messages");
        false
    }

    /// Waits for a round trip to the server, and passes on the messages that arrive before it ends.
    async fn round_trip(&mut self, take: &mut impl FnMut(Message)) -> Round {
        if *self.link.borrow() != Link::Up {
            return Round::Lost;
        }
        let barrier = self.bus.barrier();
        tokio::pin!(barrier);
        loop {
            tokio::select! {
                biased;
                message = self.counted.next() => match message {
                    Some(message) => take(message),
                    None => return Round::Ended,
                },
                done = &mut barrier => return if done.is_ok() { Round::Over } else { Round::Failed },
                () = lost(&self.bus, &mut self.link, self.disconnects) => return Round::Lost,
            }
        }
    }

    /// Passes on the messages that have arrived.
    fn take_arrived(&mut self, take: &mut impl FnMut(Message)) {
        while let Some(message) = self.counted.arrived() {
            take(message);
        }
    }
}

/// Outcome of a round trip.
enum Round {
    /// The subscription ended before the answer.
    Ended,
    /// The connection was lost, and the subscription with it.
    Lost,
    /// The server did not answer in time.
    Failed,
    /// The server answered.
    Over,
}

/// Waits until the connection has been lost more often than `seen` times.
async fn lost(bus: &Bus, link: &mut watch::Receiver<Link>, seen: u64) {
    while bus.connection().counts().disconnects == seen {
        if link.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests;
