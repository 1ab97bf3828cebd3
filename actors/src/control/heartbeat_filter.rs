//! Decodes heartbeats and strips claims about replicas that the sender does not host.
//!
//! A heartbeat decides which replicas are alive, which epoch is in place, and what the shifter and the planner measure.
//! A worker of a plan reports the replicas that a plan places on it. Any other actor reports only itself: its
//! permissions allow it to publish on its own subject only, so the subject identifies it.

use async_nats::Message;

use crate::{
    plan::versions::PlanVersions,
    subjects::{App, Route},
    wire::{CodecError, Heartbeat, Message as _},
};

/// Decodes a heartbeat and removes claims about other actors. `None` if the heartbeat names another actor than its
/// subject.
///
/// # Errors
/// [`CodecError`] if the payload cannot be decoded.
pub(crate) fn read(
    app: &App,
    plans: &PlanVersions,
    message: &Message,
) -> Result<Option<Heartbeat>, CodecError> {
    let mut beat = Heartbeat::decode(&message.payload)?;
    if app.parse(&message.subject) != Some(Route::Beat(&beat.actor)) {
        tracing::warn!(subject = %message.subject, actor = beat.actor, "a heartbeat names an actor other than that of its subject; dropped");
        return Ok(None);
    }
    if !plans.is_worker(&beat.actor) {
        // Keep a worker that no plan uses yet, so that planners can place replicas on it; it hosts none.
        if beat.kind != "worker" {
            "custom".clone_into(&mut beat.kind);
        }
        beat.in_place = 0;
        beat.fan_outs.clear();
        beat.runs.clear();
        beat.models.clear();
        beat.queue = 0;
        beat.replicas.retain(|replica| replica.id == beat.actor);
        beat.replicas.truncate(1);
        for replica in &mut beat.replicas {
            replica.variant.clear();
            replica.queue = 0;
        }
        return Ok(Some(beat));
    }
    let Heartbeat {
        actor,
        replicas,
        models,
        ..
    } = &mut beat;
    replicas.retain(|replica| plans.places(actor, &replica.id));
    models.retain(|variant, _| replicas.iter().any(|replica| replica.variant == *variant));
    Ok(Some(beat))
}

#[cfg(test)]
mod tests {
    use kaskade_policy::plan::Plan;

    use super::*;
    use crate::wire::{FanOuts, ModelInterface, ReplicaBeat, Runs};

    /// Plans with `small-0` on the worker `w1` and `large-0` on `w2`.
    fn plans() -> PlanVersions {
        let plan = Plan::cascade("beats")
            .stage("first", "small")
            .worker("w1")
            .below(0.5)
            .then("second", "large")
            .worker("w2")
            .build()
            .unwrap();
        let plans = PlanVersions::new("beats");
        plans.adopt(1, plan).unwrap();
        plans
    }

    fn beat(actor: &str, replicas: &[&str]) -> Heartbeat {
        Heartbeat {
            actor: actor.into(),
            kind: "worker".into(),
            replicas: replicas
                .iter()
                .map(|id| ReplicaBeat {
                    id: (*id).into(),
                    variant: "small".into(),
                    queue: 9,
                    ..ReplicaBeat::default()
                })
                .collect(),
            fan_outs: [("small".to_owned(), FanOuts::default())].into(),
            runs: [("small".to_owned(), Runs::default())].into(),
            models: [("small".to_owned(), ModelInterface::default())].into(),
            in_place: 9,
            queue: 9,
            leaving: true,
            sequence: 4,
            ..Heartbeat::default()
        }
    }

    fn accepted(subject: &str, beat: &Heartbeat) -> Option<Heartbeat> {
        let app = App::new("beats").unwrap();
        let payload = beat.encode().unwrap();
        let message = Message {
            subject: app.beat(subject).unwrap(),
            reply: None,
            length: payload.len(),
            payload,
            headers: None,
            status: None,
            description: None,
        };
        read(&app, &plans(), &message).unwrap()
    }

    fn replicas(beat: &Heartbeat) -> Vec<&str> {
        beat.replicas.iter().map(|replica| replica.id.as_str()).collect()
    }

    #[test]
    fn a_worker_speaks_for_the_replicas_that_the_plan_places_on_it() {
        let sound = beat("w1", &["small-0"]);
        assert_eq!(accepted("w1", &sound), Some(sound));
        let more = accepted("w1", &beat("w1", &["small-0", "large-0", "unknown-0"])).unwrap();
        assert_eq!(replicas(&more), ["small-0"]);
        let foreign = Heartbeat {
            models: [("large".to_owned(), ModelInterface::default())].into(),
            ..beat("w1", &["small-0"])
        };
        assert!(
            accepted("w1", &foreign).unwrap().models.is_empty(),
            "it does not run that"
        );
    }

    #[test]
    fn a_heartbeat_in_another_name_is_dropped() {
        assert_eq!(accepted("mine", &beat("w1", &["small-0"])), None);
        assert_eq!(accepted("w2", &beat("w1", &[])), None);
    }

    #[test]
    fn a_custom_actor_speaks_for_itself_only() {
        let filtered = accepted("mine", &beat("mine", &["small-0", "mine", "mine"])).unwrap();
        assert_eq!(replicas(&filtered), ["mine"]);
        let own = &filtered.replicas[0];
        assert_eq!((own.variant.as_str(), own.queue), ("", 0), "it shifts no gear");
        assert_eq!((filtered.in_place, filtered.queue), (0, 0));
        assert!(
            filtered.fan_outs.is_empty() && filtered.runs.is_empty(),
            "it teaches the planner nothing"
        );
        assert!(filtered.models.is_empty(), "it names no classes");
        assert!(
            filtered.leaving && filtered.sequence == 4,
            "of itself it may say that"
        );
    }

    #[test]
    fn a_worker_that_no_plan_uses_stays_a_worker_and_hosts_nothing() {
        let idle = accepted("w9", &beat("w9", &["small-0"])).unwrap();
        assert_eq!(idle.kind, "worker");
        assert!(idle.replicas.is_empty());
        let other = Heartbeat {
            kind: "anything".into(),
            ..beat("mine", &["mine"])
        };
        assert_eq!(accepted("mine", &other).unwrap().kind, "custom");
    }
}
