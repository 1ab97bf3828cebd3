//! Many clients at once: some vanish, some do not read. Several gateways before one app, with a real nats-server between.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kaskade_actors::Service;
use kaskade_actors::bus::BusConfig;
use kaskade_gateway::{AppOptions, Gateway, Limits, Streaming};
use kaskade_testkit::{NatsOptions, NatsServer, TIMEOUT, wait_until};
use serde_json::json;

use crate::streaming;
use crate::support::{Echo, exchange, request};

/// Clients that vanish: 1,000, or what the limit of open files leaves; client and server are in this process.
fn clients() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let clients = 1_000.min(most.saturating_sub(200) / 2);
    if clients < 1_000 {
        eprintln!("!! only {clients} clients: raise `ulimit -n` to 2200 for 1,000");
    }
    clients
}

#[test]
fn clients_that_vanish_in_mid_stream_leave_no_request_running() {
    let (stand, in_model) = streaming::stand(100_000, Duration::from_millis(500), Streaming::AfterCertain);
    let clients = clients();
    let asked = json!({"prompt": "x", "stream": true}).to_string();
    let asked = request("POST", "/v1/completions", &[], asked.as_bytes());
    let streams: Vec<TcpStream> = (0..clients)
        .map(|_| {
            let mut stream = TcpStream::connect(stand.address()).unwrap();
            stream.write_all(&asked).unwrap();
            stream
        })
        .collect();
    wait_until("the model has all requests", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == clients
    });
    for mut stream in &streams {
        let mut first = [0; 12];
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
    }
    let begun = Instant::now();
    drop(streams);
    wait_until("no request is in the model", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 0
    });
    eprintln!("{clients} requests ended after {:?}", begun.elapsed());
    // The gateway is as before.
    assert_eq!(stand.get("/ready").status, 200);
}

#[test]
fn a_reader_that_does_not_read_stalls_no_other() {
    let (stand, in_model) = streaming::stand(200_000, Duration::ZERO, Streaming::AfterCertain);
    let asked = json!({"prompt": "x", "stream": true}).to_string();
    let mut idle = TcpStream::connect(stand.address()).unwrap();
    idle.write_all(&request("POST", "/v1/completions", &[], asked.as_bytes()))
        .unwrap();
    wait_until("the model has the first request", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 1
    });
    let mut reader = TcpStream::connect(stand.address()).unwrap();
    reader
        .write_all(&request("POST", "/v1/completions", &[], asked.as_bytes()))
        .unwrap();
    reader.set_read_timeout(Some(TIMEOUT)).unwrap();
    // Far more than the buffers of a connection hold.
    let mut bytes = vec![0; 2 << 20];
    reader.read_exact(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn a_client_that_reads_nothing_of_its_stream_frees_its_place() {
    let limits = Limits {
        max_in_flight: 1,
        body_pause: Duration::from_millis(300),
        ..Limits::default()
    };
    let (stand, in_model) = streaming::stand_within(limits, 200_000, Duration::ZERO, Streaming::AfterCertain);
    let asked = json!({"prompt": "x", "stream": true}).to_string();
    let mut idle = TcpStream::connect(stand.address()).unwrap();
    idle.write_all(&request("POST", "/v1/completions", &[], asked.as_bytes()))
        .unwrap();
    wait_until("the model has the request", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 1
    });
    // A body that cannot be read, so that no other request begins.
    let ask = || stand.post("/v1/completions", &[], "{").status;
    assert_eq!(ask(), 429, "the place is taken");
    wait_until("the place is free", TIMEOUT, || ask() == 400);
    wait_until("the request is cancelled", TIMEOUT, || {
        in_model.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn several_gateways_share_an_app_over_a_nats_server_and_keep_nothing() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new("app").url(server.url());
    let service = Service::new("app").model("echo", || Ok::<_, String>(Echo(0.9)));
    let node = service.bus(bus.clone()).start().unwrap();
    let gateways = [0, 1].map(|_| {
        let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
        let options = AppOptions::new("app").default_budget(TIMEOUT);
        gateway.serve(options, bus.clone()).unwrap();
        gateway
    });
    for gateway in &gateways {
        wait_until("the gateway hears the app", TIMEOUT, || {
            exchange(gateway.address(), &request("GET", "/ready", &[], b"")).status == 200
        });
    }
    // A balancer sends each request anywhere; it may even end a gateway between two.
    let asked =
        json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]}).to_string();
    let ask = |gateway: &Gateway| {
        exchange(
            gateway.address(),
            &request("POST", "/v2/models/app/infer", &[], asked.as_bytes()),
        )
    };
    for round in 0..6 {
        let answer = ask(&gateways[round % 2]);
        assert_eq!(answer.status, 200, "{}", answer.json());
        assert!(answer.header("set-cookie").is_none());
        assert_eq!(answer.json()["outputs"][0]["data"], json!([7]));
    }
    let [first, second] = gateways;
    first.stop();
    assert_eq!(ask(&second).status, 200);
    // Without its app a gateway is not ready, and says so instead of waiting.
    node.stop();
    wait_until("the gateway misses the app", TIMEOUT, || {
        exchange(second.address(), &request("GET", "/ready", &[], b"")).status == 503
    });
    let short = [("x-kaskade-budget-ms", "300")];
    let refused = request("POST", "/v2/models/app/infer", &short, asked.as_bytes());
    let refused = exchange(second.address(), &refused);
    // Whether the last look for the app or the budget ends first is a race.
    assert!(matches!(refused.status, 503 | 504), "{}", refused.json());
}

