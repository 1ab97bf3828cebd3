//! The plan store of a process.

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kaskade_plans::plan::Plan;
use tokio::sync::watch;

use super::{PlanStore, Plans, StoreError, Stored, read, write};

/// A plan store in memory. Clones share what they hold.
///
/// It keeps the bytes that the other backend would, so that nothing passes here that would fail there.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    newest: Arc<watch::Sender<Option<Version>>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    bytes: Arc<[u8]>,
    epoch: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            newest: Arc::new(watch::Sender::new(None)),
        }
    }
}

impl MemoryStore {
    fn swap(&self, bytes: Vec<u8>, expected: Option<u64>) -> Result<u64, StoreError> {
        let mut outcome = Err(None);
        self.newest.send_if_modified(|version| {
            let newest = version.as_ref().map(|version| version.epoch);
            if newest != expected {
                outcome = Err(newest);
                return false;
            }
            let epoch = newest.unwrap_or(0) + 1;
            *version = Some(Version {
                bytes: bytes.into(),
                epoch,
            });
            outcome = Ok(epoch);
            true
        });
        outcome.map_err(|newest| StoreError::Stale { expected, newest })
    }

    #[cfg(test)]
    pub(super) fn put_raw(&self, bytes: &[u8], expected: Option<u64>) -> Result<u64, StoreError> {
        self.swap(bytes.to_vec(), expected)
    }
}

impl PlanStore for MemoryStore {
    fn get(&self) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let version = self.newest.borrow().clone();
        let stored = version
            .map(|version| read(&version.bytes, version.epoch))
            .transpose();
        futures::future::ready(stored).boxed()
    }

    fn put<'a>(&'a self, plan: &'a Plan, expected: Option<u64>) -> BoxFuture<'a, Result<u64, StoreError>> {
        futures::future::ready(write(plan).and_then(|bytes| self.swap(bytes, expected))).boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
        let mut newest = self.newest.subscribe();
        newest.mark_changed();
        let versions = stream::unfold(newest, |mut newest| async move {
            newest.changed().await.ok()?;
            let version = newest.borrow_and_update().clone();
            Some((version, newest))
        });
        let plans =
            versions.filter_map(async |version| version.map(|version| read(&version.bytes, version.epoch)));
        futures::future::ready(Ok(Plans(plans.boxed()))).boxed()
    }
}
