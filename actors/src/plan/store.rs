//! The plan store: one plan per app, written by compare-and-set.
//!
//! Every stored plan carries its epoch, larger than all before ([`kaskade_policy::epochs`]). A writer states the epoch
//! that it read; if that is no longer the newest, its plan is refused. Of two concurrent planners, one therefore has to
//! plan again with knowledge of the other's plan. The store's own revision is used only for this compare-and-set, so
//! that the epochs continue when a store is deleted and created again.
//!
//! Two backends: [`MemoryStore`] for the embedded broker, shared by the process, and [`KeyValueStore`] in JetStream,
//! shared by all processes on the nats-server.

mod key_value;
mod memory;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kaskade_policy::epochs;
use kaskade_policy::plan::Plan;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bus::{Bus, PlanStorage, RAISE_MAX_PAYLOAD};
use crate::error::{Code, Fault};
use crate::subjects::App;

pub use key_value::KeyValueStore;
pub use memory::MemoryStore;

/// A stored plan.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPlan {
    /// The plan.
    pub plan: Plan,
    /// Its epoch; 1 or more.
    pub epoch: u64,
}

impl StoredPlan {
    /// Encodes the plan as it is stored: JSON with the epoch.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the plan has no JSON form, which does not occur.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        encode(&self.plan, self.epoch)
    }
}

/// A past or present plan of the store.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryEntry {
    /// The plan and its epoch.
    pub stored: StoredPlan,
    /// When it was written.
    pub written_at: SystemTime,
}

/// Store of the plans of one app.
pub trait PlanStore: Send + Sync {
    /// Returns the newest plan; `None` if none was ever written or the newest was deleted.
    ///
    /// Errors: [`StoreError::Malformed`] if the stored value is not a valid plan, [`StoreError::Unreachable`].
    fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>>;

    /// Writes a plan with the given epoch if the newest epoch is still `expected` (`None`: there is no plan). To store
    /// a new plan, use [`PlanStore::put`], which selects the epoch.
    ///
    /// Errors: [`StoreError::Stale`] if another writer was first, [`StoreError::TooLarge`],
    /// [`StoreError::Unreachable`].
    fn write<'a>(
        &'a self,
        plan: &'a Plan,
        epoch: u64,
        expected: Option<u64>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Writes a new plan if the newest epoch is still `expected` (`None`: there is no plan), and returns its epoch.
    ///
    /// Errors: as [`PlanStore::write`].
    fn put<'a>(&'a self, plan: &'a Plan, expected: Option<u64>) -> BoxFuture<'a, Result<u64, StoreError>> {
        self.put_above(plan, expected, 0)
    }

    /// Writes a new plan like [`PlanStore::put`], with an epoch above `known`, the newest epoch in use that the writer
    /// knows. A store that was lost may contain an older one.
    ///
    /// Errors: as [`PlanStore::write`].
    fn put_above<'a>(
        &'a self,
        plan: &'a Plan,
        expected: Option<u64>,
        known: u64,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move {
            // The epoch of a deleted plan is found only in the history.
            let past = match expected {
                Some(_) => Vec::new(),
                None => self.history().await?,
            };
            let past = past.iter().map(|past| past.stored.epoch).max();
            let epoch = epochs::next(expected.max(past), known);
            self.write(plan, epoch, expected).await?;
            Ok(epoch)
        }
        .boxed()
    }

    /// Returns the newest plans, oldest first: at least 16 if there are that many. Stored values that are not valid
    /// plans are omitted.
    ///
    /// Errors: [`StoreError::Unreachable`].
    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>>;

    /// Returns a stream of the newest plan and every newer one. Intermediate plans in quick succession may be skipped;
    /// the last one never is.
    ///
    /// Errors: [`StoreError::Unreachable`].
    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>>;
}

/// Opens the plan store of an app: in memory on an embedded broker, in JetStream on a nats-server.
///
/// # Errors
/// [`StoreError::NeedsJetStream`] on a nats-server without it, unless [`PlanStorage::Memory`] is configured.
pub async fn open(bus: &Bus, app: &App) -> Result<Arc<dyn PlanStore>, StoreError> {
    match (bus.embedded(), bus.plan_storage()) {
        (Some(embedded), _) => Ok(Arc::new(MemoryStore::on(embedded.bucket(app)))),
        (None, PlanStorage::Memory) => Ok(Arc::new(MemoryStore::default())),
        (None, PlanStorage::Auto) => Ok(Arc::new(KeyValueStore::open(bus, app).await?)),
    }
}

