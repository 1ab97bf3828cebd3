//! Watches which epochs are in place at the workers, and admits the newest one that is in place wherever it must be.
//! Until the first one is, requests are refused while workers load it. The policy is [`kaskade_policy::adoption::gate`].
//! It logs each time that requests are admitted under another epoch, and differences between the plan and the processes that live
//! ([`Differences`]).

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use kaskade_policy::adoption::gate::{Gate, Report};
use kaskade_policy::lasting::{ConditionChanges, LastingConditions};
use tokio::sync::mpsc;

use super::heartbeats::Heartbeats;
use crate::{
    dispatch::dispatcher::Dispatcher,
    plan::versions::{PlanVersion, PlanVersions},
    wire::Heartbeat,
};

/// Interval of the checks for workers that fell silent and block an epoch no longer: half a heartbeat period.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Interval at which the plan is compared with the processes that live.
const COMPARE_INTERVAL: Duration = Duration::from_millis(250);

/// Time for which stages must be without a replica before they count as not served, microseconds: longer than a subscription moves
/// from one replica to the next.
const UNSERVED_AFTER_US: u64 = 1_000_000;

/// Time for which a worker must be missing, or not be placed, before that is logged, microseconds: longer than one takes to start.
const WORKER_AFTER_US: u64 = 5_000_000;

/// Reads heartbeats, and admits epochs from then on.
pub(crate) fn watch(heartbeats: &mut Heartbeats, dispatcher: &Dispatcher, plans: &PlanVersions) {
    let (pass, mut beats) = mpsc::unbounded_channel::<Arc<Heartbeat>>();
    heartbeats.listen(move |beat| {
        // The task ends with the plans, after everything that reads heartbeats.
        let _ = pass.send(Arc::clone(beat));
    });
    let (dispatcher, plans) = (dispatcher.clone(), plans.clone());
    let mut changes = plans.changes();
    let supervisor = dispatcher.supervisor().clone();
    supervisor.spawn("admission of epochs", async move {
        let mut gate = Gate::default();
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        let mut comparisons = tokio::time::interval(COMPARE_INTERVAL);
        let mut differences = Differences::default();
        loop {
            let news = tokio::select! {
                biased;
                beat = beats.recv() => match beat {
                    Some(beat) => update(&mut gate, &beat, dispatcher.clock().now()),
                    None => return,
                },
                more = changes.next() => if more { true } else { return },
                _ = comparisons.tick() => {
                    differences.compare(&gate, &plans, dispatcher.clock().now());
                    false
                }
                _ = checks.tick() => true,
            };
            if news {
                let now = dispatcher.clock().now();
                admit(&mut gate, &plans, now);
                judge(&gate, &plans, &dispatcher, now);
            }
        }
    });
}

/// Records a heartbeat. Returns whether it may change what is admitted.
fn update(gate: &mut Gate, beat: &Heartbeat, now: u64) -> bool {
    if beat.kind == "worker" {
        let report = Report {
            worker: &beat.actor,
            in_place: beat.in_place,
            failed: &beat.failed,
            leaving: beat.leaving,
        };
        return gate.report(report, now);
    }
    // A custom actor serves its stage under every plan.
    let serves = beat
        .replicas
        .iter()
        .flat_map(|replica| [replica.id.as_str(), replica.stage.as_str()]);
    gate.custom(&beat.actor, serves, now);
    false
}

/// Notes what the workers' reports mean for the admitted plan: whether requests must be refused while it loads, and which
/// replicas cannot be sent any.
fn judge(gate: &Gate, plans: &PlanVersions, dispatcher: &Dispatcher, now: u64) {
    let Some((current, _)) = plans.current() else {
        return;
    };
    let (epoch, plan) = (current.epoch, &current.plan);
    plans.set_loading(!plans.is_admitted() && gate.is_loading(epoch, plan, now));
    let unloadable = gate.unloadable(epoch, plan, now);
    dispatcher.liveness(|liveness| liveness.set_unloadable(&unloadable));
}

