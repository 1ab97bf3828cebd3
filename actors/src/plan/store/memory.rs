//! The in-memory plan store.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kaskade_policy::plan::Plan;

use super::error::StoreError;
use super::plan_store::{HistoryEntry, PlanStore, Plans};
use super::stored_plan::{StoredPlan, encode, epoch_of, read};
use crate::bus::{Bucket, Revision};

/// A plan store in memory. Clones share the plans.
///
/// It stores the same bytes as [`KeyValueStore`](super::KeyValueStore), so that a plan that one of them accepts can also be
/// written to the other.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Bucket);

impl MemoryStore {
    pub(super) fn on(bucket: Bucket) -> Self {
        Self(bucket)
    }

    fn swap(&self, plan: &Plan, epoch: u64, expected: Option<u64>) -> Result<(), StoreError> {
        let bytes = encode(plan, epoch)?;
        let stale = |newest: Option<&Revision>| StoreError::Stale {
            expected,
            newest: newest.map(epoch_in),
        };
        let newest = self.0.newest();
        if newest.as_ref().map(epoch_in) != expected {
            return Err(stale(newest.as_ref()));
        }
        let swapped = self.0.swap(bytes, newest.map(|revision| revision.number));
        swapped.map(drop).map_err(|newest| stale(newest.as_ref()))
    }

    #[cfg(test)]
    pub(super) fn put_raw(&self, bytes: &[u8]) -> u64 {
        let newest = self.0.newest().map(|revision| revision.number);
        self.0.swap(bytes.to_vec(), newest).unwrap()
    }

    #[cfg(test)]
    pub(super) fn recreate(&self) {
        self.0.recreate();
    }
}

fn epoch_in(revision: &Revision) -> u64 {
    epoch_of(&revision.bytes, revision.number)
}

fn read_revision(revision: &Revision) -> Result<StoredPlan, StoreError> {
    read(&revision.bytes, revision.number)
}

impl PlanStore for MemoryStore {
    fn get(&self) -> BoxFuture<'_, Result<Option<StoredPlan>, StoreError>> {
        let stored = self.0.newest().as_ref().map(read_revision).transpose();
        futures::future::ready(stored).boxed()
    }

    fn write<'a>(
        &'a self,
        plan: &'a Plan,
        epoch: u64,
        expected: Option<u64>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        futures::future::ready(self.swap(plan, epoch, expected)).boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
        let mut newest = self.0.subscribe();
        newest.mark_changed();
        let revisions = stream::unfold(newest, |mut newest| async move {
            newest.changed().await.ok()?;
            let revision = newest.borrow_and_update().back().cloned();
            Some((revision, newest))
        });
        let plans = revisions.filter_map(async |revision| revision.as_ref().map(read_revision));
        futures::future::ready(Ok(Plans(plans.boxed()))).boxed()
    }

    fn history(&self) -> BoxFuture<'_, Result<Vec<HistoryEntry>, StoreError>> {
        let past = self.0.history().into_iter().filter_map(|revision| {
            Some(HistoryEntry {
                stored: read_revision(&revision).ok()?,
                written_at: revision.written_at,
            })
        });
        futures::future::ready(Ok(past.collect())).boxed()
    }
}
