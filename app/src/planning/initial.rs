//! The app's first plan: from a file, one variant alone, or a pipeline's initial allocation.

use kaskade_policy::plan::{Plan, Replica};

use crate::config::{App, PlanSource, Worker};
pub use crate::planning::check::check;
use crate::planning::{PlanningError, allocator};

/// Returns the plan of an app, checked against the app: of a pipeline without a file, the initial plan of its planner.
///
/// # Errors
/// When a plan file cannot be read, is unsound, or is another app's.
pub fn of(app: &App) -> Result<Plan, PlanningError> {
    match (&app.plan, &app.pipeline) {
        (PlanSource::File(path), _) => read(app, path),
        (_, Some(config)) => allocator::first_plan(app, config),
        (PlanSource::Largest, None) => {
            let largest = app.variants.last().ok_or(PlanningError::NoVariants)?;
            Ok(single(app, largest.name.as_str()))
        }
        (PlanSource::Single(name), None) => Ok(single(app, name.as_str())),
    }
}

/// A plan file, checked against the app that is to be served by it.
///
/// # Errors
/// As [`of`].
pub fn read(app: &App, path: &std::path::Path) -> Result<Plan, PlanningError> {
    let text = std::fs::read_to_string(path)
        .map_err(PlanningError::UnreadablePlan)
        .map_err(PlanningError::of(path))?;
    let plan = Plan::from_json(&text).map_err(PlanningError::of(path))?;
    check(app, &plan).map_err(PlanningError::of(path))?;
    Ok(plan)
}

/// Returns a plan that answers every request with one variant, which has its replicas on every worker of the app.
pub fn single(app: &App, variant: &str) -> Plan {
    Plan::cascade(app.name.as_str())
        .made_by(format!("single/{variant}"))
        .stage(variant, variant)
        .placement(placement(app, &[variant]))
        .batching(app.batching.into())
        .build_unchecked()
}

/// Returns the replicas of these variants on every worker of the app, each on the worker's device.
pub fn placement(app: &App, variants: &[&str]) -> Vec<Replica> {
    let device = |worker: &Worker, name: &str| {
        let known = app.variants.iter().find(|variant| variant.name.as_str() == name);
        let choice = known.map_or_else(
            || app.device_of_worker(worker),
            |variant| app.device_on(worker, variant),
        );
        choice.to_string()
    };
    let of_worker = app
        .workers
        .iter()
        .flat_map(|worker| (0..worker.replicas.get()).map(move |copy| (worker, copy)));
    of_worker
        .flat_map(|(worker, copy)| variants.iter().map(move |variant| (worker, copy, *variant)))
        .map(|(worker, copy, variant)| Replica {
            id: format!("{variant}-{}-{copy}", worker.name),
            variant: variant.to_owned(),
            worker: worker.name.to_string(),
            device: device(worker, variant),
            partition: None,
        })
        .collect()
}
