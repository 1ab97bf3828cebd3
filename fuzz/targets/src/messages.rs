//! One of every message: the seeds of the wire's corpus, and what its edits begin with.

use std::collections::BTreeMap;

use bytes::Bytes;
use kaskade_actors::error::{Code, Fault};
use kaskade_actors::wire::{
    AuditReport, BranchReply, CertificateFinding, CertificateNotice, CertificateReport, EnergyReport,
    FanOuts, Feedback, FeedbackLabel, FeedbackReply, GearShift, Heartbeat, Hop, HopAnswer, InferReply,
    InferRequest, IngressState, LoadCount, LoadDriftNotice, Message, ModelEnergy, ModelInterface,
    Observation, PlanNotice, PlanReport, PlanRequest, ReplicaBeat, Runs, ShiftReport, Spent, StageCancel,
    StageOutcome, StageReply, StageRequest, TensorInterface, Tokens,
};
use kaskade_models::{Datatype, Tensor};
use kaskade_policy::certificate_monitor::Counts;
use kaskade_policy::fan_in::Branch;
use kaskade_policy::remote::price::{Cost, CostSource};

/// A message as bytes and, for those that can be written so, as JSON.
#[derive(Debug)]
pub struct Example {
    /// The message, as [`Message::NAME`] says.
    pub message: &'static str,
    /// Its name, for the file that it becomes.
    pub name: String,
    /// MessagePack.
    pub bytes: Bytes,
    /// JSON.
    pub json: Option<String>,
}

/// One of every message, and of those that differ in kind one of every kind.
pub fn examples() -> Vec<Example> {
    let mut examples = vec![
        example("infer", &infer()),
        example("infer-half", &halves()),
        example("reply", &reply()),
        example("stage", &stage()),
        example("beat", &beat()),
        example("load", &load()),
        example("gear", &GearShift { epoch: 7, gear: 2 }),
        example("notice", &PlanNotice { epoch: 8 }),
        example("shift", &shift()),
        example("load_drift", &load_drift()),
        example("replan", &replan()),
        example("stage_cancel", &stage_cancel()),
        example("ingress_state", &ingress_state()),
        example("energy", &energy()),
        example("feedback", &feedback()),
        example("feedback-reply", &feedback_reply()),
        example("audit", &audit()),
        example("certificate_status", &CertificateReport::default()),
        example("certificate", &certificate()),
    ];
    let results = [outputs(), part(), fault()];
    let dones = results.map(|(name, result)| example(&format!("done-{name}"), &done(result)));
    examples.extend(dones);
    let reports = reports().map(|(name, report)| example(&format!("report-{name}"), &report));
    examples.extend(reports);
    examples
}

fn example<M: Message>(name: &str, message: &M) -> Example {
    Example {
        message: M::NAME,
        name: name.to_owned(),
        bytes: message.encode().expect("an example can be encoded"),
        json: serde_json::to_string(message).ok(),
    }
}

fn pixels() -> Tensor {
    Tensor::from_f32("image", &[2, 2], &[0.0, 0.5, 0.25, 1.0]).expect("four values")
}

fn texts() -> Tensor {
    Tensor::from_texts("text", &["a warm film", ""]).expect("two texts")
}

fn infer() -> InferRequest {
    let tokens = Tensor::from_i64("input_ids", &[3], &[1, -2, 3]).expect("three values");
    InferRequest {
        inputs: vec![pixels(), texts(), tokens],
        id: Some("42".into()),
        parameters: BTreeMap::from([("stream".into(), "true".into())]),
    }
}

/// Of the types that JSON has no form for.
fn halves() -> InferRequest {
    let half = |name: &str, datatype| Tensor {
        name: name.into(),
        shape: vec![2],
        datatype,
        data: Bytes::from_static(&[0, 0x3c, 0, 0xfc]),
    };
    InferRequest {
        inputs: vec![half("half", Datatype::F16), half("brain", Datatype::Bf16)],
        ..InferRequest::default()
    }
}

