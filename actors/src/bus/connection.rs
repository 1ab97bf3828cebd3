//! State and counters of the connection.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::{Event, ServerError};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::watch;

/// Capacity of the channel of refusals; a slow reader misses older ones.
const MAX_REFUSALS: usize = 16;

/// Part of the server's error text for a refused inbox subscription.
const INBOX: &str = "for Subscription to \"_INBOX";

/// Subject of the JetStream account query.
const ACCOUNT_QUERY: &str = "$JS.API.INFO";

/// State of the connection to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Connected.
    Up,
    /// Lost; the client reconnects by itself. Publications are buffered up to the client's capacity; beyond it
    /// `publish` waits.
    Down,
    /// Closed permanently.
    Closed,
}

/// Counted events of the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Number of times that a full subscription lost messages; each may stand for several messages.
    pub slow_consumer: u64,
    /// Number of times that the connection was lost.
    pub disconnects: u64,
    /// Number of errors that the server or the client reported.
    pub errors: u64,
}

/// Counters of one connection, and its state as a watch channel.
pub struct ConnectionHealth {
    /// Name of the connection.
    name: String,
    /// Address of the broker, without credentials.
    url: String,
    slow_consumer: AtomicU64,
    disconnects: AtomicU64,
    errors: AtomicU64,
    /// Failed attempts to connect since the connection was lost.
    failed_attempts: AtomicU64,
    link: watch::Sender<Link>,
    /// True once the server has refused the JetStream query.
    jetstream_denied: watch::Sender<bool>,
    /// Error texts of the server about subjects that the user may not publish or subscribe to.
    refusals: broadcast::Sender<Arc<str>>,
    observer: Option<Observer>,
}

/// Callback for every event of the connection. It runs on the client's task and must not block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

impl fmt::Debug for ConnectionHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionHealth")
            .field("counts", &self.counts())
            .field("link", &*self.link.borrow())
            .finish_non_exhaustive()
    }
}

impl ConnectionHealth {
    pub(super) fn new(name: String, url: String, observer: Option<Observer>) -> Self {
        Self {
            name,
            url,
            slow_consumer: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            failed_attempts: AtomicU64::new(0),
            link: watch::Sender::new(Link::Down),
            jetstream_denied: watch::Sender::new(false),
            refusals: broadcast::Sender::new(MAX_REFUSALS),
            observer,
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            slow_consumer: self.slow_consumer.load(Ordering::Relaxed),
            disconnects: self.disconnects.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    /// Returns the state of the connection as a watch channel.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    /// Returns whether the connection is up.
    pub fn is_up(&self) -> bool {
        *self.link.borrow() == Link::Up
    }

    /// Waits until the server refuses the JetStream query for lack of permission.
    pub(super) async fn jetstream_is_denied(&self) {
        let mut denied = self.jetstream_denied.subscribe();
        // The sender lives as long as `self`.
        let _ = denied.wait_for(|denied| *denied).await;
    }

    /// Returns whether the server has refused the JetStream query for lack of permission.
    pub(crate) fn is_jetstream_denied(&self) -> bool {
        *self.jetstream_denied.borrow()
    }

    /// Returns a future that resolves with the server's error text once the server denies publishing to `subject` or
    /// subscribing to an inbox. Refusals count from the call.
    pub fn refused(&self, subject: &str) -> impl Future<Output = Arc<str>> + use<> {
        let mut refusals = self.refusals.subscribe();
        let publish = format!("for Publish to \"{subject}\"");
        async move {
            loop {
                match refusals.recv().await {
                    Ok(text) if text.contains(&publish) || text.contains(INBOX) => return text,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return std::future::pending().await,
                }
            }
        }
    }

    /// Returns a future that resolves once the server denies the subscription to `subject`. Refusals count from the
    /// call.
    pub fn refused_subscription(&self, subject: &str) -> impl Future<Output = ()> + use<> {
        let mut refusals = self.refusals.subscribe();
        let subscription = format!("for Subscription to \"{subject}\"");
        async move {
            loop {
                match refusals.recv().await {
                    Ok(text) if text.contains(&subscription) => return,
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return std::future::pending().await,
                }
            }
        }
    }

    pub(super) fn observe(&self, event: &Event) {
        match event {
            Event::Connected => {
                self.failed_attempts.store(0, Ordering::Relaxed);
                if self.disconnects.load(Ordering::Relaxed) > 0 {
                    // Same level as the loss, so that both appear in the log.
                    let (broker, connection) = (&self.url, &self.name);
                    tracing::warn!(broker, connection, "connected to the broker again");
                }
                self.set(Link::Up);
            }
            Event::Disconnected => {
                self.disconnects.fetch_add(1, Ordering::Relaxed);
                let (broker, connection) = (&self.url, &self.name);
                tracing::warn!(
                    broker,
                    connection,
                    "lost the connection to the broker; reconnecting"
                );
                self.set(Link::Down);
            }
            Event::Closed => self.set(Link::Closed),
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                let lost = self.slow_consumer.fetch_add(1, Ordering::Relaxed) + 1;
                // Log repeated losses at 1, 2, 4, 8, ... only.
                if lost.is_power_of_two() {
                    tracing::error!(lost, "a subscription is full; messages are lost");
                }
            }
            Event::ClientError(error) if !self.is_up() => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                let attempt = self.failed_attempts.fetch_add(1, Ordering::Relaxed) + 1;
                // The client makes two attempts per second.
                if attempt.is_power_of_two() {
                    let (broker, connection) = (&self.url, &self.name);
                    tracing::warn!(broker, connection, attempt, %error, "cannot connect to the broker; trying again");
                }
            }
            Event::ServerError(_) | Event::ClientError(_) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                let (broker, connection) = (&self.url, &self.name);
                tracing::warn!(broker, connection, %event, "error on the connection to the broker");
                // The server names the subject only in its error text, and sends no reply.
                let text = event.to_string();
                if text.contains("Permissions Violation") {
                    if text.contains("for Publish") && text.contains(ACCOUNT_QUERY) {
                        self.jetstream_denied.send_replace(true);
                    }
                    // Fails if no request waits for a reply.
                    let _ = self.refusals.send(text.into());
                }
            }
            Event::LameDuckMode | Event::Draining => {
                tracing::info!(%event, "event of the connection to the broker");
            }
        }
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}
