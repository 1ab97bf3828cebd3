//! A subscription that ends without losing messages.
//!
//! The client's own ways to unsubscribe stop accepting messages when the request leaves the process: what the server
//! sent in the meantime is dropped. Only the automatic unsubscription after a number of messages is counted by both
//! ends, so a subscription ends here by a number slightly above what has arrived, and padding messages make up the
//! difference.

use std::collections::VecDeque;

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::{sync::watch, task::unconstrained};

use super::{Bus, BusError, Link};
use crate::wire::headers;

/// Messages beyond those expected in transit that may be on their way when a subscription ends.
const MARGIN: u64 = 128;

/// How many times as many messages may be in transit as arrived during the round trip before.
const BURST: u64 = 4;

/// Rounds of padding. A round pays for three quarters of what is missing or more as long as a queue group has at most
/// three members.
const ROUNDS: u32 = 40;

/// Whether a subscription sends padding messages to its own subject to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// It does. Every message that the server has sent is delivered.
    Send,
    /// It does not, because it may not publish there: its senders must have stopped before it ends.
    Omit,
}

/// A subscription whose messages are counted, so that it can end without losing any.
pub(crate) struct Subscription {
    bus: Bus,
    subject: Subject,
    group: Option<String>,
    subscriber: Subscriber,
    /// Messages that a lost connection had delivered.
    buffered: VecDeque<Message>,
    /// Messages taken from `subscriber`.
    taken: u64,
    link: watch::Receiver<Link>,
    /// Lost connections when `subscriber` was made.
    disconnects: u64,
}

impl Subscription {
    /// Subscribes as [`Bus::subscribe`] does.
    ///
    /// # Errors
    /// [`BusError::Failed`].
    pub(crate) async fn open(bus: &Bus, subject: Subject, group: Option<String>) -> Result<Self, BusError> {
        let disconnects = bus.connection().counts().disconnects;
        Ok(Self {
            subscriber: bus.subscribe(subject.clone(), group.clone()).await?,
            link: bus.connection().link(),
            bus: bus.clone(),
            subject,
            group,
            buffered: VecDeque::new(),
            taken: 0,
            disconnects,
        })
    }

    /// Returns the next message; `None` once the connection is closed. Dropping the future loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Message> {
        loop {
            let bus = self.bus.clone();
            let (mut link, disconnects) = (self.link.clone(), self.disconnects);
            tokio::select! {
                biased;
                message = self.next_of_subscriber() => return message,
                () = lost(&bus, &mut link, disconnects) => self.renew().await?,
            }
        }
    }

    /// Replaces the subscriber after a lost connection: the server counts the messages of a renewed subscription from
    /// zero, the client goes on counting.
    async fn renew(&mut self) -> Option<()> {
        let disconnects = self.bus.connection().counts().disconnects;
        let renewed = self.bus.subscribe(self.subject.clone(), self.group.clone()).await;
        let mut old = std::mem::replace(&mut self.subscriber, renewed.ok()?);
        // A task's budget would end the loop early.
        while let Some(Some(message)) = unconstrained(old.next()).now_or_never() {
            if !headers::is_padding(message.headers.as_ref()) {
                self.buffered.push_back(message);
            }
        }
        (self.taken, self.disconnects) = (0, disconnects);
        Some(())
    }

    /// Ends the subscription; `take` gets every message that the server has sent or still sends.
    ///
    /// With [`Padding::Send`] no message is lost, unless the connection is lost meanwhile or more than [`BURST`] times as
    /// many messages are in transit as before, and [`MARGIN`]. In a cluster this covers the server connected to, not
    /// messages between servers.
    pub(crate) async fn finish(mut self, padding: Padding, mut take: impl FnMut(Message)) {
        let before = self.taken;
        let ended = match self.round_trip(&mut take).await {
            Round::Ended | Round::Lost => true,
            Round::Over if padding == Padding::Send => self.count_down(before, &mut take).await,
            Round::Over | Round::Failed => false,
        };
        if ended || self.subscriber.drain().await.is_err() {
            return self.take_buffered(&mut take);
        }
        let bus = self.bus.clone();
        let (mut link, disconnects) = (self.link.clone(), self.disconnects);
        loop {
            tokio::select! {
                biased;
                message = self.next_of_subscriber() => match message {
                    Some(message) => take(message),
                    None => return,
                },
                () = lost(&bus, &mut link, disconnects) => return,
            }
        }
    }

    /// Lets the server end the subscription after a number of messages, and sends padding until it does. Returns false
    /// if the padding does not arrive.
    async fn count_down(&mut self, before: u64, take: &mut impl FnMut(Message)) -> bool {
        let last = self.taken + MARGIN + BURST * self.taken.saturating_sub(before);
        if self.subscriber.unsubscribe_after(last).await.is_err() {
            return true;
        }
        // The first round suffices unless other members of the queue group take some of it.
        let mut each = 1;
        for _ in 0..ROUNDS {
            for _ in 0..each * last.saturating_sub(self.taken) {
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
                Round::Over => each = 4,
            }
        }
        tracing::warn!(subject = %self.subject, "a subscription did not receive its own messages");
        false
    }

    /// Hands messages over during a round trip, and those that arrived before its end.
    async fn round_trip(&mut self, take: &mut impl FnMut(Message)) -> Round {
        let bus = self.bus.clone();
        let (mut link, disconnects) = (self.link.clone(), self.disconnects);
        if *link.borrow() != Link::Up {
            return Round::Lost;
        }
        let barrier = bus.barrier();
        tokio::pin!(barrier);
        loop {
            tokio::select! {
                biased;
                message = self.next_of_subscriber() => match message {
                    Some(message) => take(message),
                    None => return Round::Ended,
                },
                done = &mut barrier => return if done.is_ok() { Round::Over } else { Round::Failed },
                () = lost(&bus, &mut link, disconnects) => return Round::Lost,
            }
        }
    }

    /// Hands over what has arrived.
    fn take_buffered(&mut self, take: &mut impl FnMut(Message)) {
        // A task's budget would end the loop early.
        while let Some(Some(message)) = unconstrained(self.next_of_subscriber()).now_or_never() {
            take(message);
        }
    }

    /// Returns the next message of the current subscriber.
    async fn next_of_subscriber(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.buffered.pop_front() {
                return Some(message);
            }
            let message = self.subscriber.next().await?;
            self.taken += 1;
            if !headers::is_padding(message.headers.as_ref()) {
                return Some(message);
            }
        }
    }
}

/// How a round trip ended.
enum Round {
    /// The subscription ended first.
    Ended,
    /// The connection was lost, and the subscription with it.
    Lost,
    /// The server did not answer in time.
    Failed,
    /// The server has answered.
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
#[path = "subscription_tests.rs"]
mod tests;
