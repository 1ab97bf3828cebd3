//! The first plan of an app: from a file, with a single variant, or a pipeline's initial allocation.

use std::collections::BTreeSet;

use kaskade_policy::plan::{Plan, Replica};

use crate::config::scalar::MAX_TOKEN;
use crate::config::{App, PlanSource, WorkerConfig};
pub use crate::planning::check::check;
use crate::planning::{PlanningError, allocator};

/// Returns the plan of an app, checked against the app. For a pipeline without a plan file it is the planner's initial
/// plan.
///
/// # Errors
/// [`PlanningError`] if the plan file cannot be read, is invalid, or belongs to another app.
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

/// Reads a plan file, and checks it against the app.
///
/// # Errors
/// As [`of`].
pub fn read(app: &App, path: &std::path::Path) -> Result<Plan, PlanningError> {
    let text = std::fs::read_to_string(path)
        .map_err(PlanningError::UnreadablePlan)
        .map_err(PlanningError::in_file(path))?;
    let plan = Plan::from_json(&text).map_err(PlanningError::in_file(path))?;
    check(app, &plan).map_err(PlanningError::in_file(path))?;
    Ok(plan)
}

/// Returns a plan that answers every request with one variant, replicated on every worker of the app.
pub fn single(app: &App, variant: &str) -> Plan {
    Plan::cascade(app.name.as_str())
        .made_by(format!("single/{variant}"))
        .stage(variant, variant)
        .placement(placement(app, &[variant]))
        .batching(app.batching.into())
        .build_unchecked()
}

/// Returns replicas of these variants on every worker of the app, each on the worker's device.
pub fn placement(app: &App, variants: &[&str]) -> Vec<Replica> {
    let device = |worker: &WorkerConfig, name: &str| {
        let known = app.variants.iter().find(|variant| variant.name.as_str() == name);
        let choice = known.map_or_else(
            || app.device_of_worker(worker),
            |variant| app.device_on(worker, variant),
        );
        choice.to_string()
    };
    let mut ids = BTreeSet::new();
    let of_worker = app
        .workers
        .iter()
        .flat_map(|worker| (0..worker.replicas.get()).map(move |copy| (worker, copy)));
    of_worker
        .flat_map(|(worker, copy)| variants.iter().map(move |variant| (worker, copy, *variant)))
        .map(|(worker, copy, variant)| Replica {
            id: new_id(variant, worker.name.as_str(), copy, &mut ids),
            variant: variant.to_owned(),
            worker: worker.name.to_string(),
            device: device(worker, variant),
            partition: None,
            checkpoint: None,
        })
        .collect()
}

/// Returns the id of a replica: variant, worker and number, truncated to [`MAX_TOKEN`] bytes, with another number if
/// the id is taken.
fn new_id(variant: &str, worker: &str, copy: u32, ids: &mut BTreeSet<String>) -> String {
    let stem = format!("{variant}-{worker}");
    let with = |suffix: &str| {
        let stem: String = stem.chars().take(MAX_TOKEN - suffix.len()).collect();
        stem + suffix
    };
    let mut id = with(&format!("-{copy}"));
    let mut more = 1_u64;
    while !ids.insert(id.clone()) {
        more += 1;
        id = with(&format!("-{copy}-{more}"));
    }
    id
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// Regression: names with `-` gave two replicas the same id, and long names gave invalid ids.
    #[test]
    fn every_replica_has_an_id_of_its_own_that_a_plan_may_hold() {
        let (long, longer) = ("x".repeat(64), format!("{}y", "x".repeat(63)));
        let mut file = "name = \"a\"\ntask = \"classification\"\n".to_owned();
        for variant in ["a-b", "a", "a-b-c-0", &long, &longer] {
            writeln!(file, "[[variants]]\nname = \"{variant}\"\ndir = \"one\"").unwrap();
        }
        for worker in ["c", "b-c", &long] {
            writeln!(file, "[[workers]]\nname = \"{worker}\"\nreplicas = 2").unwrap();
        }
        let app = App::parse(&file).unwrap();
        let variants: Vec<&str> = app.variants.iter().map(|variant| variant.name.as_str()).collect();
        let replicas = placement(&app, &variants);
        let ids: BTreeSet<&str> = replicas.iter().map(|replica| replica.id.as_str()).collect();
        assert_eq!((replicas.len(), ids.len()), (30, 30));
        assert!(ids.iter().all(|id| id.len() <= MAX_TOKEN));
        assert!(ids.contains("a-b-c-0") && ids.contains("a-c-1"), "{ids:?}");
        single(&app, &long).validate().unwrap();
    }
}
