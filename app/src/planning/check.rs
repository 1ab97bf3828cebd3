//! Whether a plan fits an app.

use kaskade_policy::plan::Plan;

use crate::config::App;
use crate::planning::PlanningError;

/// Checks that the app can be served by the plan.
///
/// # Errors
/// When it is another app's, or names a variant or worker that the app does not have.
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
    Ok(())
}
