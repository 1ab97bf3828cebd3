//! `kaskade serve`, `infer`, `bench`, `submit`, `plan request` and `top` over a broker.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use kaskade_testkit::{
    DIGITS, NatsOptions, NatsServer, Process, ROOT, ServeProcess, TIMEOUT, command, digits_app,
    digits_profile, free_port, http_get, http_post, http_post_within, is_ready, json, kaskade, refusal, text,
    wait_until,
};
use serde_json::Value;

/// The digits app with its smallest model alone.
fn quick_app(folder: &Path) -> String {
    digits_app(folder, "")
}

/// Serves an app on an embedded broker; returns the URL of the broker too.
fn serve(app: &str) -> (ServeProcess, String) {
    let mut served = ServeProcess::start(&["--app", app]);
    let url = served.url();
    (served, url)
}

/// Returns a standard error that has no room and is not read, and the end that keeps it open.
fn full_stderr() -> (Stdio, UnixStream) {
    let (mut written, unread) = UnixStream::pair().unwrap();
    written.set_nonblocking(true).unwrap();
    while written.write_all(&[b'x'; 1024]).is_ok() {}
    written.set_nonblocking(false).unwrap();
    (OwnedFd::from(written).into(), unread)
}

/// Every request, probe and signal waited for whatever reads the log.
#[test]
fn a_standard_error_that_is_not_read_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let address = format!("127.0.0.1:{}", free_port());
    let line = [
        "serve",
        "--app",
        &app,
        "--listen",
        "127.0.0.1:0",
        "--http",
        &address,
    ];
    let mut command = command(ROOT, &line);
    let (stderr, _unread) = full_stderr();
    command.env("KASKADE_LOG", "trace").stderr(stderr);
    let mut served = Process::start(&mut command);
    wait_until("it is ready", TIMEOUT, || is_ready(&address));
    let (head, _) = http_get(&address, "/v2/models/digits").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    served.terminate();
    let mut status = None;
    wait_until("the process ends", TIMEOUT, || {
        status = served.exited();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
}

#[test]
fn one_request_is_answered_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let reply = json(&kaskade(
        ROOT,
        &["infer", "--app", &app, "--index", "0", "--json"],
    ));
    assert_eq!(reply["variant"], "digits-tiny");
    assert_eq!(reply["hops"].as_array().unwrap().len(), 1);
    assert_eq!(reply["outputs"][0]["shape"], serde_json::json!([10]));
    assert!(reply["label"].is_u64());
}

#[test]
fn tensors_are_answered_and_wrong_shapes_are_refused_by_code() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let ask = |shape: &str, count: usize| {
        let data = vec!["0.5"; count].join(",");
        let path = folder.path().join("tensors.json");
        let body = format!(
            r#"{{"inputs": [{{"name": "image", "shape": {shape}, "datatype": "FP32", "data": [{data}]}}]}}"#
        );
        std::fs::write(&path, body).unwrap();
        kaskade(
            ROOT,
            &[
                "infer",
                "--app",
                &app,
                "--tensors",
                path.to_str().unwrap(),
                "--json",
            ],
        )
    };
    assert_eq!(json(&ask("[1, 8, 8]", 64))["variant"], "digits-tiny");
    let refused = ask("[1, 9, 9]", 81);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{message}");
    assert!(message.contains("KSK0003"), "{message}");
}

#[test]
fn a_served_app_answers_clients_and_drains_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let (served, url) = serve(&app);
    let reply = json(&kaskade(
        ROOT,
        &["infer", "--app", &app, "--nats", &url, "--index", "1", "--json"],
    ));
    assert_eq!(reply["variant"], "digits-tiny");
    let named = [
        "infer", "--app", &app, "--nats", &url, "--index", "1", "--id", "order-17",
    ];
    let named = kaskade(ROOT, &named);
    assert!(
        text(&named.stdout).ends_with("\nid order-17\n"),
        "{}",
        text(&named.stdout)
    );
    let figures = json(&kaskade(
        ROOT,
        &[
            "bench",
            "--app",
            &app,
            "--nats",
            &url,
            "--concurrency",
            "4",
            "--duration",
            "300ms",
            "--warm-up",
            "50ms",
            "--json",
        ],
    ));
    assert!(figures["answered"].as_u64().unwrap() > 0);
    assert_eq!(figures["sent"], figures["answered"]);
    assert!(
        figures["joules_per_request"].is_null(),
        "another process's energy is unknown"
    );
    let rest = served.end();
    assert!(rest.contains("draining") && rest.contains("stopped"), "{rest}");
}