fn admit(gate: &mut Gate, plans: &PlanVersions, now: u64) {
    let Some((current, _)) = plans.current() else {
        return;
    };
    let confirmed = plans.is_admitted();
    let versions = plans.all();
    if confirmed && versions.last().is_none_or(|newest| newest.epoch == current.epoch) {
        return;
    }
    let known = versions.iter().map(|version| (version.epoch, &version.plan));
    if let Some(epoch) = gate.admits(current.epoch, confirmed, known, now)
        && plans.admit(epoch)
    {
        if confirmed {
            let before = current.epoch;
            tracing::info!(
                epoch,
                before,
                "admitting requests under a newer epoch, and none under the one before"
            );
        } else {
            tracing::info!(epoch, "admitting requests under the first epoch that is in place");
        }
    }
}

/// Differences between the plans and the processes that live. Each is logged once when it has lasted, and once when it ends.
struct Differences {
    /// Stages of the current plan that no live replica runs.
    unserved: LastingConditions,
    /// Workers that the newest plan names and that do not live.
    absent: LastingConditions,
    /// Live workers on which the newest plan places nothing.
    unplaced: LastingConditions,
    /// Live custom actors whose stages the newest plan does not have.
    unnamed: LastingConditions,
}

impl Default for Differences {
    fn default() -> Self {
        Self {
            unserved: LastingConditions::after(UNSERVED_AFTER_US),
            absent: LastingConditions::after(WORKER_AFTER_US),
            unplaced: LastingConditions::after(WORKER_AFTER_US),
            unnamed: LastingConditions::after(WORKER_AFTER_US),
        }
    }
}

impl Differences {
    fn compare(&mut self, gate: &Gate, plans: &PlanVersions, now: u64) {
        if let Some((current, _)) = plans.current() {
            self.stages(gate, plans, &current, now);
        }
        if let Some(newest) = plans.newest() {
            self.workers(gate, &newest, now);
        }
    }

    fn stages(&mut self, gate: &Gate, plans: &PlanVersions, current: &PlanVersion, now: u64) {
        let (epoch, plan) = (current.epoch, &current.plan);
        let lacks = if plans.is_loading() {
            BTreeSet::new()
        } else {
            gate.lacks(epoch, plan, now)
        };
        let changes = self.unserved.observe(lacks, now);
        for stage in &changes.began {
            tracing::warn!(
                stage,
                epoch,
                "no live replica runs a stage of the plan; requests that need it are refused or answered by another stage"
            );
        }
        for stage in &changes.ended {
            tracing::info!(stage, epoch, "a stage that no replica ran is served again");
        }
        if changes != ConditionChanges::default() {
            plans.set_unserved(self.unserved.counted().map(ToOwned::to_owned).collect());
        }
    }

    fn workers(&mut self, gate: &Gate, newest: &PlanVersion, now: u64) {
        let epoch = newest.epoch;
        let absent = self.absent.observe(gate.absent(&newest.plan, now), now);
        for worker in &absent.began {
            tracing::warn!(
                worker,
                epoch,
                "the plan places replicas on a worker that sends no heartbeats; start it (`--worker`), or apply a plan for the workers that run"
            );
        }
        for worker in &absent.ended {
            tracing::info!(
                worker,
                epoch,
                "a worker that was missing lives, or the plan no longer needs it"
            );
        }
        let unplaced = self.unplaced.observe(gate.unplaced(&newest.plan, now), now);
        for worker in &unplaced.began {
            tracing::info!(
                worker,
                epoch,
                "a worker lives on which the plan places no replica"
            );
        }
        for worker in &unplaced.ended {
            tracing::info!(
                worker,
                epoch,
                "a worker without replicas has ended, or the plan uses it now"
            );
        }
        let unnamed = self.unnamed.observe(gate.unnamed(&newest.plan, now), now);
        for actor in &unnamed.began {
            let stages = newest.plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
            let stages: BTreeSet<&str> = stages.map(|stage| stage.name.as_str()).collect();
            tracing::warn!(
                actor,
                epoch,
                ?stages,
                "a custom actor serves no stage of the plan, so it gets no requests; give it the name of one of these stages, or apply a plan \
                 with its stage"
            );
        }
        for actor in &unnamed.ended {
            tracing::info!(
                actor,
                epoch,
                "a custom actor without a stage has ended, or the plan has its stage now"
            );
        }
    }
}
