//! The plan store in the memory of a process.

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kaskade_policy::plan::Plan;

use super::{PlanStore, Plans, StoreError, Stored, read, write};
use crate::bus::Bucket;

/// A plan store in memory. Clones share what they hold.
///
/// It stores the same bytes as [`KeyValueStore`](super::KeyValueStore), so that a plan that one of them accepts can also be
/// written to the other.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Bucket);

impl MemoryStore {
    pub(super) fn on(bucket: Bucket) -> Self {
        Self(bucket)
    }

    fn swap(&self, bytes: Vec<u8>, expected: Option<u64>) -> Result<u64, StoreError> {
        let swapped = self.0.swap(bytes, expected);
        swapped.map_err(|newest| StoreError::Stale { expected, newest })
    }

    #[cfg(test)]
    pub(super) fn put_raw(&self, bytes: &[u8], expected: Option<u64>) -> Result<u64, StoreError> {
        self.swap(bytes.to_vec(), expected)
    }
}

impl PlanStore for MemoryStore {
    fn get(&self) -> BoxFuture<'_, Result<Option<Stored>, StoreError>> {
        let stored = self.0.newest();
        let stored = stored
            .map(|revision| read(&revision.bytes, revision.number))
            .transpose();
        futures::future::ready(stored).boxed()
    }

    fn put<'a>(&'a self, plan: &'a Plan, expected: Option<u64>) -> BoxFuture<'a, Result<u64, StoreError>> {
        futures::future::ready(write(plan).and_then(|bytes| self.swap(bytes, expected))).boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<Plans, StoreError>> {
        let mut newest = self.0.subscribe();
        newest.mark_changed();
        let revisions = stream::unfold(newest, |mut newest| async move {
            newest.changed().await.ok()?;
            let revision = newest.borrow_and_update().clone();
            Some((revision, newest))
        });
        let plans = revisions
            .filter_map(async |revision| revision.map(|revision| read(&revision.bytes, revision.number)));
        futures::future::ready(Ok(Plans(plans.boxed()))).boxed()
    }
}
