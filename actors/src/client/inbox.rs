//! The inbox of a client: one subscription for the replies to all its streamed requests. A separate subscription would
//! reserve 6 KiB for each request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Message, Subject, SubscribeError, Subscriber};
use futures::StreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::ids;

/// The subscription and the requests that wait for its messages. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Inbox {
    prefix: String,
    waiting: Arc<Waiting>,
    forwarding: AbortHandle,
}

/// Channels of the waiting requests, by number; `None` once the subscription has ended. Messages are boxed because a
/// channel reserves room for 32 of them.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, UnboundedSender<Box<Message>>>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, UnboundedSender<Box<Message>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Subscribes on the caller's runtime.
    ///
    /// # Errors
    /// [`SubscribeError`] if the connection is closed.
    pub(super) async fn open(nats: &async_nats::Client) -> Result<Arc<Self>, SubscribeError> {
        let prefix = nats.new_inbox();
        let subscriber = nats.subscribe(format!("{prefix}.*")).await?;
        let waiting = Arc::new(Waiting(Mutex::new(Some(HashMap::new()))));
        let forwarding = tokio::spawn(forward(subscriber, Ending(Arc::clone(&waiting))));
        Ok(Arc::new(Self {
            prefix,
            waiting,
            forwarding: forwarding.abort_handle(),
        }))
    }

    /// Registers one request for its replies; `None` if the subscription has ended.
    pub(super) fn replies(self: &Arc<Self>) -> Option<Replies> {
        let number = ids::unique();
        let (sender, received) = unbounded_channel();
        self.waiting.lock().as_mut()?.insert(number, sender);
        Some(Replies {
            inbox: Arc::clone(self),
            number,
            received,
        })
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.forwarding.abort();
    }
}

/// The replies to one request.
pub(super) struct Replies {
    inbox: Arc<Inbox>,
    number: u64,
    received: UnboundedReceiver<Box<Message>>,
}

impl Replies {
    /// Returns the subject that replies are sent to.
    pub(super) fn subject(&self) -> Subject {
        format!("{}.{:016x}", self.inbox.prefix, self.number).into()
    }

    /// Returns the next reply; `None` if the connection is closed.
    pub(super) async fn next(&mut self) -> Option<Box<Message>> {
        self.received.recv().await
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let Some(waiting) = self.inbox.waiting.lock().as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// Ends all waiting on drop, that is when the subscription or its runtime ends.
struct Ending(Arc<Waiting>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// Passes every message to the request that waits for it.
async fn forward(mut subscriber: Subscriber, ending: Ending) {
    while let Some(message) = subscriber.next().await {
        let number = message.subject.rsplit('.').next();
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        if let (Some(number), Some(waiting)) = (number, ending.0.lock().as_ref())
            && let Some(sender) = waiting.get(&number)
        {
            // Fails if the request has ended.
            let _ = sender.send(Box::new(message));
        }
    }
}
