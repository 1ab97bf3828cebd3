//! The broker that Kaskade brings, as one process shares it, and what a nats-server would keep beside it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Bucket;
use crate::subjects::App;
use kaskade_broker::{Broker, BrokerConfig, BrokerError, BrokerStats};

/// A running embedded broker and its plan stores. Cheap to clone; it stops when the last clone, and the last
/// [`Bus`](super::Bus) on it, is dropped.
#[derive(Debug, Clone)]
pub struct Embedded(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    broker: Broker,
    plans: Mutex<HashMap<App, Bucket>>,
}

/// Where a broker is shared. Weak, so that it ends with its users and not with the process.
#[derive(Debug)]
pub(super) struct SharedBroker(Mutex<Weak<Inner>>);

/// The broker of everybody in this process who named none.
pub(super) static SHARED: SharedBroker = SharedBroker(Mutex::new(Weak::new()));

impl SharedBroker {
    /// The broker shared here, started with `config` if it is not running.
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
    /// Starts a broker of one's own.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        Ok(Self(Arc::new(Inner {
            broker: Broker::start(config)?,
            plans: Mutex::default(),
        })))
    }

    /// Where other processes of this machine reach it.
    pub fn url(&self) -> String {
        self.0.broker.url()
    }

    /// What it has counted.
    pub fn stats(&self) -> BrokerStats {
        self.0.broker.stats()
    }

    /// The bucket of an app's plan, shared by every bus on this broker.
    pub(crate) fn bucket(&self, app: &App) -> Bucket {
        let mut plans = self.0.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(app.clone()).or_default().clone()
    }
}
