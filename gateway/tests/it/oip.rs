//! The Open Inference Protocol.

use kaskade_actors::Service;
use kaskade_gateway::{AppOptions, Limits};
use kaskade_models::{
    Answers, Datatype, Extent, InputSpec, Inputs, Model, ModelError, OutputSpec, Outputs, Signature, Tensor,
};
use kaskade_policy::plan::Plan;
use kaskade_testkit::{TIMEOUT, certified};
use serde_json::{Value, json};

use crate::support::Stand;

const INFER: &str = "/v2/models/app/infer";

fn input(name: &str, datatype: &str, shape: impl Into<Value>, data: impl Into<Value>) -> Value {
    let (shape, data): (Value, Value) = (shape.into(), data.into());
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

fn output(answer: &Value, name: &str) -> Value {
    let outputs = answer["outputs"].as_array().unwrap();
    let found = outputs.iter().find(|output| output["name"] == name);
    found
        .unwrap_or_else(|| panic!("{name} is not in {answer}"))
        .clone()
}

#[test]
fn the_cascade_answers_through_json() {
    let stand = Stand::cascade(Limits::default());
    for (sure, variant, hops) in [(0.8, "small", "first"), (0.6, "large", "first>second")] {
        let nested = input("x", "FP32", json!([2, 2]), json!([[1.0, 2.0], [3, 4.5]]));
        let body = json!({"id": "7", "inputs": [input("sure", "FP32", json!([1]), json!([sure])), nested]});
        let answer = stand.post(INFER, &[("x-request-id", "mine")], body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.json());
        let found = answer.json();
        assert_eq!((&found["id"], &found["model_name"]), (&json!("7"), &json!("app")));
        assert_eq!(found["model_version"], variant);
        assert_eq!(found["parameters"]["hops"], hops);
        assert_eq!(output(&found, "x")["data"], json!([1.0, 2.0, 3.0, 4.5]));
        assert_eq!(answer.header("x-kaskade-variant"), Some(variant));
        assert_eq!(answer.header("x-kaskade-hops"), Some(hops));
        assert_eq!(answer.header("x-request-id"), Some("mine"));
    }
    let stats = stand.get("/v2/models/app/stats").json();
    let counts: Vec<&Value> = stats["model_stats"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["inference_count"])
        .collect();
    assert_eq!(
        counts,
        [&json!(2), &json!(1)],
        "both requests ran on `small`, one on `large`"
    );
    let stats = stand.get("/v2/models/app/versions/large/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_stats"]["success"]["count"], 1);
    // Metadata has the tensors of answered requests.
    let metadata = stand.get("/v2/models/app").json();
    assert!(
        metadata["inputs"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "x", "datatype": "FP32", "shape": [2, 2]}))
    );
}

