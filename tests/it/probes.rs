//! Probes and metrics of a served app over HTTP.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::process::Command;

use kaskade_actors::metrics::{Gauges, Metrics};
use kaskade_testkit::{
    DIGITS, NatsOptions, NatsServer, ROOT, ServeProcess, TIMEOUT, command, free_port, http_get as get,
    is_ready, json, kaskade, said, wait_until,
};

fn probe(address: &str, what: &str) -> (Option<i32>, String) {
    said(&["probe", "--http", address, what])
}

#[test]
fn a_served_app_is_live_and_ready_and_has_metrics() {
    let mut served = ServeProcess::start(&["--app", DIGITS, "--http", "127.0.0.1:0"]);
    let address = served.probes();
    // The listener answers before the models are loaded; the app is ready afterwards.
    wait_until("it is ready", TIMEOUT, || {
        let (head, body) = get(&address, "/ready").unwrap();
        match head.split(' ').nth(1) {
            Some("200") => true,
            Some("503") => {
                // The gateway of the process hears its first heartbeat a little later.
                assert!(
                    body.starts_with("starting") || body.starts_with("no heartbeat"),
                    "{body}"
                );
                false
            }
            _ => panic!("{head}"),
        }
    });
    let url = served.line("serving `digits` on ");
    let url = url.split(',').next().unwrap();
    assert!(get(&address, "/live").unwrap().0.starts_with("HTTP/1.1 200"));
    assert!(get(&address, "/other").unwrap().0.starts_with("HTTP/1.1 404"));
    let asked = kaskade(ROOT, &["infer", "--app", DIGITS, "--nats", url, "--index", "3"]);
    assert!(asked.status.success());
    let (head, page) = get(&address, "/metrics").unwrap();
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in [
        "kaskade_ready{app=\"digits\"} 1",
        "kaskade_answered_requests_total{app=\"digits\"} 1",
        "kaskade_variant_requests_total{app=\"digits\",variant=\"digits-large\"} 1",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "{line}\nis not in\n{page}"
        );
    }
    assert_eq!(probe(&address, "ready"), (Some(0), "ready\n".to_owned()));
    assert_eq!(probe(&address, "live"), (Some(0), "live\n".to_owned()));
    let as_json = kaskade(ROOT, &["probe", "--http", &address, "ready", "--json"]);
    assert_eq!(
        json(&as_json),
        serde_json::json!({"ready": true, "message": "ready"})
    );
    let port = address.rsplit_once(':').unwrap().1;
    for named in [format!("localhost:{port}"), format!("http://{address}/")] {
        assert_eq!(probe(&named, "live"), (Some(0), "live\n".to_owned()), "{named}");
    }
    served.end();
    assert_eq!(get(&address, "/live"), None, "the listener ends with the process");
    let (code, said) = probe(&address, "live");
    assert_eq!(code, Some(1));
    assert!(said.contains("start `kaskade serve --http"), "{said}");
}

/// Without descriptors it waited in silence.
#[test]
fn connections_that_cannot_be_accepted_are_logged_and_counted() {
    let line = [
        "serve",
        "--app",
        DIGITS,
        "--listen",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
    ];
    let serve = command(ROOT, &line);
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    limited
        .arg(serve.get_program())
        .args(serve.get_args())
        .current_dir(ROOT);
    let mut served = ServeProcess::run(&mut limited);
    let address = served.probes();
    wait_until("it is ready", TIMEOUT, || is_ready(&address));
    let idle: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&address).unwrap()).collect();
    served.line("connections cannot be accepted");
    drop(idle);
    wait_until("it accepts connections again", TIMEOUT, || is_ready(&address));
    let (_, page) = get(&address, "/metrics").unwrap();
    let count = page
        .lines()
        .find_map(|line| line.strip_prefix("kaskade_gateway_accept_failures_total "));
    assert!(count.unwrap().parse::<u64>().unwrap() > 0);
}

#[test]
fn an_ingress_without_a_plan_is_live_and_not_ready() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let (url, listen) = (server.url(), format!("127.0.0.1:{}", free_port()));
    let ingress = [
        "--app",
        DIGITS,
        "--nats",
        &url,
        "--role",
        "ingress",
        "--stored-plan",
        "--http",
        &listen,
    ];
    let _ingress = ServeProcess::start(&ingress);
    wait_until("the ingress reports that it has no plan", TIMEOUT, || {
        get(&listen, "/ready").is_some_and(|(_, body)| body.starts_with("no plan yet"))
    });
    assert!(get(&listen, "/live").unwrap().0.starts_with("HTTP/1.1 200"));
    let (code, said) = probe(&listen, "ready");
    assert_eq!(code, Some(1));
    assert!(said.contains("kaskade plan apply"), "{said}");
    // A worker stores the plan, and both become ready.
    let mut worker = ServeProcess::start(&[
        "--app",
        DIGITS,
        "--nats",
        &url,
        "--role",
        "worker",
        "--http",
        "127.0.0.1:0",
    ]);
    let there = worker.probes();
    wait_until("both are ready", TIMEOUT, || {
        is_ready(&listen) && is_ready(&there)
    });
    // It said `ready`, and nothing else.
    worker.end();
    wait_until("the ingress states that nothing serves the app", TIMEOUT, || {
        get(&listen, "/ready").is_some_and(|(head, body)| {
            head.contains(" 200 ") && body.starts_with("ready; ") && body.contains("no live replica")
        })
    });
}

#[test]
fn an_invalid_or_used_address_is_refused() {
    let refused = |address: &str| {
        said(&[
            "serve",
            "--app",
            DIGITS,
            "--listen",
            "127.0.0.1:0",
            "--http",
            address,
        ])
    };
    let (code, said) = refused("here");
    assert_eq!(code, Some(2));
    assert!(said.contains("write IP address and port"), "{said}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, said) = refused(&taken.local_addr().unwrap().to_string());
    assert_eq!(code, Some(1));
    assert!(said.contains("give another address"), "{said}");
}

/// The metrics that a text names; samples of histograms count as their metric.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !word(character));
    let named = words.filter(|word| word.starts_with("kaskade_"));
    let metric = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        let stem = parts.iter().find_map(|part| name.strip_suffix(part));
        stem.unwrap_or(name).to_owned()
    };
    named.map(metric).collect()
}

/// The metrics of a process without a gateway.
fn metrics_there() -> BTreeSet<String> {
    metrics_in(&Metrics::default().text("digits", &Gauges::default()))
}

#[test]
fn alerts_name_metrics_that_exist() {
    let named = metrics_in(include_str!("../../docker/prometheus/alerts.yml"));
    assert!(named.len() > 5, "{named:?}");
    let there = metrics_there();
    assert_eq!(
        named.difference(&there).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}

#[test]
fn the_dashboard_shows_exactly_the_metrics_that_exist() {
    let shown = metrics_in(include_str!("../../docker/grafana/dashboards/kaskade.json"));
    let there = metrics_there();
    // That of gateways is in their own page.
    assert_eq!(
        shown.difference(&there).collect::<Vec<_>>(),
        ["kaskade_gateway_request_seconds"]
    );
    assert_eq!(
        there.difference(&shown).collect::<Vec<_>>(),
        Vec::<&String>::new()
    );
}
