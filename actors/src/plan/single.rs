//! The plan of an app with one model.

use std::num::NonZeroU32;

use kaskade_policy::plan::{Batching, Plan};

/// Returns the plan of an app with one model that answers every request.
pub fn single(app: &str, variant: &str, worker: &str, replicas: NonZeroU32, batching: Batching) -> Plan {
    Plan::cascade(app)
        .made_by("single")
        .stage(variant, variant)
        .worker(worker)
        .replicas(replicas.get())
        .batching(batching)
        .build_unchecked()
}
