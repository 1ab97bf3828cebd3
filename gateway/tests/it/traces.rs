//! Spans of a request, from the gateway through the stages, at a collector of OTLP.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use kaskade_gateway::Limits;
use kaskade_telemetry::{Exporter, ExporterConfig};
use serde_json::{Value, json};

use crate::support::{Stand, exchange, request};

/// Accepts exports on a thread and keeps their spans.
fn collector() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let spans = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&spans);
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let connection = connection.unwrap();
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || {
                let mut answers = connection.try_clone().unwrap();
                let mut lines = BufReader::new(connection);
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if lines.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
                    let head = head.to_ascii_lowercase();
                    assert!(head.contains("x-api-key: k\r\n"), "{head}");
                    let (_, length) = head.split_once("content-length: ").unwrap();
                    let length: usize = length.split_once('\r').unwrap().0.parse().unwrap();
                    let mut body = vec![0; length];
                    lines.read_exact(&mut body).unwrap();
                    let body: Value = serde_json::from_slice(&body).unwrap();
                    let exported = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
                        .as_array()
                        .unwrap();
                    kept.lock().unwrap().extend(exported.iter().cloned());
                    answers
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
                        .unwrap();
                }
            });
        }
    });
    (address, spans)
}

fn attribute(span: &Value, name: &str) -> Option<Value> {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == name)?;
    found["value"].as_object().unwrap().values().next().cloned()
}

/// One test: a process has one exporter.
#[test]
fn a_request_leaves_a_span_per_hop_queue_and_run_below_that_of_its_client() {
    let (endpoint, spans) = collector();
    let mut config = ExporterConfig::new(endpoint, "app");
    config.headers.push(("x-api-key".to_owned(), "k".to_owned()));
    let exporter = Exporter::start(&config).unwrap();
    assert!(Exporter::start(&config).is_err(), "a process has one exporter");
    let stand = Stand::cascade(Limits::default());
    let asked = |sure: f32| {
        json!({"inputs": [{"name": "sure", "datatype": "FP32", "shape": [1], "data": [sure]}]}).to_string()
    };
    let (sampled, unsampled) = (
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "11111111111111112222222222222222",
    );
    for (trace, flags, path, body, status) in [
        (sampled, "01", "/v2/models/app/infer", asked(0.6), 200),
        (unsampled, "00", "/v2/models/app/infer", asked(0.6), 200),
        (sampled, "01", "/v2/models/other/infer", asked(0.6), 404),
    ] {
        let context = format!("00-{trace}-00f067aa0ba902b7-{flags}");
        let answer = stand.post(path, &[("traceparent", &context)], body);
        assert_eq!(answer.status, status);
    }
    // What a client chooses names no span, and probes have none.
    let unknown = "22222222222222222222222222222222";
    let context = format!("00-{unknown}-00f067aa0ba902b7-01");
    for (method, path, status) in [
        ("GET", "/wp-login.php", 404),
        ("GET", "/inference.GRPCInferenceService/Anything", 200),
        ("PROPFIND", "/v1/models", 405),
        ("GET", "/ready", 200),
        ("GET", "/v2/health/live", 200),
    ] {
        let asked = request(method, path, &[("traceparent", &context)], b"");
        assert_eq!(exchange(stand.address(), &asked).status, status, "{path}");
    }
    // What waits is sent before the exporter ends.
    drop(exporter);
    let page = String::from_utf8(stand.get("/metrics").body).unwrap();
    assert!(page.contains("kaskade_gateway_spans_dropped_total 0\n"), "{page}");

    let spans = spans.lock().unwrap();
    assert!(!spans.iter().any(|span| span["traceId"] == unsampled));
    let mut names: Vec<&str> = spans
        .iter()
        .filter(|span| span["traceId"] == unknown)
        .filter_map(|span| span["name"].as_str())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["GET", "GET", "HTTP"]);
    let of: Vec<&Value> = spans.iter().filter(|span| span["traceId"] == sampled).collect();
    let only = |name: &str| {
        let found: Vec<&&Value> = of.iter().filter(|span| span["name"] == name).collect();
        assert_eq!(found.len(), 1, "{name}: {of:?}");
        *found[0]
    };
    let posts: Vec<&&Value> = of
        .iter()
        .filter(|span| span["name"] == "POST /v2/models/{name}/infer")
        .collect();
    assert_eq!(posts.len(), 2);
    assert!(
        posts
            .iter()
            .all(|post| post["parentSpanId"] == "00f067aa0ba902b7")
    );
    let fine = posts
        .iter()
        .find(|post| attribute(post, "http.response.status_code") == Some(json!("200")));
    let ask = only("send app");
    assert_eq!(ask["parentSpanId"], fine.unwrap()["spanId"]);
    assert_eq!(attribute(ask, "kaskade.hops"), Some(json!("first>second")));
    assert_eq!(attribute(ask, "kaskade.variant"), Some(json!("large")));
    let ingress = only("ingress app");
    assert_eq!(ingress["parentSpanId"], ask["spanId"]);
    for (stage, variant) in [("stage first", "small"), ("stage second", "large")] {
        let hop = only(stage);
        assert_eq!(hop["parentSpanId"], ingress["spanId"]);
        assert_eq!(attribute(hop, "kaskade.variant"), Some(json!(variant)));
        let below: Vec<&&Value> = of
            .iter()
            .filter(|span| span["parentSpanId"] == hop["spanId"])
            .collect();
        let time = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        let [queue, run] = ["queue", "run"].map(|name| {
            let found = below.iter().find(|span| span["name"] == name);
            **found.unwrap_or_else(|| panic!("{stage} has no {name}: {below:?}"))
        });
        assert_eq!(attribute(run, "kaskade.batch.size"), Some(json!("1")));
        assert!(time(queue, "endTimeUnixNano") <= time(run, "startTimeUnixNano") + 1_000_000);
        assert!(time(run, "endTimeUnixNano") >= time(run, "startTimeUnixNano"));
    }
}