/// The digits app, served by a gear plan for 200 requests/s, with a planner.
fn planning_app(folder: &Path, more: &str) -> String {
    let app = quick_app(folder);
    let profile = digits_profile();
    let gears = folder.join("gears.json").display().to_string();
    let made = kaskade(
        ROOT,
        &[
            "plan",
            "gears",
            "--app",
            &app,
            "--profile",
            &profile,
            "--rate",
            "200",
            "--out",
            &gears,
            "--json",
        ],
    );
    assert!(json(&made).get("plan").is_some());
    let text = std::fs::read_to_string(&app).unwrap();
    let table = format!("[planner]\nprofile = \"{profile}\"\n{more}\n");
    let text = text.replace("{ single = \"digits-tiny\" }", "{ file = \"gears.json\" }");
    std::fs::write(&app, format!("{text}\n{table}")).unwrap();
    app
}

#[test]
fn a_served_app_replans_on_request_and_keeps_its_plan_on_failure() {
    let folder = tempfile::tempdir().unwrap();
    let app = planning_app(folder.path(), "");
    let (_served, url) = serve(&app);
    let replan = |rate: &str| {
        kaskade(
            ROOT,
            &[
                "plan", "request", "digits", "--nats", &url, "--rate", rate, "--json",
            ],
        )
    };
    let report = json(&replan("2000"));
    assert_eq!(report, serde_json::json!({"outcome": "adopted", "epoch": 2}));
    let report = json(&replan("2000"));
    assert_eq!(report, serde_json::json!({"outcome": "unchanged", "epoch": 2}));
    let refused = replan("1000000000");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no new plan") && said.contains("more devices"),
        "{said}"
    );
    let report: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert_eq!(report["outcome"], "refused");
    assert!(
        report["reason"].as_str().unwrap().contains("more devices"),
        "{report}"
    );
    let asked = ["infer", "--app", &app, "--nats", &url, "--index", "3", "--json"];
    assert!(
        json(&kaskade(ROOT, &asked))["label"].is_u64(),
        "the running plan keeps serving"
    );
}

#[test]
fn a_restarted_planner_keeps_the_stored_plan() {
    let nats = NatsServer::start(NatsOptions::jetstream());
    let (folder, url) = (tempfile::tempdir().unwrap(), nats.url().clone());
    let app = planning_app(folder.path(), "");
    let start = |role| {
        let mut served = ServeProcess::start(&["--app", &app, "--nats", &url, "--role", role]);
        served.line("serving");
        served
    };
    let _others = [start("worker"), start("ingress")];
    let replan = || {
        let asked = [
            "plan", "request", "--app", &app, "--nats", &url, "--rate", "2000", "--json",
        ];
        json(&kaskade(ROOT, &asked))
    };
    let planner = start("planner");
    let adopted = replan();
    assert_eq!(adopted.get("outcome"), Some(&Value::from("adopted")), "{adopted}");
    drop(planner);
    let _again = start("planner");
    let unchanged = serde_json::json!({"outcome": "unchanged", "epoch": adopted.get("epoch")});
    assert_eq!(replan(), unchanged);
}

/// It was shown as an app without load.
#[test]
fn top_of_an_app_that_nothing_serves_fails() {
    let nats = NatsServer::start(NatsOptions::jetstream());
    let url = nats.url();
    let top = ["top", "nosuch", "--nats", &url, "--count", "1", "--json"];
    let message = refusal(&kaskade(ROOT, &top));
    assert!(
        message.contains("KSK0004") && message.contains("nosuch"),
        "{message}"
    );
}

#[test]
fn a_missing_planner_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let (_served, url) = serve(&app);
    let refusal = |args: &[&str]| refusal(&kaskade(ROOT, args));
    let output = kaskade(ROOT, &["plan", "request", "digits", "--nats", &url]);
    assert_eq!(output.status.code(), Some(75), "a planner may start");
    let message = text(&output.stderr);
    assert!(
        message.contains("kaskade.digits.replan") && message.contains("[planner]"),
        "{message}"
    );
    let message = refusal(&["serve", "--app", &app, "--role", "planner", "--nats", &url]);
    assert!(message.contains("[planner]"), "{message}");
}

#[test]
fn an_open_loop_keeps_its_rate_and_reports_accuracy() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let figures = json(&kaskade(
        ROOT,
        &[
            "bench",
            "--app",
            &app,
            "--rate",
            "200",
            "--arrivals",
            "constant",
            "--duration",
            "1s",
            "--warm-up",
            "100ms",
            "--json",
        ],
    ));
    // 200 per second; the one due at the end may not be sent.
    let sent = figures["sent"].as_u64().unwrap();
    assert!((198..=201).contains(&sent), "{figures}");
    assert_eq!(figures["answered"], figures["sent"], "{figures}");
    assert_eq!(figures["errors"], serde_json::json!({}));
    assert!(figures["accuracy"].as_f64().unwrap() > 0.85, "{figures}");
    assert!(figures["joules_per_request"].as_f64().unwrap() > 0.0, "{figures}");
}

