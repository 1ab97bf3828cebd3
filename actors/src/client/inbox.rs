//! The inbox of a client: one subscription for the replies to all its streamed requests. A subscription of its own would
//! reserve 6 KiB for each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_nats::{Message, Subject, SubscribeError, Subscriber};
use futures::StreamExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use crate::ids;

/// The subscription, and who waits for its messages. Dropping it unsubscribes.
#[derive(Debug)]
pub(super) struct Inbox {
    prefix: String,
    waiting: Arc<Waiting>,
    forwarding: AbortHandle,
}

/// The requests that wait for messages, by number; `None` once no more messages come. Messages are in boxes, because a channel
/// reserves room for 32 of them.
#[derive(Debug)]
struct Waiting(Mutex<Option<HashMap<u64, UnboundedSender<Box<Message>>>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Option<HashMap<u64, UnboundedSender<Box<Message>>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Subscribes, on the runtime of the caller.
    ///
    /// # Errors
    /// When the connection is closed.
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

    /// Begins to receive the replies to one request; `None` if no more messages come.
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

/// Ends all waiting when the subscription ends, its runtime's end included.
struct Ending(Arc<Waiting>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.lock().take();
    }
}

/// Gives every message to the request that waits for it.
async fn forward(mut subscriber: Subscriber, ending: Ending) {
    while let Some(message) = subscriber.next().await {
        let number = message.subject.rsplit('.').next();
        let number = number.and_then(|number| u64::from_str_radix(number, 16).ok());
        if let (Some(number), Some(waiting)) = (number, ending.0.lock().as_ref())
            && let Some(sender) = waiting.get(&number)
        {
            // The request may have ended.
            let _ = sender.send(Box::new(message));
        }
    }
}