#[test]
fn every_datatype_passes_through_json_and_bytes() {
    let stand = Stand::cascade(Limits::default());
    let cases = [
        ("BOOL", json!([true, false]), 2),
        ("UINT8", json!([0, 255]), 2),
        ("UINT16", json!([0, 65_535]), 4),
        ("UINT32", json!([0, 4_294_967_295_u32]), 8),
        ("UINT64", json!([0, u64::MAX]), 16),
        ("INT8", json!([-128, 127]), 2),
        ("INT16", json!([-32_768, 32_767]), 4),
        ("INT32", json!([i32::MIN, i32::MAX]), 8),
        ("INT64", json!([i64::MIN, i64::MAX]), 16),
        ("FP32", json!([0.5, -1.0]), 8),
        ("FP64", json!([0.1, -1.0]), 16),
        ("BYTES", json!(["a", "雪"]), 12),
    ];
    for (datatype, data, size) in cases {
        let body = json!({"inputs": [input("x", datatype, json!([2]), data.clone())]}).to_string();
        let answer = stand.post(INFER, &[], body).json();
        assert_eq!(output(&answer, "x")["data"], data, "{datatype}: {answer}");
        // The same out as bytes, and these bytes in again.
        let body = json!({"parameters": {"binary_data_output": true}, "inputs": [input("x", datatype, json!([2]), data.clone())]});
        let answer = stand.post(INFER, &[], body.to_string());
        let length: usize = answer
            .header("inference-header-content-length")
            .unwrap()
            .parse()
            .unwrap();
        let head: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
        assert_eq!(
            output(&head, "x")["parameters"]["binary_data_size"],
            size,
            "{datatype}"
        );
        let raw = &answer.body[length..length + size];
        let again = json!({"inputs": [{"name": "x", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": size}}]});
        let again = again.to_string();
        let header = again.len().to_string();
        let headers = [("Inference-Header-Content-Length", header.as_str())];
        let answer = stand.post(INFER, &headers, [again.as_bytes(), raw].concat());
        assert_eq!(output(&answer.json(), "x")["data"], data, "{datatype}");
    }
    // FP16 has no JSON form; the error says what to ask for.
    let fp16 = json!({"inputs": [{"name": "x", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}]}).to_string();
    let header = fp16.len().to_string();
    let headers = [("Inference-Header-Content-Length", header.as_str())];
    let answer = stand.post(INFER, &headers, [fp16.as_bytes(), &[0, 60]].concat());
    assert_eq!(answer.status, 400);
    assert!(
        answer.json()["error"]
            .as_str()
            .unwrap()
            .contains("binary_data_output")
    );
}

#[test]
fn metadata_health_and_errors_are_what_clients_check() {
    let stand = Stand::cascade(Limits::default());
    let server = stand.get("/v2").json();
    assert!(
        server["extensions"]
            .as_array()
            .unwrap()
            .contains(&json!("binary_tensor_data"))
    );
    assert_eq!(
        stand.get("/v2/health/ready").json(),
        json!({"live": true, "ready": true})
    );
    assert_eq!(stand.get("/v2/health/live").json(), json!({"live": true}));
    assert_eq!(stand.get("/health").status, 200);
    assert_eq!(
        stand.get("/v2/models/app").json()["versions"],
        json!(["small", "large"])
    );
    assert_eq!(stand.get("/v2/models/app/ready").status, 200);
    assert_eq!(stand.get("/v2/models/app/versions/large/ready").status, 200);
    assert_eq!(stand.get("/v2/models/app/versions/huge/ready").status, 404);
    assert_eq!(stand.get("/v2/models/app/config").json()["max_batch_size"], 0);
    let index = stand.post("/v2/repository/index", &[], "{}").json();
    assert_eq!(
        index[0],
        json!({"name": "app", "version": "small", "state": "READY", "reason": ""})
    );
    let page = String::from_utf8(stand.get("/metrics").body).unwrap();
    assert!(
        page.contains("kaskade_gateway_request_seconds_count{app=\"app\"} 0\n"),
        "{page}"
    );

    let one = |shape: Value, data: Value| json!({"inputs": [input("x", "FP32", shape, data)]}).to_string();
    let cases = [
        (
            "/v2/models/other/infer",
            one(json!([1]), json!([1])),
            404,
            "KSK0004",
        ),
        (INFER, "{".to_owned(), 400, "KSK0001"),
        (INFER, one(json!([3]), json!([1])), 422, "KSK0003"),
        (INFER, one(json!([u64::MAX, 2]), json!([1])), 422, "KSK0003"),
        (INFER, one(json!([1]), json!(["a"])), 422, "KSK0003"),
        (
            "/v2/models/app/versions/large/infer",
            one(json!([1]), json!([1])),
            400,
            "model_version",
        ),
    ];
    for (path, body, status, word) in cases {
        let answer = stand.post(path, &[], body);
        let found = answer.json();
        assert_eq!(answer.status, status, "{found}");
        assert!(found["error"].as_str().unwrap().contains(word), "{found}");
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    // An output that is named often would be written often.
    for (outputs, status) in [(vec!["y"], 400), (vec!["x"; 2], 200), (vec!["x"; 1_000], 400)] {
        let outputs: Vec<Value> = outputs.into_iter().map(|name| json!({"name": name})).collect();
        let wanted = json!({"inputs": [input("x", "FP32", json!([1]), json!([1]))], "outputs": outputs});
        assert_eq!(stand.post(INFER, &[], wanted.to_string()).status, status);
    }
}

/// A classifier that describes itself, as the loader of checkpoints does.
struct Named;

impl Model for Named {
    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![
                InputSpec::required("x", Datatype::F32, vec![Extent::Exactly(2), Extent::UpTo(9)]),
                InputSpec::optional("seed", Datatype::I64, vec![Extent::Exactly(1)]),
            ],
        }
    }

    fn answers(&self) -> Answers {
        Answers {
            outputs: vec![OutputSpec {
                name: "logits".to_owned(),
                datatype: Datatype::F32,
                shape: vec![Some(2)],
            }],
            labels: ["negative", "positive"].map(str::to_owned).to_vec(),
        }
    }

    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = || Ok(vec![Tensor::from_f32("logits", &[2], &[0.0, 9.0])?]);
        batch.iter().map(|_| answer()).collect()
    }
}

pub(crate) fn named() -> Stand {
    let plan = Plan::cascade("app").stage("only", "named");
    let service = Service::new("app")
        .plan(certified(plan.build().unwrap()))
        .model("named", || Ok::<_, String>(Named));
    Stand::of(
        service,
        AppOptions::new("app").default_budget(TIMEOUT),
        Limits::default(),
    )
}

/// Clients that build requests from the metadata could not begin: it was empty until the first answer.
#[test]
fn metadata_is_complete_before_the_first_request() {
    let stand = named();
    let inputs = json!([{"name": "x", "datatype": "FP32", "shape": [2, -1]}]);
    let outputs = json!([{"name": "logits", "datatype": "FP32", "shape": [2]}]);
    for path in ["/v2/models/app", "/v2/models/app/versions/named"] {
        let metadata = stand.get(path).json();
        assert_eq!(
            (&metadata["inputs"], &metadata["outputs"]),
            (&inputs, &outputs),
            "{path}"
        );
    }
    let config = stand.get("/v2/models/app/config").json();
    assert_eq!(
        config["input"],
        json!([{"name": "x", "data_type": "TYPE_FP32", "dims": [2, -1]}])
    );
    assert_eq!(
        config["output"],
        json!([{"name": "logits", "data_type": "TYPE_FP32", "dims": [2]}])
    );
    let apps = stand.get("/dashboard/apps").json();
    assert_eq!(apps, json!([{"name": "app", "inputs": inputs, "chats": false}]));
    // An optional input that a client sent is not listed beside those that every request needs.
    let seeded = json!({"inputs": [input("x", "FP32", json!([2, 3]), json!([1, 1, 1, 1, 1, 1])), input("seed", "INT64", json!([1]), json!([7]))]});
    assert_eq!(stand.post(INFER, &[], seeded.to_string()).status, 200);
    assert_eq!(stand.get("/v2/models/app").json()["inputs"], inputs);
}
