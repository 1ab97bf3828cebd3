//! Checks whether a plan fits an app.

use std::collections::BTreeSet;

use kaskade_policy::plan::{Plan, Replica};

use crate::config::App;
use crate::family::{Family, FamilyError};
use crate::planning::PlanningError;

/// Checks that an app can be served with a plan.
///
/// # Errors
/// [`PlanningError`] if the plan belongs to another app, names a variant or worker that the app does not have, splits a
/// variant into more partitions than its checkpoint has layers, or was made for a different checkpoint than the one on
/// this host.
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
    check_partitions(app, plan)?;
    check_checkpoints(app, plan)
}

/// Compares the number of partitions of each replica with the layers of its checkpoint. Checkpoints that are not on
/// this host are checked by the worker that loads them.
fn check_partitions(app: &App, plan: &Plan) -> Result<(), PlanningError> {
    for member in Family::from_app(app).members {
        let of = |replica: &Replica| replica.partition.map_or(1, |partition| partition.of);
        let replicas = plan.placement.iter().enumerate();
        let mut split = replicas
            .filter(|(_, replica)| replica.variant == member.name && of(replica) > 1)
            .peekable();
        if split.peek().is_none() {
            continue;
        }
        let Some(max_partitions) = member.max_partitions() else {
            continue;
        };
        if let Some((index, replica)) = split.find(|(_, replica)| of(replica) > max_partitions) {
            return Err(PlanningError::Partitions {
                index,
                variant: member.name,
                of: of(replica),
                max_partitions,
            });
        }
    }
    Ok(())
}

/// Compares each variant's checkpoint with the plan's. Checkpoints that are not on this host are checked by the worker
/// that loads them.
fn check_checkpoints(app: &App, plan: &Plan) -> Result<(), PlanningError> {
    for member in Family::from_app(app).members {
        let replicas = plan.placement.iter().enumerate();
        let replicas = replicas.filter(|(_, replica)| replica.variant == member.name);
        // Read the files of each checkpoint only once.
        let mut named = BTreeSet::new();
        for (index, replica) in replicas {
            if !replica.checkpoint.as_ref().is_some_and(|one| named.insert(one)) {
                continue;
            }
            if let Err(source @ FamilyError::OtherCheckpoint { .. }) = member.check_checkpoint(replica) {
                let source = Box::new(source);
                return Err(PlanningError::OtherCheckpoint { index, source });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kaskade_policy::plan::Partition;

    use super::*;
    use crate::planning::initial;

    /// Regression: such a plan was valid, and `serve` ended with the worker's error.
    #[test]
    fn a_variant_is_split_into_no_more_partitions_than_it_has_layers() {
        let check = |fixture: &str, of: u32| {
            let dir = std::path::Path::new(kaskade_testkit::ROOT)
                .join("models/fixtures")
                .join(fixture);
            let app = format!("name = \"a\"\n[[variants]]\nname = \"one\"\ndir = {dir:?}\n");
            let app = App::parse(&app).unwrap();
            let mut plan = initial::single(&app, "one");
            plan.placement[0].partition = Some(Partition { index: 0, of });
            check_partitions(&app, &plan).map_err(|error| error.to_string())
        };
        assert_eq!(check("bert-classification", 2), Ok(()));
        // Regression: only the first split replica was checked.
        let app = std::path::Path::new(kaskade_testkit::ROOT).join("models/fixtures/bert-classification");
        let app = format!("name = \"a\"\n[[variants]]\nname = \"one\"\ndir = {app:?}\n");
        let app = App::parse(&app).unwrap();
        let mut plan = initial::single(&app, "one");
        plan.placement.push(plan.placement[0].clone());
        for (replica, of) in plan.placement.iter_mut().zip([2, 3]) {
            replica.partition = Some(Partition { index: 0, of });
        }
        let second = check_partitions(&app, &plan).unwrap_err().to_string();
        assert!(second.contains("placement[1]"), "{second}");
        assert_eq!(check("cnn", 1), Ok(()));
        assert_eq!(check("no-such-checkpoint", 9), Ok(()), "left to the worker");
        let many = check("bert-classification", 3).unwrap_err();
        assert!(
            many.contains("placement[0]") && many.contains("2 layers"),
            "{many}"
        );
        let whole = check("cnn", 2).unwrap_err();
        assert!(
            whole.contains("`one` is split into 2 partitions, and it cannot be split by layers"),
            "{whole}"
        );
    }
}