/// Opens an existing plan store of an app like [`open`]; `None` if it does not exist. Reading does not require creating
/// it.
///
/// # Errors
/// As [`open`].
pub async fn find(bus: &Bus, app: &App) -> Result<Option<Arc<dyn PlanStore>>, StoreError> {
    match (bus.embedded(), bus.plan_storage()) {
        (None, PlanStorage::Auto) => {
            let found = KeyValueStore::find(bus, app).await?;
            Ok(found.map(|store| Arc::new(store) as Arc<dyn PlanStore>))
        }
        _ => open(bus, app).await.map(Some),
    }
}

/// Timeout for the answer of the process that runs the embedded broker.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// Queries the stored plan of an app from the process that runs the embedded broker, which has no JetStream to read it
/// from. `None` if no plan is stored or no process answers; processes on a nats-server do not answer.
///
/// # Errors
/// [`StoreError::Malformed`] if the answer is not a valid plan of this version.
pub async fn ask(bus: &Bus, app: &App) -> Result<Option<StoredPlan>, StoreError> {
    let request = async_nats::Request::new()
        .payload(Vec::new().into())
        .timeout(Some(TOLD_WITHIN));
    match bus.client().send_request(app.stored_plan(), request).await {
        Ok(answer) if !answer.payload.is_empty() => read(&answer.payload, 0).map(Some),
        Ok(_) | Err(_) => Ok(None),
    }
}

/// Opens the plan store of an app. If it does not exist, creates it if `creates` is set; otherwise, or if creation
/// fails, waits until another process has created it.
///
/// # Errors
/// As [`open`], except for a failed creation.
pub(crate) async fn open_or_wait(
    bus: &Bus,
    app: &App,
    creates: bool,
) -> Result<Arc<dyn PlanStore>, StoreError> {
    if let Some(store) = find(bus, app).await? {
        return Ok(store);
    }
    if creates {
        match open(bus, app).await {
            Ok(store) => return Ok(store),
            Err(error) => tracing::warn!(%error, "the plan store could not be created"),
        }
    }
    tracing::warn!("there is no plan store; waiting for the planner, or `kaskade plan apply`, to create it");
    loop {
        tokio::time::sleep(STORE_POLL_INTERVAL).await;
        match find(bus, app).await {
            Ok(Some(store)) => return Ok(store),
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "looking for the plan store failed"),
        }
    }
}

/// Poll interval for a plan store that does not exist yet.
const STORE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Stream of written plans.
pub struct Plans(pub(crate) BoxStream<'static, Result<StoredPlan, StoreError>>);

impl Plans {
    /// Returns the next plan, or an error for a written value that is not a valid plan; more plans may follow an error.
    /// `None` when the store is gone.
    pub async fn next(&mut self) -> Option<Result<StoredPlan, StoreError>> {
        self.0.next().await
    }
}

impl fmt::Debug for Plans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plans")
    }
}

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
    fn unreachable(what: &'static str, reason: &dyn fmt::Display) -> Self {
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

/// A stored value: the plan and its epoch.
#[derive(Serialize, Deserialize)]
struct Value<P> {
    epoch: u64,
    plan: P,
}

/// Used to detect whether a stored value is a [`Value`]. Values of former versions and hand-written ones are plans
/// without an epoch.
#[derive(Deserialize)]
struct Head {
    epoch: u64,
    #[serde(rename = "plan")]
    _plan: IgnoredAny,
}

/// Encodes a plan for either backend: JSON, readable with `nats kv get`.
fn encode(plan: &Plan, epoch: u64) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec_pretty(&Value { epoch, plan })
        .map_err(|error| StoreError::unreachable("writing the plan as JSON", &error))
}

fn head(bytes: &[u8]) -> Option<Head> {
    serde_json::from_slice(bytes).ok()
}

/// Returns the epoch of a stored value, or its revision if it carries no epoch.
fn epoch_of(bytes: &[u8], revision: u64) -> u64 {
    head(bytes).map_or(revision, |head| head.epoch)
}

fn read(bytes: &[u8], revision: u64) -> Result<StoredPlan, StoreError> {
    let (epoch, plan) = match head(bytes) {
        Some(head) => (
            head.epoch,
            serde_json::from_slice::<Value<Plan>>(bytes).map(|value| value.plan),
        ),
        None => (revision, serde_json::from_slice(bytes)),
    };
    match plan {
        Ok(plan) => Ok(StoredPlan { plan, epoch }),
        Err(error) => Err(StoreError::Malformed {
            epoch,
            reason: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests;
