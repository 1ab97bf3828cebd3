//! Whether the live replicas of an app can answer requests.

use std::collections::BTreeSet;

use kaskade_policy::plan::{Gear, Plan, Stage};

use super::{AppState, SILENT, State};

/// What live processes serve: the ids of replicas, and the stages that custom actors name.
#[derive(Default)]
struct LiveNames<'a> {
    replicas: BTreeSet<&'a str>,
    stages: BTreeSet<&'a str>,
}

impl LiveNames<'_> {
    /// Returns whether a replica that lives runs the stage.
    fn run(&self, plan: &Plan, stage: &Stage) -> bool {
        let mut placed = plan.placement.iter();
        self.stages.contains(stage.name.as_str())
            || placed.any(|replica| stage.is_run_by(replica) && self.replicas.contains(replica.id.as_str()))
    }

    /// Returns whether the entry of a gear is served: one of the stages that a request may enter.
    fn enter(&self, plan: &Plan, gear: &Gear) -> bool {
        let wiring = &gear.wiring;
        let entered = wiring.members().filter_map(|edge| {
            let mut stages = wiring.stages.iter();
            stages.find(|stage| stage.name == edge.stage)
        });
        entered
            .flat_map(|stage| wiring.siblings(stage))
            .any(|stage| self.run(plan, stage))
    }
}

impl State {
    fn live_names(&self) -> LiveNames<'_> {
        let mut live = LiveNames::default();
        for received in self.live_actors() {
            for replica in &received.beat.replicas {
                live.replicas.insert(&replica.id);
                if received.beat.kind != "worker" {
                    live.stages.insert(&replica.stage);
                    live.stages.insert(&replica.id);
                }
            }
        }
        live
    }

    /// Returns the actors that have sent a heartbeat lately and do not leave.
    pub(super) fn live_actors(&self) -> impl Iterator<Item = &super::ReceivedState> {
        let actors = self.actors.values();
        actors.filter(|received| received.at.elapsed() < SILENT && !received.beat.leaving)
    }
}

impl AppState {
    /// Returns why requests cannot be answered: no replica lives, or none that runs the stage at which they enter in the gear in force.
    /// `None` if they can. While the plan is unknown, any live replica suffices.
    pub(crate) fn not_serving(&self) -> Option<String> {
        let state = self.state();
        let live = state.live_names();
        if live.replicas.is_empty() {
            return Some(format!("no replica of app `{}` lives", self.app));
        }
        let (epoch, plan) = state.plans.admitted()?;
        let gear = plan
            .gear(state.plans.gear(epoch))
            .or_else(|| plan.gears.first())?;
        (!live.enter(plan, gear)).then(|| {
            format!(
                "no live replica of app `{}` runs stage `{}`, at which requests enter",
                self.app, gear.wiring.entry.stage
            )
        })
    }

    /// Returns the stages of the gear in force that no live replica runs; none while the plan is unknown.
    pub(crate) fn unserved(&self) -> Vec<String> {
        let state = self.state();
        let live = state.live_names();
        let Some((epoch, plan)) = state.plans.admitted() else {
            return Vec::new();
        };
        let gear = plan.gear(state.plans.gear(epoch)).or_else(|| plan.gears.first());
        let stages = gear.into_iter().flat_map(|gear| &gear.wiring.stages);
        stages
            .filter(|stage| !live.run(plan, stage))
            .map(|stage| stage.name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use kaskade_actors::wire::{Heartbeat, ReplicaBeat};

    use super::*;

    fn beat(app_state: &AppState, actor: &str, kind: &str, replicas: &[&str], leaving: bool) {
        let replicas = replicas.iter().map(|id| ReplicaBeat {
            id: (*id).to_owned(),
            ..ReplicaBeat::default()
        });
        app_state.state().beat(Heartbeat {
            actor: actor.to_owned(),
            kind: kind.to_owned(),
            replicas: replicas.collect(),
            leaving,
            ..Heartbeat::default()
        });
    }

    /// An app whose workers were all dead was ready.
    #[test]
    fn an_app_serves_if_a_live_replica_runs_its_entry() {
        let app_state = AppState::new("a");
        let said = app_state.not_serving().unwrap();
        assert!(said.contains("no replica of app `a` lives"), "{said}");
        let plan = Plan::cascade("a")
            .stage("small", "small")
            .worker("w1")
            .below(0.5)
            .then("large", "large")
            .worker("w2")
            .build()
            .unwrap();
        app_state.state().plans.stored(1, plan);
        beat(&app_state, "w2", "worker", &["large-0"], false);
        let said = app_state.not_serving().unwrap();
        assert!(said.contains("stage `small`"), "{said}");
        assert_eq!(app_state.unserved(), ["small"]);
        beat(&app_state, "w1", "worker", &["small-0"], false);
        assert_eq!(app_state.not_serving(), None);
        assert!(app_state.unserved().is_empty());
        beat(&app_state, "w2", "worker", &["large-0"], true);
        assert_eq!(app_state.not_serving(), None, "the small one still answers");
        assert_eq!(app_state.unserved(), ["large"]);
        beat(&app_state, "w1", "worker", &["small-0"], true);
        assert!(app_state.not_serving().is_some());
        beat(&app_state, "small", "custom", &["small"], false);
        assert_eq!(app_state.not_serving(), None, "a custom actor serves the stage");
    }
}
