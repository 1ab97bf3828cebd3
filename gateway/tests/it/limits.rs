//! Budgets, limits, compression, keys, and the graceful shutdown.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use kaskade_actors::Service;
use kaskade_actors::bus::BusConfig;
use kaskade_actors::ingress::IngressConfig;
use kaskade_gateway::config::TenantKey;
use kaskade_gateway::{AppOptions, Gateway, Limits};
use kaskade_models::{Inputs, Model, ModelError, Outputs, Tensor};
use kaskade_testkit::{TIMEOUT, wait_until};
use serde_json::json;

use crate::support::{Slow, Stand, exchange, request};

const INFER: &str = "/v2/models/app/infer";

fn body() -> String {
    json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [3]}]}).to_string()
}

fn slow(time: Duration, limits: Limits) -> Stand {
    let service = Service::new("app").model("slow", move || Ok::<_, String>(Slow(time)));
    Stand::of(service, AppOptions::new("app").default_budget(TIMEOUT), limits)
}

#[test]
fn a_budget_ends_a_request_and_a_full_gateway_refuses_the_next() {
    let limits = Limits {
        max_in_flight: 1,
        ..Limits::default()
    };
    let stand = slow(Duration::from_millis(1_500), limits);
    let late = stand.post(INFER, &[("x-kaskade-budget-ms", "100")], body());
    assert_eq!(late.status, 504, "{}", late.json());
    assert_eq!(
        stand
            .post(INFER, &[("x-kaskade-budget-ms", "never")], body())
            .status,
        400
    );
    let address = stand.address();
    let first = thread::spawn(move || {
        loop {
            let answer = exchange(address, &request("POST", INFER, &[], body().as_bytes()));
            // The other client may have the only permit.
            if answer.status != 429 {
                return answer;
            }
        }
    });
    wait_until("the gateway is full", TIMEOUT, || {
        let refused = stand.post(INFER, &[], "{");
        if refused.status == 429 {
            assert_eq!(refused.header("x-should-retry"), Some("true"));
            assert!(refused.header("retry-after-ms").is_some());
        }
        refused.status == 429
    });
    // Probes answer in a full gateway.
    assert_eq!(stand.get("/live").status, 200);
    assert_eq!(first.join().unwrap().status, 200);
}

#[test]
fn bodies_are_compressed_both_ways_and_bounded() {
    let limits = Limits {
        max_body: 100_000,
        compress_from: 100,
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let numbers = vec![7; 20_000];
    let plain = json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [20_000], "data": numbers}]})
        .to_string();
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(plain.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let headers = [("content-encoding", "GZip"), ("accept-encoding", "gzip")];
    let answer = stand.post(INFER, &headers, &packed);
    assert_eq!(
        (answer.status, answer.header("content-encoding")),
        (200, Some("gzip"))
    );
    assert!(answer.body.len() < 5_000, "{}", answer.body.len());
    let large = vec![b' '; 100_001];
    assert_eq!(stand.post(INFER, &[], &large).status, 413);
    let mut bomb = GzEncoder::new(Vec::new(), Compression::fast());
    bomb.write_all(&large).unwrap();
    assert_eq!(
        stand
            .post(INFER, &[("content-encoding", "gzip")], bomb.finish().unwrap())
            .status,
        413
    );
    assert_eq!(
        stand.post(INFER, &[("content-encoding", "gzip")], "no").status,
        400
    );
    let unknown = stand.post(INFER, &[("content-encoding", "br")], "no");
    assert_eq!(
        (unknown.status, unknown.header("accept-encoding")),
        (415, Some("gzip, deflate"))
    );
}

