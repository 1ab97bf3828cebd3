//! Labels of requests that came over HTTP.

use kaskade_actors::Service;
use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_policy::plan::{
    Certificate, CertifiedCascade, CertifiedList, Edge, ExpectedStage, Gear, Guarantee, Plan,
};
use kaskade_testkit::TIMEOUT;
use serde_json::{Value, json};

use crate::support::{Answer, Echo, Stand, THRESHOLD};

const INFER: &str = "/v2/models/app/infer";
const FEEDBACK: &str = "/v1/feedback";

/// A cascade and a certified list of it and of the largest variant alone.
fn certified() -> Plan {
    let plan = Plan::cascade("app")
        .stage("first", "small")
        .below(THRESHOLD)
        .then("second", "large");
    let mut plan = plan.build().unwrap();
    let cheap = Gear {
        name: "cheap".to_owned(),
        ..plan.gears[0].clone()
    };
    let mut alone = Gear {
        name: "alone".to_owned(),
        ..plan.gears[0].clone()
    };
    alone.wiring.stages.retain(|stage| stage.name == "second");
    alone.wiring.entry = Edge::to("second");
    let stage = |name: &str, samples: u64| ExpectedStage {
        stage: name.to_owned(),
        samples,
        deferred: 0,
        edges: Vec::new(),
        exits: vec![samples],
    };
    let certificate = Certificate {
        guarantee: Guarantee::MaxLoss {
            loss: 0.02,
            against: "large".to_owned(),
        },
        confidence: 0.95,
        samples: 1_000,
        right: 990,
        lost: Some(0),
        gained: Some(0),
        p_value: 0.0,
    };
    let cascade = |gear: &Gear, stages: Vec<ExpectedStage>| CertifiedCascade {
        gear: gear.clone(),
        certificate: certificate.clone(),
        differs: Some(0),
        stages,
    };
    plan.certified = Some(CertifiedList {
        texts: None,
        samples: None,
        cascade_of_gear: vec![1],
        cascades: vec![
            cascade(&alone, vec![stage("second", 1_000)]),
            cascade(&cheap, vec![stage("first", 1_000), stage("second", 0)]),
        ],
    });
    plan.gears = vec![cheap];
    plan
}

fn stand(limits: Limits) -> Stand {
    let service = Service::new("app")
        .plan(certified())
        .model("small", || Ok::<_, String>(Echo(0.9)))
        .model("large", || Ok::<_, String>(Echo(0.9)));
    Stand::of(service, AppOptions::new("app").default_budget(TIMEOUT), limits)
}

/// A request that class 0 answers.
fn ask(stand: &Stand, headers: &[(&str, &str)]) -> Answer {
    let body = json!({"id": "order-2", "inputs": [{"name": "sure", "shape": [1], "datatype": "FP32", "data": [0.9]}]});
    let answer = stand.post(INFER, headers, body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.json());
    answer
}

fn label(stand: &Stand, headers: &[(&str, &str)], id: &str, label: impl Into<Value>) -> (u16, Value) {
    let body = json!({"model": "app", "request_id": id, "label": label.into()});
    let answer = stand.post(FEEDBACK, headers, body.to_string());
    (answer.status, answer.json())
}

/// The ids that clients of HTTP could name were unknown to the app.
#[test]
fn an_answer_over_http_takes_one_label() {
    let stand = stand(Limits::default());
    let answer = ask(&stand, &[("x-request-id", "mine")]);
    let id = answer.header("x-kaskade-request-id").unwrap();
    assert_eq!(answer.json()["parameters"]["request_id"], id);
    assert_eq!(
        (answer.json()["id"].as_str(), answer.header("x-request-id")),
        (Some("order-2"), Some("mine"))
    );
    let (status, refused) = label(&stand, &[], id, 2);
    assert_eq!(
        (status, &refused["error"]["param"]),
        (422, &json!("label")),
        "{refused}"
    );
    let told = label(&stand, &[], id, 0);
    assert_eq!(
        told,
        (
            200,
            json!({"object": "feedback", "request_id": id, "right": true, "variant": "small", "audited": false})
        )
    );
    for unknown in [id, "order-2", "mine"] {
        let (status, refused) = label(&stand, &[], unknown, 0);
        assert_eq!(
            (status, &refused["error"]["code"]),
            (404, &json!("unknown_request")),
            "{refused}"
        );
    }
    let other = ask(&stand, &[]);
    let (status, told) = label(&stand, &[], other.header("x-kaskade-request-id").unwrap(), "1");
    assert_eq!((status, &told["right"]), (200, &json!(false)), "{told}");
    for wrong in [
        json!({"request_id": "a"}),
        json!({"request_id": "a", "label": [1]}),
        json!({"label": 1}),
    ] {
        assert_eq!(
            stand.post(FEEDBACK, &[], wrong.to_string()).status,
            400,
            "{wrong}"
        );
    }
}

#[test]
fn a_tenant_labels_its_own_requests_alone() {
    let key = |tenant: &str| TenantKey {
        tenant: tenant.to_owned(),
        key: format!("key of {tenant}"),
        max_in_flight: None,
        rate: None,
        operator: false,
    };
    let open = stand(Limits::default());
    let limits = Limits {
        keys: vec![key("one"), key("two")],
        ..Limits::default()
    };
    let stand = open.behind(limits, "key of one");
    let (one, two) = (
        [("authorization", "Bearer key of one")],
        [("authorization", "Bearer key of two")],
    );
    let answer = ask(&stand, &one);
    let id = answer.header("x-kaskade-request-id").unwrap();
    assert_eq!(label(&stand, &[], id, 0).0, 401);
    assert_eq!(label(&stand, &two, id, 0).0, 404);
    assert_eq!(label(&stand, &one, id, 0).0, 200);
}
