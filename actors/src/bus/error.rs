//! Errors of the connection to the broker.

use thiserror::Error;

use crate::error::{Code, Fault};
use crate::subjects::SubjectError;
use kaskade_broker::BrokerError;

/// Remedy for a message above the broker's `max_payload`.
pub(crate) const RAISE_MAX_PAYLOAD: &str = "raise `max_payload`: of the embedded broker under `[nats]` in app.toml, of a nats-server in its configuration";

/// Why an operation on the bus failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BusError {
    /// The address cannot be parsed.
    #[error("`{url}` is not a valid NATS address: {reason}; use the form nats://host:4222")]
    BadUrl {
        /// The address, without credentials.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No server answers at the address.
    #[error(
        "no NATS server answers at {url}: {reason}; start a nats-server there (`nats-server -js`), or give another address (`--nats`). Without a \
         nats-server, `kaskade serve` starts a broker itself"
    )]
    Unreachable {
        /// The address, without credentials.
        url: String,
        /// Reason that the client reports.
        reason: String,
    },
    /// The server's certificate is not accepted.
    #[error(
        "the certificate of the NATS server at {url} is not accepted: {reason}; name the certificate of the authority that signed it \
         (`--nats-ca`), and a host that it is made for"
    )]
    Untrusted {
        /// The address, without credentials.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server refuses the connection.
    #[error(
        "the NATS server at {url} refuses the connection: {reason}; check the credentials, or give the key of a user: `--nkey FILE` \
         (`kaskade auth init` makes keys)"
    )]
    Refused {
        /// The address, without credentials.
        url: String,
        /// Reason that the server reports.
        reason: String,
    },
    /// The server is older than [`OLDEST_SERVER`](super::OLDEST_SERVER).
    #[error(
        "the NATS server at {url} is version {found}; {}.{} or later is required: use the official image, or the package of \
         Debian 13 or Ubuntu 24.04",
        super::OLDEST_SERVER.0,
        super::OLDEST_SERVER.1
    )]
    TooOld {
        /// The address, without credentials.
        url: String,
        /// Version in the server's greeting.
        found: String,
    },
    /// The server does not speak TLS.
    #[error(
        "the NATS server at {url} does not speak TLS: use nats:// in its address, or configure TLS in the server"
    )]
    NoTls {
        /// The address, without credentials.
        url: String,
    },
    /// The file of certificates to trust cannot be used.
    #[error("the certificates to trust cannot be read from {path} (`--nats-ca`): {reason}")]
    Authority {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of credentials cannot be used.
    #[error("the credentials in {path} cannot be used: {reason}")]
    Credentials {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A name cannot be part of a subject.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The embedded broker does not start.
    #[error(transparent)]
    Embedded(#[from] BrokerError),
    /// A message exceeds the broker's `max_payload`.
    #[error(
        "the message has {size} bytes with its headers; the broker accepts at most {limit}; send less, or {RAISE_MAX_PAYLOAD}"
    )]
    TooLarge {
        /// Bytes of the message, headers included.
        size: usize,
        /// The broker's `max_payload`.
        limit: usize,
    },
    /// Subscribing, publishing or flushing failed.
    #[error("{what} failed: {reason}; the connection to the broker is closed or its queue is full")]
    Failed {
        /// The operation.
        what: &'static str,
        /// Reason that the client reports.
        reason: String,
    },
    /// The broker did not answer in time.
    #[error("{what} timed out; the broker may be overloaded or down")]
    Timeout {
        /// The operation.
        what: &'static str,
    },
}

impl BusError {
    pub(super) fn failed(what: &'static str, reason: &dyn std::fmt::Display) -> Self {
        Self::Failed {
            what,
            reason: reason.to_string(),
        }
    }
}

impl From<BusError> for Fault {
    fn from(error: BusError) -> Self {
        let code = match error {
            BusError::Subject(_) => Code::Malformed,
            BusError::TooOld { .. } => Code::BrokerTooOld,
            BusError::TooLarge { .. } => Code::TooLarge,
            BusError::Timeout { .. } | BusError::Failed { .. } => Code::Unavailable,
            BusError::BadUrl { .. }
            | BusError::Unreachable { .. }
            | BusError::Untrusted { .. }
            | BusError::Refused { .. }
            | BusError::NoTls { .. }
            | BusError::Authority { .. }
            | BusError::Credentials { .. }
            | BusError::Embedded(_) => Code::BrokerUnavailable,
        };
        Self::new(code, error.to_string())
    }
}
