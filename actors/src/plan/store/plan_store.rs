//! The interface of plan stores.

use std::fmt;
use std::time::SystemTime;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use kaskade_policy::epochs;
use kaskade_policy::plan::Plan;

use super::error::StoreError;
use super::stored_plan::StoredPlan;

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
