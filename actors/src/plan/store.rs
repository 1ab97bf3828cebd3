//! The plan store: one plan per app, written by compare-and-set.
//!
//! Every stored plan carries its epoch, larger than all before ([`kaskade_policy::epochs`]). A writer states the epoch
//! that it read; if that is no longer the newest, its plan is refused. Of two concurrent planners, one therefore has to
//! plan again with knowledge of the other's plan. The store's own revision is used only for this compare-and-set, so
//! that the epochs continue when a store is deleted and created again.
//!
//! Two backends: [`MemoryStore`] for the embedded broker, shared by the process, and [`KeyValueStore`] in JetStream,
//! shared by all processes on the nats-server.

mod error;
mod key_value;
mod memory;
mod plan_store;
mod stored_plan;

use std::sync::Arc;
use std::time::Duration;

use crate::bus::{Bus, PlanStorage};
use crate::subjects::App;

pub use error::StoreError;
pub use key_value::KeyValueStore;
pub use memory::MemoryStore;
pub use plan_store::{HistoryEntry, PlanStore, Plans};
pub use stored_plan::StoredPlan;

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
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Queries the stored plan of an app from the process that runs the embedded broker, which has no JetStream to read it
/// from. `None` if no plan is stored or no process answers; processes on a nats-server do not answer.
///
/// # Errors
/// [`StoreError::Malformed`] if the answer is not a valid plan of this version.
pub async fn ask(bus: &Bus, app: &App) -> Result<Option<StoredPlan>, StoreError> {
    let request = async_nats::Request::new()
        .payload(Vec::new().into())
        .timeout(Some(QUERY_TIMEOUT));
    match bus.client().send_request(app.stored_plan(), request).await {
        Ok(answer) if !answer.payload.is_empty() => stored_plan::read(&answer.payload, 0).map(Some),
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

#[cfg(test)]
mod tests;
