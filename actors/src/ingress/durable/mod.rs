//! Durable requests: `kaskade.<app>.submit` on JetStream.
//!
//! Accepted means written by the stream, which says so itself: no actor of ours stands between a client and that promise. An ingress
//! takes what was submitted as it takes what is asked, with room of its own for it, and acknowledges a request once its result is
//! kept. So a request is delivered again whenever anybody in between is lost, and is run at least once; its result is written only
//! where there is none under its id, and so there is one.
//!
//! | stream | subjects | keeps |
//! |---|---|---|
//! | `kaskade-<app>-submit` | `kaskade.<app>.submit` | requests until they are settled |
//! | `kaskade-<app>-results` | `kaskade.<app>.result.<id>` | one result per request, for a time |
//! | `kaskade-<app>-dead` | `kaskade.<app>.dead.<id>` | requests that were given up, with the reason, for longer |
//!
//! What is given up when is [`kaskade_plans::redelivery`].

mod pump;
mod streams;
mod submission;

use std::time::Duration;

use actix::Message;
use kaskade_plans::redelivery::RedeliveryConfig;
use thiserror::Error;

pub(crate) use pump::{Counter, open};
use streams::Desk;
pub(crate) use submission::Submission;

use crate::bus::BusError;
use crate::error::{Code, Fault};

/// A durable request as it was delivered.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Submitted {
    pub(crate) message: async_nats::Message,
    pub(crate) submission: Submission,
}

/// How durable requests are kept and tried.
#[derive(Debug, Clone)]
pub struct DurableConfig {
    /// When a request is given up.
    pub redelivery: RedeliveryConfig,
    /// Durable requests that one ingress has in flight at once.
    pub in_flight: usize,
    /// Silence of an ingress after which what it had is delivered to another.
    pub silence: Duration,
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
            silence: Duration::from_secs(5),
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
    fn refused(what: &'static str, error: impl std::fmt::Display) -> Self {
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