/// The message named the address of the broker.
#[test]
fn a_client_learns_that_the_broker_is_gone_but_not_where_it_was() {
    let mut server = NatsServer::start(NatsOptions::jetstream());
    let bus = BusConfig::new("app").url(server.url());
    let service = Service::new("app").model("echo", || Ok::<_, String>(Echo(0.9)));
    let node = service.bus(bus.clone()).start().unwrap();
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    gateway.serve(AppOptions::new("app"), bus).unwrap();
    let probe = || exchange(gateway.address(), &request("GET", "/ready", &[], b"")).status;
    wait_until("the gateway hears the app", TIMEOUT, || probe() == 200);
    let url = server.url();
    server.stop();
    wait_until("the gateway misses its broker", TIMEOUT, || probe() == 503);
    let asked =
        json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]}).to_string();
    let short = [("x-kaskade-budget-ms", "300")];
    let refused = request("POST", "/v2/models/app/infer", &short, asked.as_bytes());
    let refused = exchange(gateway.address(), &refused);
    let text = String::from_utf8(refused.body).unwrap();
    assert_eq!(refused.status, 503, "{text}");
    assert!(text.contains("KSK0012") && !text.contains(&url), "{text}");
    drop(node);
}

/// Balancers and clients take 404 for permanent.
#[test]
fn an_app_without_an_ingress_is_unavailable_and_not_unknown() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let gateway = Gateway::listen("127.0.0.1:0".parse().unwrap(), Limits::default()).unwrap();
    gateway
        .serve(AppOptions::new("app"), BusConfig::new("app").url(server.url()))
        .unwrap();
    let asked =
        json!({"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [7]}]}).to_string();
    let short = [("x-kaskade-budget-ms", "300")];
    let asked = request("POST", "/v2/models/app/infer", &short, asked.as_bytes());
    let mut refused = exchange(gateway.address(), &asked);
    wait_until("the gateway is connected", TIMEOUT, || {
        refused = exchange(gateway.address(), &asked);
        !String::from_utf8_lossy(&refused.body).contains("KSK0012")
    });
    let text = String::from_utf8(refused.body.clone()).unwrap();
    assert_eq!(refused.status, 503, "{text}");
    assert!(text.contains("KSK0007"), "{text}");
}
