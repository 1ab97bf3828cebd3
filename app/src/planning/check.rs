//! Whether a plan fits an app.

use kaskade_policy::plan::Plan;

use crate::config::App;
use crate::family::{Family, FamilyError};
use crate::planning::PlanningError;

/// Checks that the app can be served by the plan.
///
/// # Errors
/// When it is another app's, names a variant or worker that the app does not have, or was made for another checkpoint than the one on this
/// host.
pub fn check(app: &App, plan: &Plan) -> Result<(), PlanningError> {
    if plan.app != app.name.as_str() {
        return Err(PlanningError::OtherApp {
            plan: plan.app.clone(),
            app: app.name.to_string(),
        });
    }
    for (index, planned) in plan.variants.iter().enumerate() {
        let known = app
            .variants
            .iter()
            .any(|variant| variant.name.as_str() == planned.name);
        if !known {
            return Err(PlanningError::UnknownVariant {
                index,
                variant: planned.name.clone(),
            });
        }
    }
    for (index, replica) in plan.placement.iter().enumerate() {
        let known = app
            .workers
            .iter()
            .any(|worker| worker.name.as_str() == replica.worker);
        if !known {
            return Err(PlanningError::UnknownWorker {
                index,
                worker: replica.worker.clone(),
            });
        }
    }
    check_checkpoints(app, plan)
}

/// Compares each variant's checkpoint with the plan's. One that is not on this host is left to the worker that loads it.
fn check_checkpoints(app: &App, plan: &Plan) -> Result<(), PlanningError> {
    for member in Family::of(app).members {
        let mut replicas = plan.placement.iter().enumerate();
        let named =
            replicas.find(|(_, replica)| replica.variant == member.name && replica.checkpoint.is_some());
        let Some((index, replica)) = named else {
            continue;
        };
        if let Err(source @ FamilyError::OtherCheckpoint { .. }) = member.check_checkpoint(replica) {
            let source = Box::new(source);
            return Err(PlanningError::OtherCheckpoint { index, source });
        }
    }
    Ok(())
}
