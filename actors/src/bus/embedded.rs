//! The embedded broker of a process, and the plan buckets that a nats-server would keep in JetStream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Bucket;
use crate::subjects::App;
use kaskade_broker::{Broker, BrokerConfig, BrokerError, BrokerStats};

/// A running embedded broker and its plan buckets. Cheap to clone; it stops when the last clone and the last
/// [`Bus`](super::Bus) on it are dropped.
#[derive(Debug, Clone)]
pub struct Embedded(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    broker: Broker,
    plans: Mutex<HashMap<App, Bucket>>,
}

/// Slot for a shared broker. The reference is weak, so that the broker stops with its last user.
#[derive(Debug)]
pub(super) struct SharedBroker(Mutex<Weak<Inner>>);

/// Broker shared by all users of this process that do not configure another one.
pub(super) static SHARED: SharedBroker = SharedBroker(Mutex::new(Weak::new()));

impl SharedBroker {
    /// Returns the shared broker; starts it with `config` if it does not run.
    pub(super) fn join(&self, config: BrokerConfig) -> Result<Embedded, BrokerError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Ok(Embedded(running));
        }
        let started = Embedded::start(config)?;
        *shared = Arc::downgrade(&started.0);
        Ok(started)
    }

    #[cfg(test)]
    pub(super) const fn empty() -> Self {
        Self(Mutex::new(Weak::new()))
    }
}

impl Embedded {
    /// Starts a broker that is not shared with the rest of the process.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        Ok(Self(Arc::new(Inner {
            broker: Broker::start(config)?,
            plans: Mutex::default(),
        })))
    }

    /// Returns the URL for other processes on this machine.
    pub fn url(&self) -> String {
        self.0.broker.url()
    }

    /// Returns the broker's counters.
    pub fn stats(&self) -> BrokerStats {
        self.0.broker.stats()
    }

    /// Returns the plan bucket of an app, shared by every bus on this broker.
    pub(crate) fn bucket(&self, app: &App) -> Bucket {
        let mut plans = self.0.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(app.clone()).or_default().clone()
    }
}