#[test]
fn bodies_take_no_more_memory_than_allowed_while_they_arrive() {
    let limits = Limits {
        max_body: 1_000_000,
        max_in_flight_bytes: 1_000_000,
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let begin = || {
        let mut client = TcpStream::connect(stand.address()).unwrap();
        let head = format!("POST {INFER} HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        client.write_all(&vec![b' '; 900_000]).unwrap();
        client
    };
    let mut first = begin();
    let padded = body() + &" ".repeat(200_000);
    let ask = || stand.post(INFER, &[], &padded);
    wait_until("the first body takes the room", TIMEOUT, || {
        let refused = ask();
        if refused.status == 429 {
            assert_eq!(refused.header("x-kaskade-fault"), Some("KSK0006"));
            return true;
        }
        // The first may have been refused, because the other came while it arrived.
        first = begin();
        false
    });
    assert_eq!(
        stand.post(INFER, &[], body()).status,
        200,
        "a small one finds room"
    );
    drop(first);
    wait_until("its room is free again", TIMEOUT, || ask().status == 200);
}

#[test]
fn a_refusal_is_seen_by_a_client_that_is_still_sending() {
    let limits = Limits {
        max_body: 1_000,
        keys: vec![TenantKey {
            tenant: "blue".to_owned(),
            key: "secret".to_owned(),
            max_in_flight: None,
            rate: None,
            operator: false,
        }],
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "secret");
    // More than the buffers of both ends hold.
    let large = vec![b' '; 48 << 20];
    let key = ("authorization", "Bearer secret");
    let send = |headers: &[(&str, &str)], body: &[u8]| {
        exchange(stand.address(), &request("POST", INFER, headers, body)).status
    };
    assert_eq!(send(&[key], &large), 413);
    assert_eq!(send(&[], &large), 401);
    // A body of a length that is not known before.
    let head = format!(
        "POST {INFER} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n{}: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        key.0, key.1
    );
    let chunks = [b"1000000\r\n", &large[..16 << 20], b"\r\n"].concat().repeat(3);
    let whole = [head.as_bytes(), &chunks, b"0\r\n\r\n"].concat();
    assert_eq!(exchange(stand.address(), &whole).status, 413);
}

#[test]
fn a_client_that_expects_to_be_asked_for_its_body_sends_none_that_is_refused() {
    let limits = Limits {
        max_body: 1_000,
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let ask = |length: usize| {
        let head = format!(
            "POST {INFER} HTTP/1.1\r\nhost: here\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
        );
        let mut stream = TcpStream::connect(stand.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, first)
    };
    assert_eq!(&ask(1_001).1, b"HTTP/1.1 413");
    let body = body();
    let (mut stream, first) = ask(body.len());
    assert_eq!(&first, b"HTTP/1.1 100");
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("HTTP/1.1 200"), "{answer}");
}

#[test]
fn a_request_needs_the_key_of_a_tenant_within_its_limits() {
    let key = |tenant: &str, key: &str, rate| TenantKey {
        tenant: tenant.to_owned(),
        key: key.to_owned(),
        max_in_flight: None,
        rate,
        operator: false,
    };
    let limits = Limits {
        keys: vec![key("blue", "secret", None), key("red", "slow", Some(0.001))],
        ..Limits::default()
    };
    assert!(!format!("{limits:?}").contains("secret"));
    let service = Service::new("app").model("slow", || Ok::<_, String>(Slow(Duration::ZERO)));
    let stand = {
        // The stand looks at the plan, which needs a key.
        let open = Stand::of(service, AppOptions::new("app"), Limits::default());
        let gateway = kaskade_gateway::Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
        let bus = kaskade_actors::bus::BusConfig::new("app").url(open.node.bus().url());
        gateway
            .serve(AppOptions::new("app").default_budget(TIMEOUT), bus)
            .unwrap();
        (open, gateway)
    };
    let post_with = |scheme: &str, key: &str| {
        let value = format!("{scheme} {key}");
        let headers: &[(&str, &str)] = if key.is_empty() {
            &[]
        } else {
            &[("authorization", &value)]
        };
        exchange(
            stand.1.address(),
            &request("POST", INFER, headers, body().as_bytes()),
        )
    };
    let post = |key: &str| post_with("Bearer", key);
    assert_eq!(post("").status, 401);
    assert_eq!(post("secre").status, 401);
    assert_eq!(post("secret").status, 200);
    assert_eq!(post_with("bearer", "secret").status, 200, "schemes have no case");
    assert_eq!(post_with("Basic", "secret").status, 401);
    assert_eq!(post("slow").status, 200);
    assert_eq!(post("slow").status, 429);
}

#[test]
fn the_dashboard_opens_with_the_key_of_an_operator_and_its_streams_hold_permits() {
    let key = |tenant: &str, operator| TenantKey {
        tenant: tenant.to_owned(),
        key: tenant.to_owned(),
        max_in_flight: Some(1),
        rate: None,
        operator,
    };
    let limits = Limits {
        keys: vec![key("blue", false), key("ops", true)],
        ..Limits::default()
    };
    let stand = Stand::keyed(limits, "blue");
    let ask = |path: &str, tenant: &str| {
        let value = format!("Bearer {tenant}");
        request("GET", path, &[("authorization", &value)], b"")
    };
    let refused = exchange(stand.address(), &ask("/dashboard/events/app", "blue"));
    assert_eq!(refused.status, 403);
    assert_eq!(refused.header("x-kaskade-fault"), Some("operators_only"));
    assert_eq!(
        exchange(stand.address(), &ask("/dashboard/apps", "blue")).status,
        200
    );

    let mut stream = TcpStream::connect(stand.address()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&ask("/dashboard/events/app", "ops")).unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let second = || exchange(stand.address(), &ask("/dashboard/apps", "ops")).status;
    assert_eq!(second(), 429, "the stream is a request in progress");
    drop(stream);
    wait_until("the permit is free", TIMEOUT, || second() == 200);
}

/// Answers with a text, and notes the largest batch that it got.
struct Widest(Arc<AtomicUsize>);

impl Model for Widest {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        self.0.fetch_max(batch.len(), Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        let text = || Ok(vec![Tensor::from_texts("text", &["a"])?]);
        batch.iter().map(|_| text()).collect()
    }
}

#[test]
fn every_prompt_of_a_request_counts_for_the_limits() {
    let widest = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&widest);
    let service = Service::new("app").model("wide", move || Ok::<_, String>(Widest(Arc::clone(&counted))));
    let limits = Limits {
        max_in_flight: 100,
        keys: vec![
            TenantKey {
                tenant: "two".to_owned(),
                key: "two".to_owned(),
                max_in_flight: Some(2),
                rate: None,
                operator: false,
            },
            TenantKey {
                tenant: "slow".to_owned(),
                key: "slow".to_owned(),
                max_in_flight: None,
                rate: Some(4.0),
                operator: false,
            },
        ],
        ..Limits::default()
    };
    let open = Stand::of(service, AppOptions::new("app"), Limits::default());
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), limits).unwrap();
    let bus = BusConfig::new("app").url(open.node.bus().url());
    gateway
        .serve(AppOptions::new("app").default_budget(TIMEOUT), bus)
        .unwrap();
    let ask = |key: &str, prompts: usize, stream: bool| {
        let prompts: Vec<String> = (0..prompts).map(|number| number.to_string()).collect();
        let asked = json!({"prompt": prompts, "stream": stream}).to_string();
        let key = format!("Bearer {key}");
        let headers = [("authorization", key.as_str())];
        exchange(
            gateway.address(),
            &request("POST", "/v1/completions", &headers, asked.as_bytes()),
        )
    };
    let answer = ask("two", 7, false);
    assert_eq!(answer.json()["choices"].as_array().unwrap().len(), 7);
    let streamed = ask("two", 7, true);
    let text = String::from_utf8(streamed.body).unwrap();
    assert_eq!(text.matches(r#""finish_reason":"stop""#).count(), 7, "{text}");
    assert_eq!(widest.load(Ordering::SeqCst), 2, "the tenant has two permits");
    // Without a limit of the tenant, an eighth of the gateway's.
    assert_eq!(ask("slow", 40, false).status, 200);
    assert!(widest.load(Ordering::SeqCst) <= 12);
    // The rate has to make up for 40 prompts.
    assert_eq!(ask("slow", 1, false).status, 429);
}

#[test]
fn a_connection_without_a_complete_request_head_is_closed() {
    let limits = Limits {
        head_pause: Duration::from_millis(200),
        ..Limits::default()
    };
    let stand = Stand::cascade(limits);
    let begins = |sent: &[u8]| {
        let mut stream = TcpStream::connect(stand.address()).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(sent).unwrap();
        stream
    };
    // Nothing; half a head; half of what HTTP/2 begins with; HTTP/2 without a request.
    let halves: [&[u8]; 4] = [
        b"",
        b"POST /v2/models/app/infer HTTP/1.1\r\nhost: here\r\n",
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    for mut stream in halves.map(begins) {
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    // A connection that is kept is closed likewise.
    let mut kept = begins(b"GET /live HTTP/1.1\r\nhost: here\r\n\r\n");
    let mut answered = Vec::new();
    kept.read_to_end(&mut answered).unwrap();
    assert!(answered.starts_with(b"HTTP/1.1 200"));
    // The time of a request itself does not count.
    let late = slow(
        Duration::from_millis(600),
        Limits {
            head_pause: Duration::from_millis(200),
            ..Limits::default()
        },
    );
    assert_eq!(late.post(INFER, &[], body()).status, 200);
}

#[test]
fn a_gateway_that_stops_answers_what_it_has() {
    let stand = slow(Duration::from_millis(500), Limits::default());
    let address = stand.address();
    let asked = thread::spawn(move || exchange(address, &request("POST", INFER, &[], body().as_bytes())));
    wait_until("the request is in flight", TIMEOUT, || {
        stand.node.metrics().read().accepted == 1
    });
    let begun = Instant::now();
    stand.gateway.stop();
    assert_eq!(asked.join().unwrap().status, 200);
    assert!(begun.elapsed() < TIMEOUT);
    assert!(TcpStream::connect(address).is_err(), "it listens no more");
}

#[test]
fn parts_of_a_request_wait_until_the_app_has_room() {
    let widest = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&widest);
    let ingress = IngressConfig {
        max_in_flight: 3,
        ..IngressConfig::default()
    };
    let service = Service::new("app")
        .ingress(ingress)
        .model("wide", move || Ok::<_, String>(Widest(Arc::clone(&counted))));
    let options = AppOptions::new("app").default_budget(TIMEOUT).max_budget(TIMEOUT);
    let stand = Stand::of(service, options, Limits::default());
    let address = stand.gateway.address();
    let ask = |stream: bool| {
        let prompts: Vec<String> = (0..20).map(|number| number.to_string()).collect();
        let asked = json!({"prompt": prompts, "stream": stream}).to_string();
        thread::spawn(move || {
            exchange(
                address,
                &request("POST", "/v1/completions", &[], asked.as_bytes()),
            )
        })
    };
    let asked = [false, true, false, true].map(ask);
    let answers = asked.map(|asked| asked.join().unwrap());
    for answer in answers {
        let text = String::from_utf8(answer.body).unwrap();
        assert_eq!(
            (answer.status, text.matches("\"finish_reason\":\"stop\"").count()),
            (200, 20),
            "{text}"
        );
    }
    assert!(widest.load(Ordering::SeqCst) <= 3);
}
