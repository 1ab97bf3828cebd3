//! How durable requests are kept and tried, and why they cannot be taken.

use std::time::Duration;

use kaskade_plans::redelivery::RedeliveryConfig;
use thiserror::Error;

use crate::bus::BusError;
use crate::error::{Code, Fault};

/// How durable requests are kept and tried.
#[derive(Debug, Clone)]
pub struct DurableConfig {
    /// When a request is given up.
    pub redelivery: RedeliveryConfig,
    /// Durable requests that one ingress has in flight at once.
    pub in_flight: usize,
    /// Silence of an ingress after which what it had is delivered to another.
    pub ack_wait: Duration,
    /// How long results are kept.
    pub results: Duration,
    /// How long dead letters are kept.
    pub dead: Duration,
    /// Most bytes of requests that wait, and again of results. A full stream accepts nothing, and says so.
    pub max_bytes: u64,
    /// Copies of each stream, in a cluster.
    pub replicas: usize,
}

impl Default for DurableConfig {
    fn default() -> Self {
        Self {
            redelivery: RedeliveryConfig::default(),
            in_flight: 256,
            ack_wait: Duration::from_secs(5),
            results: Duration::from_hours(1),
            dead: Duration::from_hours(7 * 24),
            max_bytes: 256 << 20,
            replicas: 1,
        }
    }
}

/// Why durable requests cannot be taken.
#[derive(Debug, Error)]
pub enum DurableError {
    /// The broker has no JetStream.
    #[error(
        "durable requests need JetStream, and {url} has none; start `nats-server -js`, or leave `[durable]` out"
    )]
    NeedsJetStream {
        /// The broker.
        url: String,
    },
    /// The connection failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// JetStream did not do what it was asked.
    #[error("{what}: {reason}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// What it said.
        reason: String,
    },
}

impl DurableError {
    pub(super) fn refused(what: &'static str, error: impl std::fmt::Display) -> Self {
        Self::Refused {
            what,
            reason: error.to_string(),
        }
    }
}

impl From<&DurableError> for Fault {
    fn from(error: &DurableError) -> Self {
        let code = match error {
            DurableError::NeedsJetStream { .. } => Code::NeedsJetStream,
            DurableError::Bus(_) | DurableError::Refused { .. } => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
