//! What the receivers of messages do with them: the actors' checks that are public, and the policies that the actors call.

use std::sync::LazyLock;

use bytes::Bytes;
use kaskade_actors::ingress::result_checks::checked;
use kaskade_actors::plan::versions::PlanVersions;
use kaskade_actors::wire::{
    AuditReport, ContentType, Feedback, FeedbackReply, GearShift, Heartbeat, IngressState, LoadCount,
    Message, StageOutcome, StageReply, StageRequest,
};
use kaskade_models::check_outputs;
use kaskade_policy::adoption::arrival::{Arrival, ArrivingRequest, arrival};
use kaskade_policy::arrivals::ArrivalCounter;
use kaskade_policy::certificate_monitor::{CertificateMonitor, MonitorConfig};
use kaskade_policy::liveness::{CHECK_PERIOD_US, DETECTION_US, Liveness, Start};
use kaskade_policy::plan::{CertifiedList, Plan};
use kaskade_policy::reachability::{IngressStates, IngressView, STATE_VALID_US};
use serde_json::json;

use crate::round_trip;

/// For a message that its receivers show or pass on, and decide nothing by.
pub fn none(_: &Bytes) {}

/// An edited message as a client's JSON, for the messages that clients exchange.
pub fn json(message: &str, text: &[u8]) {
    let text = Bytes::copy_from_slice(text);
    match message {
        "InferRequest" | "InferReply" => round_trip::body(&text),
        "Feedback" => read_feedback(ContentType::Json, &text),
        "FeedbackReply" => read_feedback_reply(ContentType::Json, &text),
        _ => {}
    }
}

/// A client's body.
pub fn body(bytes: &Bytes) {
    round_trip::body(bytes);
}

/// A label, as an ingress reads it.
pub fn feedback(bytes: &Bytes) {
    read_feedback(ContentType::MessagePack, bytes);
}

