//! A plan with its epoch, and its encoding in a store.

use kaskade_policy::plan::Plan;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::error::StoreError;

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
pub(super) fn encode(plan: &Plan, epoch: u64) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec_pretty(&Value { epoch, plan })
        .map_err(|error| StoreError::unreachable("writing the plan as JSON", &error))
}

fn head(bytes: &[u8]) -> Option<Head> {
    serde_json::from_slice(bytes).ok()
}

/// Returns the epoch of a stored value, or its revision if it carries no epoch.
pub(super) fn epoch_of(bytes: &[u8], revision: u64) -> u64 {
    head(bytes).map_or(revision, |head| head.epoch)
}
/// Decodes a stored value. The epoch of a value without one is its revision.
pub(super) fn read(bytes: &[u8], revision: u64) -> Result<StoredPlan, StoreError> {
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
