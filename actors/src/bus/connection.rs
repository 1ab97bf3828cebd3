//! How the connection fares.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_nats::{Event, ServerError};
use tokio::sync::watch;

/// Whether the broker can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Connected.
    Up,
    /// LostReplicas; the client tries again by itself. What is published meanwhile waits, up to the client's capacity, and then
    /// `publish` waits.
    Down,
    /// Closed for good.
    Closed,
}

/// What happened to the connection, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Times that a subscription was full and messages were lost. Each stands for one message or more.
    pub slow_consumer: u64,
    /// Times that the connection was lost.
    pub disconnects: u64,
    /// Errors that the server or the client reported.
    pub errors: u64,
}

/// The counters of one connection, and its state as a channel.
pub struct ConnectionHealth {
    slow_consumer: AtomicU64,
    disconnects: AtomicU64,
    errors: AtomicU64,
    link: watch::Sender<Link>,
    observer: Option<Observer>,
}

/// Called with every event of the connection, on the client's own task: it must not block.
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
    pub(super) fn new(observer: Option<Observer>) -> Self {
        Self {
            slow_consumer: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            link: watch::Sender::new(Link::Down),
            observer,
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> ConnectionCounts {
        ConnectionCounts {
            slow_consumer: self.slow_consumer.load(Ordering::Relaxed),
            disconnects: self.disconnects.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
        }
    }

    /// The state of the link, now and as it changes.
    pub fn link(&self) -> watch::Receiver<Link> {
        self.link.subscribe()
    }

    pub(super) fn observe(&self, event: &Event) {
        match event {
            Event::Connected => self.set(Link::Up),
            Event::Disconnected => {
                self.disconnects.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("the connection to the broker is lost; trying again");
                self.set(Link::Down);
            }
            Event::Closed => self.set(Link::Closed),
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                let lost = self.slow_consumer.fetch_add(1, Ordering::Relaxed) + 1;
                // A flood of them is one finding: say it at 1, 2, 4, 8, ...
                if lost.is_power_of_two() {
                    tracing::error!(lost, "a subscription is full and loses messages");
                }
            }
            Event::ServerError(_) | Event::ClientError(_) => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%event, "the broker's connection reports an error");
            }
            Event::LameDuckMode | Event::Draining => tracing::info!(%event, "the broker's connection"),
        }
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }

    fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}