fn read_feedback(content_type: ContentType, bytes: &Bytes) {
    match Feedback::read(content_type, bytes) {
        Ok(feedback) => assert!(
            (1..=1024).contains(&feedback.id.len()),
            "an id of any length passed"
        ),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The reply to a label, as a client reads it.
pub fn feedback_reply(bytes: &Bytes) {
    read_feedback_reply(ContentType::MessagePack, bytes);
}

fn read_feedback_reply(content_type: ContentType, bytes: &Bytes) {
    let Ok(reply) = FeedbackReply::read(content_type, bytes) else {
        return;
    };
    let written = reply.encoded(content_type).expect("a reply can be written");
    assert_eq!(FeedbackReply::read(content_type, &written), Ok(reply));
}

/// The result of a stage as the ingress takes it: what passes its check may be an answer.
pub fn done(bytes: &Bytes) {
    let Ok(done) = StageReply::decode(bytes) else {
        return;
    };
    let done = checked(done);
    match &done.result {
        StageOutcome::Fault(_) => {}
        StageOutcome::Part { outputs, .. } => assert!(check_outputs(outputs.clone()).is_ok()),
        StageOutcome::Outputs {
            outputs,
            confidence,
            children,
            ..
        } => {
            assert!(check_outputs(outputs.clone()).is_ok() || (outputs.is_empty() && !children.is_empty()));
            assert!(confidence.is_none_or(|confidence| (0.0..=1.0).contains(&confidence)));
        }
    }
    assert_eq!(checked(done.clone()), done, "a second check changed a result");
}

/// A plan of two stages, as epoch 3: the examples name it.
fn plans() -> &'static (PlanVersions, Plan) {
    static PLANS: LazyLock<(PlanVersions, Plan)> = LazyLock::new(|| {
        let plan = Plan::cascade("fuzz")
            .stage("small", "digits-small")
            .worker("a")
            .below(0.5)
            .then("large", "digits-large")
            .worker("b")
            .build()
            .expect("the plan is sound");
        let plans = PlanVersions::new("fuzz");
        plans.adopt(3, plan.clone()).expect("the plan can be adopted");
        (plans, plan)
    });
    &PLANS
}

/// A gear shift: whatever it says, the gear in force exists.
pub fn gear_shift(bytes: &Bytes) {
    let Ok(shift) = GearShift::decode(bytes) else {
        return;
    };
    let (plans, plan) = plans();
    let shifted = plans.shift(shift.epoch, shift.gear);
    assert_eq!(
        shifted.is_ok(),
        shift.epoch == 3 && plan.all_gears().nth(shift.gear as usize).is_some()
    );
    let gear = plans.gear_of(3).expect("the epoch is known");
    assert!(
        plan.all_gears().nth(gear as usize).is_some(),
        "there is no gear {gear}"
    );
}

/// A request at a replica: it is served only where the plan of its epoch says so.
pub fn stage_request(bytes: &Bytes) {
    let Ok(request) = StageRequest::decode(bytes) else {
        return;
    };
    let (plans, plan) = plans();
    let version = plans.at(request.epoch);
    let known = version.as_ref().map(|version| &version.plan);
    for me in &plan.placement {
        let others = plan.placement.iter().filter(|other| *other != me);
        for addressed in [false, true] {
            let arriving = ArrivingRequest {
                epoch: request.epoch,
                gear: request.gear,
                stage: &request.stage,
                addressed,
            };
            let serves = |stage: &str| {
                version.as_ref().and_then(|version| {
                    let stage = version.stage(request.gear, stage)?;
                    Some(version.serves(request.gear, stage, me))
                })
            };
            match arrival(known, arriving, me, others.clone()) {
                Arrival::Serve => {
                    assert!(request.epoch == 0 || serves(&request.stage) == Some(true));
                }
                Arrival::HandOver(other) => assert_ne!(other, me, "a replica hands a request to itself"),
                Arrival::Refuse | Arrival::Ignore | Arrival::Forward => {}
            }
        }
    }
}

/// A heartbeat at the failure detector: what it lists lives until it falls silent, and is lost then.
pub fn beat(bytes: &Bytes) {
    let Ok(beat) = Heartbeat::decode(bytes) else {
        return;
    };
    let mut liveness = Liveness::default();
    liveness.newly_lost(0);
    for replica in &beat.replicas {
        if beat.leaving || replica.unavailable {
            liveness.record_leaving(&replica.id, 0);
        } else {
            liveness.record_heartbeat(&replica.id, 0);
        }
    }
    assert!(
        liveness.started(&beat.actor, beat.instance, beat.sequence, 0) == Start::Same,
        "the first heartbeat of an actor says that it restarted"
    );
    let listed = |name: &str| beat.replicas.iter().any(|replica| replica.id == name);
    assert!(liveness.living().all(listed));
    // The observer looks on time, so that the silence counts.
    for check in 1..=2 * DETECTION_US / CHECK_PERIOD_US {
        assert!(
            liveness
                .newly_lost(check * CHECK_PERIOD_US)
                .iter()
                .all(|name| listed(name))
        );
    }
    assert_eq!(liveness.living().count(), 0, "a silent replica lives");
}

/// The state of an ingress at a worker: what it lists is avoided while it is fresh, and only then.
pub fn ingress_state(bytes: &Bytes) {
    let Ok(state) = IngressState::decode(bytes) else {
        return;
    };
    let view = IngressView {
        sequence: state.sequence,
        starting: state.starting,
        unavailable: state.unavailable.iter().cloned().collect(),
        gone: state.gone,
    };
    let mut states = IngressStates::default();
    states.record(&state.ingress, view.clone(), 0);
    assert!(
        !states.record(&state.ingress, view, 1),
        "the same state changed the view"
    );
    let reachability = states.reachability();
    for replica in &state.unavailable {
        assert_eq!(reachability.is_avoided(replica), !state.gone);
    }
    assert!(states.expire(STATE_VALID_US + 1));
    assert!(!states.reachability().avoids_any());
}

/// A count of arrivals at the shifter, after another one of the same ingress.
pub fn load_count(bytes: &Bytes) {
    let Ok(count) = LoadCount::decode(bytes) else {
        return;
    };
    let mut arrivals = ArrivalCounter::new(0);
    arrivals.record(&count.ingress, 0, 0);
    arrivals.record(&count.ingress, count.arrivals, 1);
    assert_eq!(arrivals.take(2), count.arrivals);
    arrivals.record(&count.ingress, count.arrivals / 2, 3);
    assert_eq!(arrivals.take(4), 0, "a late count was counted again");
}

/// What an ingress counted of a certified list, at a shifter that leads and at one that follows.
pub fn audit_report(bytes: &Bytes) {
    let report = match AuditReport::decode_within(bytes, &AuditReport::LIMITS) {
        Ok(report) => report,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let list = certified();
    for leads in [true, false] {
        let mut watch = CertificateMonitor::new(list, MonitorConfig::default());
        for _ in 0..2 {
            if leads {
                watch.take(&report.counts);
            } else {
                watch.observe(&report.counts);
                watch.follow(
                    report.limit.unwrap_or_default() as usize,
                    &report.refuted_by_labels,
                );
            }
            assert!(
                watch.limit() <= watch.cheapest(),
                "a cascade beyond the list may run"
            );
        }
        for status in watch.statuses() {
            assert!(
                status
                    .differs
                    .iter()
                    .chain(&status.loss)
                    .all(|bound| !bound.is_nan())
            );
        }
    }
}

/// A list of the largest variant alone, and of a cascade of two stages.
fn certified() -> &'static CertifiedList {
    static LIST: LazyLock<CertifiedList> = LazyLock::new(|| {
        let batching = json!({"min_queue": 1, "max_batch": 8, "max_wait_us": 2000});
        let stage =
            |name: &str, exit| json!({"name": name, "variant": name, "exit": exit, "batching": batching});
        let large = stage("large", json!({"kind": "reply"}));
        let bands = json!([{"from": 0.0, "to": {"stage": {"stage": "large"}}}, {"from": 0.5, "to": "reply"}]);
        let small = stage("small", json!({"kind": "bands", "bands": bands}));
        let expected = |stage: &str, samples: u64, deferred: u64| {
            let exits = [(samples - deferred) / 2, (samples - deferred) / 2];
            json!({"stage": stage, "samples": samples, "deferred": deferred, "edges": [0.7], "exits": exits})
        };
        let certificate = json!({"guarantee": {"kind": "max_loss", "loss": 0.02, "against": "large"}, "confidence": 0.95,
            "samples": 1000, "right": 950, "lost": 10, "gained": 5, "p_value": 0.01});
        let cascade = |entry: &str, stages: Vec<_>, expected: Vec<_>, differs: u64| {
            json!({"gear": {"name": entry, "load": {"from_qps": 0.0}, "wiring": {"entry": {"stage": entry}, "stages": stages}},
                "certificate": certificate, "differs": differs, "stages": expected})
        };
        let alone = cascade("large", vec![large.clone()], vec![expected("large", 1000, 0)], 0);
        let cheaper = vec![expected("small", 1000, 300), expected("large", 300, 0)];
        let cheaper = cascade("small", vec![small, large], cheaper, 20);
        serde_json::from_value(json!({"cascade_of_gear": [1], "cascades": [alone, cheaper]}))
            .expect("the list is sound")
    });
    &LIST
}