fn reply() -> InferReply {
    InferReply {
        id: Some("42".into()),
        outputs: vec![pixels()],
        stage: "large".into(),
        variant: "digits-large".into(),
        confidence: Some(0.9),
        hops: vec![hop("small"), hop("large")],
        degraded: true,
        part: Some(3),
        branches: vec![
            BranchReply {
                branch: branch(),
                stage: "colour".into(),
                variant: "colour-tiny".into(),
                confidence: Some(0.5),
                outputs: vec![texts()],
                error: None,
            },
            BranchReply {
                branch: Branch::ROOT.child("classify", 4),
                error: Some(Fault::new(Code::Expired, "too late")),
                ..BranchReply::default()
            },
        ],
    }
}

fn stage() -> StageRequest {
    StageRequest {
        id: 7,
        ingress: "a-1".into(),
        attempt: 1,
        branch: branch(),
        epoch: 3,
        gear: 1,
        stage: "large".into(),
        hops: vec![hop("small")],
        stream: true,
        return_to_ingress: true,
        optimistic: true,
        inputs: vec![pixels()],
        ..StageRequest::default()
    }
}

fn hop(stage: &str) -> Hop {
    Hop {
        stage: stage.into(),
        wait_us: 120,
        run_us: 4_000,
        batch: 8,
        cost: Some(Cost {
            amount: 0.002,
            source: CostSource::Priced,
        }),
        answer: Some(HopAnswer {
            confidence_ppm: 750_000,
            answer: 3,
        }),
    }
}

fn branch() -> Branch {
    Branch::ROOT.child("classify", 3).child("colour", 0)
}

fn done(result: StageOutcome) -> StageReply {
    StageReply {
        id: 7,
        attempt: 1,
        branch: branch(),
        stage: "large".into(),
        replica: "digits-large-0".into(),
        hops: vec![hop("large")],
        result,
    }
}

fn outputs() -> (&'static str, StageOutcome) {
    let result = StageOutcome::Outputs {
        outputs: vec![pixels()],
        confidence: Some(0.75),
        routed: true,
        children: BTreeMap::from([("classify".into(), 3)]),
    };
    ("outputs", result)
}

fn part() -> (&'static str, StageOutcome) {
    let result = StageOutcome::Part {
        outputs: vec![texts()],
        from: 2,
        until: 4,
        once: false,
    };
    ("part", result)
}

fn fault() -> (&'static str, StageOutcome) {
    let fault = Fault::new(Code::BadOutput, "the model says no");
    ("fault", StageOutcome::Fault(fault))
}

fn beat() -> Heartbeat {
    Heartbeat {
        models: BTreeMap::from([("digits-large".into(), model())]),
        actor: "a".into(),
        kind: "worker".into(),
        replicas: vec![ReplicaBeat {
            id: "digits-large-0".into(),
            stage: "large".into(),
            variant: "digits-large".into(),
            queue: 3,
            in_flight: 8,
            unavailable: true,
        }],
        queue: 3,
        in_flight: 8,
        fan_outs: forks(),
        runs: runs(),
        epoch: 3,
        in_place: 2,
        failed: vec!["digits-small-0".into()],
        leaving: true,
        sequence: 70_000,
        instance: 7,
    }
}

fn model() -> ModelInterface {
    let tensor = |name: &str, datatype: &str, shape: &[i64]| TensorInterface {
        name: name.into(),
        datatype: datatype.into(),
        shape: shape.into(),
        optional: true,
    };
    ModelInterface {
        inputs: vec![tensor("image", "FP32", &[1, 8, 8])],
        outputs: vec![tensor("label", "BYTES", &[-1])],
        labels: vec!["zero".into(), "one".into()],
    }
}

fn forks() -> BTreeMap<String, FanOuts> {
    let forks = FanOuts {
        requests: 10,
        children: BTreeMap::from([("classify".into(), 57)]),
    };
    BTreeMap::from([("find-tiny".into(), forks)])
}

fn runs() -> BTreeMap<String, Runs> {
    let runs = Runs {
        batches: 4,
        requests: 10,
        busy_us: 70_000,
    };
    BTreeMap::from([("find-tiny".into(), runs)])
}

