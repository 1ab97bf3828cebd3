//! Errors of plan stores.

use std::fmt;

use thiserror::Error;

use crate::bus::RAISE_MAX_PAYLOAD;
use crate::error::{Code, Fault};

/// Error of reading or writing a plan.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The broker has no JetStream, which key-value buckets require.
    #[error(
        "plans are stored in JetStream, which the broker at {url} does not have: serve the app on `nats-server -js` (`--nats URL`); with the \
         embedded broker, restart `kaskade serve --plan FILE` to change the plan"
    )]
    NeedsJetStream {
        /// The broker, without credentials.
        url: String,
    },
    /// The user lacks the permission for an operation.
    #[error("this user may not {what} at {url}; connect as {role} (`--nkey`)")]
    NotPermitted {
        /// The denied operation.
        what: &'static str,
        /// The role that has the permission.
        role: &'static str,
        /// The broker, without credentials.
        url: String,
    },
    /// The compare-and-set found another epoch.
    #[error(
        "wrong last epoch: the stored plan has {}, not {}; another writer was first. Read the stored plan, apply the change to it, and write with its epoch",
        epoch(*.newest),
        epoch(*.expected)
    )]
    Stale {
        /// The epoch that the writer had read.
        expected: Option<u64>,
        /// The newest epoch; `None` if there is no plan or the store did not report it.
        newest: Option<u64>,
    },
    /// The stored value is not a plan of this version.
    #[error(
        "the stored value of epoch {epoch} is not a valid plan: {reason}; replace it with `kaskade plan apply FILE`"
    )]
    Malformed {
        /// Epoch of the stored value, which the replacing writer must state.
        epoch: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The plan exceeds the broker's `max_payload`.
    #[error("the plan has {size} bytes; the broker accepts at most {limit}; {RAISE_MAX_PAYLOAD}")]
    TooLarge {
        /// Size of the plan, bytes.
        size: usize,
        /// Largest size, bytes.
        limit: usize,
    },
    /// The store failed.
    #[error("{what} failed: {reason}")]
    Unreachable {
        /// The operation.
        what: &'static str,
        /// Reason that the client reports.
        reason: String,
    },
}

fn epoch(epoch: Option<u64>) -> String {
    epoch.map_or_else(|| "no epoch".to_owned(), |epoch| format!("epoch {epoch}"))
}

impl StoreError {
    pub(super) fn unreachable(what: &'static str, reason: &dyn fmt::Display) -> Self {
        Self::Unreachable {
            what,
            reason: reason.to_string(),
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::NeedsJetStream { .. } => Code::NeedsJetStream,
            StoreError::NotPermitted { .. } => Code::NotPermitted,
            StoreError::Stale { .. } => Code::StaleEpoch,
            StoreError::Malformed { .. } => Code::PlanRefused,
            StoreError::TooLarge { .. } => Code::TooLarge,
            StoreError::Unreachable { .. } => Code::Unavailable,
        };
        Self::new(code, error.to_string())
    }
}
