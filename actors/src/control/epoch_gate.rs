//! Watches which epochs are in place at the workers, and admits the newest one that is in place wherever it must be.
//! Until the first one is, requests are refused while workers load it. The policy is [`kaskade_policy::adoption::gate`].

use std::{sync::Arc, time::Duration};

use kaskade_policy::adoption::gate::{Gate, Report};
use tokio::sync::mpsc;

use super::heartbeats::Heartbeats;
use crate::{dispatch::dispatcher::Dispatcher, plan::versions::PlanVersions, wire::Heartbeat};

/// Interval of the checks for workers that fell silent and block an epoch no longer: half a heartbeat period.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

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
        loop {
            let news = tokio::select! {
                biased;
                beat = beats.recv() => match beat {
                    Some(beat) => update(&mut gate, &beat, dispatcher.clock().now()),
                    None => return,
                },
                more = changes.next() => if more { true } else { return },
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
        tracing::info!(
            epoch,
            before = current.epoch,
            "admitting requests under another epoch"
        );
    }
}