#[test]
fn an_unreachable_broker_and_an_unserved_app_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let absent = kaskade(
        ROOT,
        &[
            "infer",
            "--app",
            &app,
            "--index",
            "0",
            "--nats",
            "nats://127.0.0.1:1",
        ],
    );
    let message = text(&absent.stderr);
    assert_eq!(absent.status.code(), Some(75), "{message}");
    assert!(
        message.contains("127.0.0.1:1") && message.contains("kaskade serve"),
        "{message}"
    );
    let alone = kaskade(ROOT, &["serve", "--app", &app, "--role", "worker"]);
    let message = text(&alone.stderr);
    assert_eq!(alone.status.code(), Some(2), "{message}");
    assert!(message.contains("--nats"), "{message}");
    let (_served, url) = serve(&app);
    let other = std::fs::read_to_string(&app)
        .unwrap()
        .replace("name = \"digits\"", "name = \"other\"");
    let path = folder.path().join("other.toml");
    std::fs::write(&path, other).unwrap();
    let unserved = [
        "infer",
        "--app",
        path.to_str().unwrap(),
        "--index",
        "0",
        "--nats",
        &url,
    ];
    let message = text(&kaskade(ROOT, &unserved).stderr);
    assert!(
        message.contains("KSK0004") && message.contains("`other`"),
        "{message}"
    );
}

#[test]
fn an_app_is_asked_by_its_name_alone() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let mut served = ServeProcess::start(&["--app", &app]);
    let url = served.url();
    let command = served.line("send a request: kaskade ");
    assert_eq!(command, format!("infer --app {app} --index 0 --nats {url}"));
    // The clients run in a folder that has nothing but the request.
    let client = tempfile::tempdir().unwrap();
    let data = vec!["0.5"; 64].join(",");
    let body = format!(
        r#"{{"inputs": [{{"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": [{data}]}}]}}"#
    );
    std::fs::write(client.path().join("request.json"), format!("{body}\n{body}\n")).unwrap();
    std::fs::write(client.path().join("one.json"), body).unwrap();
    let ask = |args: &[&str]| kaskade(client.path(), &[args, &["--nats", &url]].concat());
    let reply = json(&ask(&["infer", "digits", "--tensors", "one.json", "--json"]));
    assert_eq!(reply["variant"], "digits-tiny");
    let load = ["--concurrency", "2", "--duration", "200ms", "--warm-up", "20ms"];
    let bench = ["bench", "digits", "--tensors", "request.json", "--json"];
    let figures = json(&ask(&[&bench[..], &load].concat()));
    assert!(figures["answered"].as_u64().unwrap() > 0, "{figures}");
    assert_eq!(figures["sent"], figures["answered"], "{figures}");
    let unknown = ["accuracy", "goodput_per_s", "joules_per_request"];
    assert!(unknown.iter().all(|field| figures[field].is_null()), "{figures}");
    let message = refusal(&ask(&["submit", "digits", "--tensors", "one.json"]));
    assert!(message.contains("[durable]"), "{message}");
    let message = refusal(&ask(&["result", "digits", "no-such"]));
    assert!(message.contains("[durable]"), "{message}");
}

