//! The state and queue of one client.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::outbox::{Batch, Message, Outbox};
use super::parser::{ClientOptions, ParseError};

/// Longest pause of a publisher for a congested receiver, per read.
const MAX_PAUSE: Duration = Duration::from_millis(10);

/// Why a connection ends; sent to the client if it can still receive it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Ending {
    #[error("closed by the client")]
    Closed,
    #[error("connection error")]
    Broken,
    #[error("the broker is shutting down")]
    Shutdown,
    #[error(transparent)]
    Refused(#[from] ParseError),
    #[error("no responders requires headers support")]
    NoRespondersNeedHeaders,
    #[error("message headers not supported")]
    HeadersNotAgreed,
    #[error("Slow Consumer")]
    SlowConsumer,
    #[error("Stale Connection")]
    Stale,
}

/// The state of a client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) options: Cell<ClientOptions>,
    /// Subscriptions of the client, by the client's own ids.
    pub(super) subscriptions: RefCell<HashMap<Box<[u8]>, Rc<Subscription>>>,
    outbox: RefCell<Outbox>,
    /// Notifies that data was queued.
    filled: Notify,
    /// Notifies that data was written.
    drained: Notify,
    ending: Cell<Option<Ending>>,
    ended: Notify,
    /// Whether it has sent data since the last check.
    pub(super) has_sent: Cell<bool>,
}

impl Session {
    pub(super) fn new(id: u64, max_pending: usize) -> Self {
        Self {
            id,
            options: Cell::new(ClientOptions::default()),
            subscriptions: RefCell::default(),
            outbox: RefCell::new(Outbox::new(max_pending)),
            filled: Notify::new(),
            drained: Notify::new(),
            ending: Cell::new(None),
            ended: Notify::new(),
            has_sent: Cell::new(false),
        }
    }

    /// Ends the connection; the first reason counts.
    pub(super) fn end(&self, ending: Ending) {
        if self.ending.get().is_none() {
            self.ending.set(Some(ending));
            self.ended.notify_one();
        }
    }

    /// Returns whether it ends as a slow consumer.
    pub(super) fn is_slow(&self) -> bool {
        self.ending.get() == Some(Ending::SlowConsumer)
    }

    /// Returns whether publishers to it should pause.
    pub(super) fn is_congested(&self) -> bool {
        self.outbox.borrow().is_congested()
    }

    /// Queues a message; returns false if the client takes no more.
    pub(super) fn deliver(&self, message: &Message<'_>, sid: &[u8]) -> bool {
        self.queue(|outbox| outbox.push(message, sid, self.options.get().headers).is_ok())
    }

    /// Queues a line of the protocol.
    pub(super) fn send_line(&self, line: &[u8]) {
        self.queue(|outbox| outbox.push_line(line).is_ok());
    }

    /// Queues an error line.
    pub(super) fn send_error(&self, text: &str) {
        self.send_line(format!("-ERR '{text}'\r\n").as_bytes());
    }

    fn queue(&self, push: impl FnOnce(&mut Outbox) -> bool) -> bool {
        if self.ending.get().is_some() {
            return false;
        }
        let (was_empty, taken) = {
            let mut outbox = self.outbox.borrow_mut();
            (outbox.is_empty(), push(&mut outbox))
        };
        if !taken {
            self.end(Ending::SlowConsumer);
        } else if was_empty {
            self.filled.notify_one();
        }
        taken
    }

    /// Waits for the reason why the connection ends.
    pub(super) async fn until_ended(&self) -> Ending {
        loop {
            if let Some(ending) = self.ending.get() {
                return ending;
            }
            self.ended.notified().await;
        }
    }

    /// Waits until some of its queued data has left, for a limited time: a slow receiver slows its publishers down,
    /// and a stuck one does not stop them.
    pub(super) async fn pause_for(&self) {
        let room = async {
            while self.is_congested() && self.ending.get().is_none() {
                self.drained.notified().await;
            }
        };
        let _ = timeout(MAX_PAUSE, room).await;
    }

    /// Moves what is queued to the end of `batch`.
    pub(super) fn take(&self, batch: &mut Batch) {
        self.outbox.borrow_mut().take(batch);
    }

    /// Waits until something is queued.
    pub(super) async fn until_filled(&self) {
        self.filled.notified().await;
    }

    /// Releases `bytes` that were taken and have been written.
    pub(super) fn written(&self, bytes: usize) {
        self.outbox.borrow_mut().written(bytes);
        self.drained.notify_waiters();
    }
}

/// A client's subscription to a pattern.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) session: Rc<Session>,
    pub(super) sid: Box<[u8]>,
    pub(super) subject: Box<[u8]>,
    pub(super) queue: Option<Box<[u8]>>,
    pub(super) delivered: Cell<u64>,
    /// The total number of messages after which it ends.
    pub(super) after: Cell<Option<u64>>,
}

impl Subscription {
    pub(super) fn is_used_up(&self) -> bool {
        self.after
            .get()
            .is_some_and(|after| self.delivered.get() >= after)
    }
}
