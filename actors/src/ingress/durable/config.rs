//! Configuration of durable requests, and errors that prevent them.

use std::time::Duration;

use kaskade_policy::redelivery::RedeliveryConfig;
use thiserror::Error;

use crate::bus::BusError;
use crate::error::{Code, Fault};

/// Storage and retries of durable requests.
#[derive(Debug, Clone)]
pub struct DurableConfig {
    /// Conditions under which a request becomes a dead letter.
    pub redelivery: RedeliveryConfig,
    /// Largest number of durable requests in flight at one ingress.
    pub in_flight: usize,
    /// Time without a progress notice after which the stream redelivers a request (JetStream's `ack_wait`).
    pub ack_wait: Duration,
    /// Retention of results.
    pub results: Duration,
    /// Retention of dead letters.
    pub dead: Duration,
    /// Largest size of each stream, bytes: of waiting requests, results and dead letters. A full stream of waiting
    /// requests refuses new ones; the others drop their oldest messages.
    pub max_bytes: u64,
    /// Replicas of each stream; `None` selects [`BusConfig::replicas`](crate::bus::BusConfig::replicas).
    pub replicas: Option<usize>,
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
            replicas: None,
        }
    }
}

/// Why durable requests cannot be accepted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DurableError {
    /// The broker has no JetStream.
    #[error(
        "durable requests need JetStream, and {url} has none; start `nats-server -js`, or omit `[durable]`"
    )]
    NeedsJetStream {
        /// Address of the broker.
        url: String,
    },
    /// The connection failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// JetStream has too little storage for the streams.
    #[error(
        "JetStream at {url} has too little storage for durable requests: {reason}. Each of three streams reserves `[durable] max_size` \
         ({max_bytes} bytes): lower it, or raise `max_file_store` of the nats-server"
    )]
    TooLittleStorage {
        /// The broker, without credentials.
        url: String,
        /// Bytes that each stream reserves.
        max_bytes: u64,
        /// Reason that JetStream reports.
        reason: String,
    },
    /// The user may not create or read the streams.
    #[error(
        "this user may not use the streams of durable requests at {url}: connect as the user `ingress` (`--nkey`), or start this process with \
         the role of its user (`--role`; the default is `all`, whose user `kaskade auth init --all` makes)"
    )]
    NotPermitted {
        /// The broker, without credentials.
        url: String,
    },
    /// JetStream refused an operation.
    #[error("{what}: {reason}")]
    Refused {
        /// The operation.
        what: &'static str,
        /// Reason that JetStream reports.
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
            DurableError::NeedsJetStream { .. } | DurableError::TooLittleStorage { .. } => {
                Code::NeedsJetStream
            }
            DurableError::NotPermitted { .. } => Code::NotPermitted,
            DurableError::Bus(_) | DurableError::Refused { .. } => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
