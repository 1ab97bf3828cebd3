//! The first plan of a process: the stored one, or the configured one if the store is empty.

use kaskade_policy::plan::Plan;

use super::NodeError;
use crate::plan::store::{PlanStore, StoreError};
use crate::plan::versions::PlanVersions;

/// Attempts to write the first plan while other processes write theirs.
const TRIES: usize = 8;

/// Adopts the stored plan. If the store is empty, writes the configured plan first; of processes that start together,
/// those that lose the compare-and-set read again. A stored plan is never overwritten.
pub(super) async fn adopt(
    store: &dyn PlanStore,
    plans: &PlanVersions,
    configured: Option<Plan>,
) -> Result<(), NodeError> {
    // Validate first: a plan that this process would refuse must not reach other processes.
    if let Some(plan) = &configured {
        PlanVersions::new(plans.app()).adopt(u64::MAX, plan.clone())?;
    }
    for _ in 0..TRIES {
        if let Some(stored) = store.get().await? {
            if let Some(configured) = configured.filter(|plan| *plan != stored.plan) {
                tracing::warn!(
                    epoch = stored.epoch,
                    stored = stored.plan.made_by,
                    configured = configured.made_by,
                    "the plan store holds another plan than the configured one; the stored plan of epoch {} is served; \
                     `kaskade plan apply FILE` replaces it",
                    stored.epoch,
                );
            }
            return Ok(plans.adopt_stored(stored.epoch, stored.plan)?);
        }
        let Some(plan) = &configured else { return Ok(()) };
        match store.put(plan, None).await {
            Ok(epoch) => return Ok(plans.adopt_stored(epoch, plan.clone())?),
            Err(StoreError::Stale { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(StoreError::Stale {
        expected: None,
        newest: None,
    }
    .into())
}