fn load() -> LoadCount {
    LoadCount {
        ingress: "a-1".into(),
        arrivals: 123_456_789_012,
    }
}

fn shift() -> ShiftReport {
    ShiftReport {
        epoch: 3,
        from: 0,
        to: 2,
        qps: 812.5,
        first_queue: 40,
    }
}

fn feedback() -> Feedback {
    Feedback {
        id: "order-17".to_owned(),
        label: FeedbackLabel::Class(7),
    }
}

fn feedback_reply() -> FeedbackReply {
    FeedbackReply {
        id: "order-17".to_owned(),
        right: true,
        variant: "digits-large".to_owned(),
        audited: true,
        unchecked: true,
        refused: Some("7 is none of the 3 classes".to_owned()),
    }
}

fn audit() -> AuditReport {
    AuditReport {
        ingress: "ingress".to_owned(),
        epoch: 3,
        counts: counts(),
        limit: Some(1),
        refuted_by_labels: Vec::new(),
    }
}

/// Of a list of two cascades: the largest variant alone, and a smaller one before it.
fn counts() -> Counts {
    let mut counts = Counts::default();
    if let Some(cascade) = counts.at(1) {
        cascade.count(0, 0);
        cascade.count(0, 2);
        cascade.count(1, 1);
    }
    counts
}

fn certificate() -> CertificateNotice {
    CertificateNotice {
        epoch: 3,
        found: CertificateFinding::Refuted {
            from: 2,
            to: 1,
            by: "audits".to_owned(),
        },
    }
}

fn load_drift() -> LoadDriftNotice {
    LoadDriftNotice {
        epoch: 3,
        distance: 0.4,
        measured: vec![0.25, 0.75],
        peak_qps: 900.0,
    }
}

fn replan() -> PlanRequest {
    PlanRequest {
        reason: "drift".into(),
        peak_qps: Some(900.0),
        measured: vec![0.25, 0.75],
        fan_outs: BTreeMap::from([("a".into(), forks())]),
        runs: BTreeMap::from([("a".into(), runs())]),
        observed: Some(Observation {
            at_us: 1_000_000,
            arrivals: 40,
            workers: vec!["a".into(), "b".into()],
        }),
    }
}

fn ingress_state() -> IngressState {
    IngressState {
        ingress: "i".into(),
        sequence: 12,
        admits: 4,
        oldest: 3,
        starting: false,
        unavailable: vec!["digits-large-0".into()],
        gone: false,
        served: vec![3, 4],
    }
}

fn energy() -> EnergyReport {
    let model = ModelEnergy {
        requests: 40,
        batches: 8,
        busy_s: 0.5,
        joules: Some(9.5),
        priced: 40,
        spent: Spent {
            billionths: 2_000_000,
            source: Some(CostSource::Priced),
        },
        tokens: Tokens::first(1, 1_200),
        joules_per_token: Some(0.25),
    };
    EnergyReport {
        node: "a".into(),
        source: "rapl".into(),
        counter: Some("c0ffee00/cpu".into()),
        joules: Some(12.5),
        requests: 40,
        joules_per_request: Some(0.3125),
        busy_core_s: 1.5,
        wall_s: 4.0,
        models: BTreeMap::from([("large".into(), model)]),
        forwarded: BTreeMap::from([("small".into(), BTreeMap::from([("large".into(), 12)]))]),
    }
}

fn stage_cancel() -> StageCancel {
    StageCancel {
        ingress: "a-1".into(),
        ids: vec![1, 300, u64::MAX],
    }
}

fn reports() -> impl Iterator<Item = (&'static str, PlanReport)> {
    let refused = PlanReport::Refused {
        reason: "no plan holds 900 requests/s".into(),
    };
    [
        ("adopted", PlanReport::Adopted { epoch: 9 }),
        ("unchanged", PlanReport::Unchanged { epoch: 8 }),
        ("refused", refused),
        ("crashed", PlanReport::Crashed),
        ("timed-out", PlanReport::TimedOut { limit_ms: 60_000 }),
        ("stale", PlanReport::Stale { newest: Some(9) }),
        ("busy", PlanReport::Busy),
    ]
    .into_iter()
}