#[test]
fn the_app_to_ask_is_given_once() {
    let usage = |args: &[&str]| {
        let output = kaskade(ROOT, args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        message
    };
    assert!(usage(&["infer", "--text", "a film"]).contains("APP"));
    usage(&["infer", "digits", "--app", "app.toml", "--text", "a film"]);
    let message = usage(&["infer", "digits", "--index", "1"]);
    assert!(message.contains("--app FILE"), "{message}");
    assert!(usage(&["infer", "app.toml", "--text", "a film"]).contains("--app FILE"));
    assert!(usage(&["bench", "digits", "--rate", "1"]).contains("--texts"));
    assert!(usage(&["result", "an-id"]).contains("APP"));
    usage(&[
        "serve",
        "--app",
        "app.toml",
        "--listen",
        "127.0.0.1:0",
        "--nats",
        "nats://127.0.0.1:1",
    ]);
}

#[test]
fn a_taken_port_is_named_with_its_remedies() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let (_served, url) = serve(&app);
    let address = url.strip_prefix("nats://").unwrap();
    let message = refusal(&kaskade(ROOT, &["serve", "--app", &app, "--listen", address]));
    for word in [address, "--listen", "--nats"] {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn top_shows_rates_and_energy_by_model() {
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let (_served, url) = serve(&app);
    let load = Process::start(
        command(
            ROOT,
            &[
                "bench",
                "--app",
                &app,
                "--nats",
                &url,
                "--concurrency",
                "2",
                "--duration",
                "1m",
            ],
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null()),
    );
    let seen = kaskade(ROOT, &["top", "digits", "--nats", &url, "--count", "2", "--json"]);
    drop(load);
    let lines = text(&seen.stdout);
    let snapshots: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(snapshots.len(), 2, "{lines}");
    let snapshot = &snapshots[1];
    assert!(
        snapshot["ingresses"]["answered_per_s"].as_f64().unwrap() > 1.0,
        "{snapshot}"
    );
    assert!(
        snapshot["joules_per_request"].as_f64().unwrap() > 0.0,
        "{snapshot}"
    );
    let model = &snapshot["models"][0];
    assert_eq!(
        (&model["variant"], &model["replicas"]),
        (&"digits-tiny".into(), &1.into())
    );
    assert!(model["requests_per_s"].as_f64().unwrap() > 1.0, "{snapshot}");
    // The process has one model, which uses all of its power.
    let (model, node) = (
        model["watts"].as_f64().unwrap(),
        snapshot["nodes"][0]["watts"].as_f64().unwrap(),
    );
    assert!((model - node).abs() <= 1e-6 * node, "{snapshot}");
}

#[test]
fn gateways_alone_ask_the_other_processes_over_a_nats_server() {
    let mut server = NatsServer::start(NatsOptions::jetstream());
    let url = server.url();
    let start =
        |more: &[&str]| ServeProcess::start(&[&["--app", DIGITS, "--nats", &url, "--role"], more].concat());
    let mut gateways = [0, 1].map(|_| start(&["gateway", "--http", "127.0.0.1:0"]));
    let addresses = gateways.each_mut().map(ServeProcess::probes);
    // They listen before the app is there.
    for address in &addresses {
        let (head, body) = http_get(address, "/ready").unwrap();
        assert!(head.starts_with("HTTP/1.1 503"), "{head} {body}");
    }
    let mut others = [start(&["worker"]), start(&["ingress"])];
    for other in &mut others {
        other.line("serving");
    }
    for address in &addresses {
        wait_until("the gateway is ready", TIMEOUT, || is_ready(address));
    }
    let image = vec!["0.5"; 64].join(",");
    let body = format!(
        r#"{{"inputs": [{{"name": "image", "datatype": "FP32", "shape": [1, 8, 8], "data": [{image}]}}]}}"#
    );
    for round in 0..4 {
        let (head, answer) = http_post(&addresses[round % 2], "/v2/models/digits/infer", &body);
        assert!(
            head.starts_with("HTTP/1.1 200") && answer.contains("logits"),
            "{head} {answer}"
        );
    }
    // One that leaves drains and ends well; the other goes on.
    let [first, _second] = gateways;
    first.end();
    let (head, answer) = http_post(&addresses[1], "/v2/models/digits/infer", &body);
    assert!(head.starts_with("HTTP/1.1 200"), "{head} {answer}");
    // Without the broker, it was a missing reply (504).
    server.kill();
    let budget = Duration::from_secs(1);
    let (head, answer) = http_post_within(budget, &addresses[1], "/v2/models/digits/infer", &body);
    assert!(
        head.starts_with("HTTP/1.1 503") && answer.contains("KSK0012"),
        "{head} {answer}"
    );
}

/// A photo above 1 MiB was refused without any server.
#[test]
fn photos_fit_the_embedded_broker() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    let fixture = Path::new(ROOT).join("models/fixtures/vit");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), dir.join(file)).unwrap();
    }
    let config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let [height, width] = [0, 1].map(|place| &config["image_size"][place]);
    let settings = serde_json::json!({"size": {"height": height, "width": width}});
    std::fs::write(dir.join("preprocessor_config.json"), settings.to_string()).unwrap();
    std::fs::write(
        folder.path().join("app.toml"),
        "name = \"a\"\ntask = \"classification\"\nplan = { single = \"one\" }\n[[variants]]\nname = \"one\"\ndir = \"model\"\n",
    )
    .unwrap();
    let infer = |rows: u32| {
        let width = 1000_u32;
        let size = width * rows * 3;
        let header = [b"BM".to_vec(), numbers(&[54 + size, 0, 54, 40, width, rows])].concat();
        let rest = [vec![1, 0, 24, 0], numbers(&[0, size, 0, 0, 0, 0])].concat();
        let pixels = vec![100; size as usize];
        std::fs::write(folder.path().join("a.bmp"), [header, rest, pixels].concat()).unwrap();
        let args = [
            "infer", "--app", "app.toml", "--image", "a.bmp", "--budget", "20s",
        ];
        kaskade(folder.path(), &args)
    };
    let photo = infer(2_500);
    assert!(photo.status.success(), "{}", text(&photo.stderr));
    let larger = text(&infer(3_000).stderr);
    assert!(
        larger.contains("KSK0002") && larger.contains("under `[nats]` in app.toml"),
        "{larger}"
    );
}

/// Returns little-endian bytes.
fn numbers(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
