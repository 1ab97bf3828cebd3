//! Labels of requests that came over HTTP.

use kaskade_actors::Service;
use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{TIMEOUT, certified, wait_until};
use serde_json::{Value, json};

use crate::support::{Answer, Echo, Stand, THRESHOLD};

const INFER: &str = "/v2/models/app/infer";
const FEEDBACK: &str = "/v1/feedback";

/// A cascade and a certified list of it and of the largest variant alone.
fn plan() -> Plan {
    let plan = Plan::cascade("app")
        .stage("first", "small")
        .below(THRESHOLD)
        .then("second", "large");
    certified(plan.build().unwrap())
}

fn stand(limits: Limits) -> Stand {
    let service = Service::new("app")
        .plan(plan())
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
            json!({"object": "feedback", "request_id": id, "right": true, "variant": "small", "audited": false, "unchecked": false})
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
    for strange in [String::new(), "x".repeat(1_025)] {
        let (status, refused) = label(&stand, &[], &strange, 0);
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("1 to 1024"), "{refused}");
    }
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

/// A misspelt name counted as a wrong answer.
#[test]
fn a_name_that_no_class_has_is_refused() {
    let stand = crate::oip::named();
    let body = json!({"inputs": [{"name": "x", "shape": [2, 1], "datatype": "FP32", "data": [1, 1]}]});
    let answer = stand.post(INFER, &[], body.to_string());
    let id = answer.header("x-kaskade-request-id").unwrap();
    // Workers announce the names every two seconds.
    wait_until("the nearest name is known", TIMEOUT, || {
        let (status, refused) = label(&stand, &[], id, "positve");
        assert_eq!(status, 422, "{refused}");
        assert_eq!(refused["error"]["code"], "KSK0003");
        let message = refused["error"]["message"].as_str().unwrap();
        message.contains("is it `positive`?")
    });
    let (status, told) = label(&stand, &[], id, "positive");
    assert_eq!(
        (status, &told["right"], &told["unchecked"]),
        (200, &json!(true), &json!(false)),
        "{told}"
    );
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
