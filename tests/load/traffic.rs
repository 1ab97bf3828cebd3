//! The pipeline of `examples/traffic`: profiled, planned, served with a planner, and served while a worker dies.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt as _;
use kaskade_actors::Code;
use kaskade_actors::wire::{Message as _, PlanReport};
use kaskade_testkit::{NatsOptions, NatsServer, ROOT, ServeProcess, alone, command, json, refusal};
use serde_json::Value;

const FOLDER: &str = "examples/traffic";

/// The example's app, edited.
fn app(folder: &Path, edit: impl FnOnce(String) -> String) -> String {
    let example = Path::new(ROOT).join(FOLDER);
    let text = std::fs::read_to_string(example.join("app.toml")).unwrap();
    let absolute = |name: &str| format!("\"{}", example.join(name).display());
    let text = text
        .replace("\"weights", &absolute("weights"))
        .replace("\"data", &absolute("data"))
        .replace("\"pipeline.json", &absolute("pipeline.json"));
    let path = folder.join("app.toml");
    std::fs::write(&path, edit(text)).unwrap();
    path.display().to_string()
}

#[test]
fn the_pipeline_is_profiled_end_to_end() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pipeline.json").display().to_string();
    // A fiftieth of a core would only take longer.
    let app = app(folder.path(), |text| {
        text.replace("core_share = 0.02", "core_share = 1.0")
    });
    let args = [
        "--rounds",
        "1",
        "--measure-for",
        "1ms",
        "--quiet",
        "--json",
        "--out",
        &out,
    ];
    let measured = json(
        &command(ROOT, &["profile", "--app", &app])
            .args(args)
            .output()
            .unwrap(),
    );
    let root = &measured["tasks"][0];
    assert_eq!(root["name"], "find");
    for variant in root["variants"].as_array().unwrap() {
        let factor = variant["multiplicative_factor"].as_f64().unwrap();
        assert!((3.0..9.0).contains(&factor), "{variant}");
    }
    let paths = measured["path_accuracy"]["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 4 * (4 + 3));
    let accuracy = |from: &str, to: &str| {
        let found = paths
            .iter()
            .find(|path| path["variants"][0] == from && path["variants"][1] == to);
        found.unwrap()["accuracy"].as_f64().unwrap()
    };
    assert!(accuracy("find-large", "digit-large") > accuracy("find-tiny", "digit-tiny") + 0.05);
    assert!(accuracy("find-large", "sign-large") > 0.95);
}

fn pipeline() -> PathBuf {
    Path::new(ROOT).join(FOLDER).join("pipeline.json")
}

/// The example's profile as measured on a machine that is `times` slower.
fn slower(folder: &Path, times: f64) -> String {
    let mut profile: Value = serde_json::from_slice(&std::fs::read(pipeline()).unwrap()).unwrap();
    for task in profile["tasks"].as_array_mut().unwrap() {
        for variant in task["variants"].as_array_mut().unwrap() {
            for point in variant["latency"].as_array_mut().unwrap() {
                point["us"] = (point["us"].as_f64().unwrap() * times).into();
            }
        }
    }
    let path = folder.join("pipeline.json");
    std::fs::write(&path, profile.to_string()).unwrap();
    path.display().to_string()
}

/// Checks that a load of `rate` requests per second over `seconds` was sent whole, and that the service replied to every
/// request; returns the number of answers.
fn accounted(report: &Value, rate: u64, seconds: u64) -> u64 {
    let count = |field: &str| report[field].as_u64().unwrap();
    let (sent, answered, refused) = (count("sent"), count("answered"), count("refused"));
    // The requests that are due at the start and at the end may not be sent.
    let load = rate * seconds;
    assert!((load - 2..=load + 1).contains(&sent), "{load} are due: {report}");
    assert_eq!((count("timed_out"), count("lost")), (0, 0), "{report}");
    assert_eq!(sent, answered + refused, "{report}");
    answered
}

#[test]
fn the_pipeline_is_planned_while_it_serves() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    // The speed of this machine is unknown, so the plan assumes one that is three times slower than the profile's.
    let profile = slower(folder.path(), 3.0);
    let app = app(folder.path(), |text| {
        text.replace("slo = { p95 = \"500ms\" }", "slo = { p95 = \"1s\" }")
            .replace(&pipeline().display().to_string(), &profile)
    });
    let load = [
        "--rate",
        "10",
        "--arrivals",
        "constant",
        "--duration",
        "6s",
        "--budget",
        "5s",
        "--json",
    ];
    // Each request is sent once: the test accounts for what the service does with it. Requests that clients send again would
    // hide those that it refuses, and add to the load that the test sets.
    let report = json(
        &command(ROOT, &["bench", "--app", &app, "--no-retry"])
            .args(load)
            .output()
            .unwrap(),
    );
    let replies = accounted(&report, 10, 6);
    assert!(
        replies > 0 && report["accuracy"].as_f64().unwrap() > 0.85,
        "{report}"
    );
}

#[test]
fn the_plan_follows_the_profile() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("plan.json").display().to_string();
    let app = format!("{FOLDER}/app.toml");
    let plan = |rate: &str| {
        json(
            &command(
                ROOT,
                &[
                    "plan", "pipeline", "--app", &app, "--out", &out, "--json", "--force", "--rate", rate,
                ],
            )
            .output()
            .unwrap(),
        )
    };
    let (low, high) = (plan("10"), plan("150"));
    let used = |report: &Value| report["allocation"]["used"].as_u64().unwrap();
    let accuracy = |report: &Value| report["allocation"]["accuracy"].as_f64().unwrap();
    assert!(used(&low) < used(&high) && used(&high) <= 10);
    assert!(accuracy(&low) > accuracy(&high));
    assert_eq!(low["plan"]["placement"][0]["worker"], "local");
}

#[test]
fn an_objective_that_no_path_meets_is_refused_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let app = app(folder.path(), |text| {
        text.replace("slo = { p95 = \"500ms\" }", "slo = { p95 = \"1ms\" }")
    });
    let output = command(ROOT, &["bench", "--app", &app, "--rate", "1"])
        .output()
        .unwrap();
    let message = refusal(&output);
    assert!(message.contains("objective"), "{message}");
}

/// Starts a process of the app, and returns when it serves.
fn serve(app: &str, nats: &str, role: &str, worker: &str) -> ServeProcess {
    let mut served = ServeProcess::start(&["--app", app, "--nats", nats, "--role", role, "--worker", worker]);
    served.line("serving");
    served
}

/// Waits until the planner reports that a new plan is adopted.
fn another_plan(nats: &str) {
    let next = async {
        let client = async_nats::connect(nats).await.unwrap();
        let mut told = client.subscribe("kaskade.traffic.event.planner").await.unwrap();
        while let Some(message) = told.next().await {
            if let Ok(PlanReport::Adopted { .. }) = PlanReport::decode(&message.payload) {
                return;
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let timeout = Duration::from_secs(30);
    runtime
        .block_on(async { tokio::time::timeout(timeout, next).await })
        .unwrap();
}

#[test]
fn a_worker_killed_during_a_plan_change_loses_no_request() {
    let _alone = alone();
    let nats = NatsServer::start(NatsOptions::jetstream());
    let folder = tempfile::tempdir().unwrap();
    let two = "[[workers]]\nname = \"far\"\nreplicas = 5\n\n[[workers]]\nname = \"local\"\nreplicas = 5\n";
    let app = app(folder.path(), |text| {
        text.replace("[[workers]]\nname = \"local\"\nreplicas = 10\n", two)
    });
    let mut far = serve(&app, &nats.url(), "worker", "far");
    let _ingress = serve(&app, &nats.url(), "all", "local");
    let load = [
        "--nats",
        &nats.url(),
        "--rate",
        "30",
        "--arrivals",
        "constant",
        "--duration",
        "8s",
        "--budget",
        "5s",
        "--json",
    ];
    // Each request is sent once: the test counts how the service ends it while its plan changes and a worker dies, and a
    // request that is sent again would be counted by its last end alone.
    let bench = command(ROOT, &["bench", "--app", &app, "--no-retry"])
        .args(load)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let bench = bench.unwrap();
    // The load exceeds that of the first plan, so the planner changes the plan.
    another_plan(&nats.url());
    far.kill();
    let report = json(&bench.wait_with_output().unwrap());
    let replies = accounted(&report, 30, 8);
    let expected = [
        Code::Expired,
        Code::Overloaded,
        Code::Unavailable,
        Code::Dropped,
        Code::ReplicasLost,
    ];
    let codes = report["errors"].as_object().unwrap().keys();
    for code in codes {
        assert!(expected.iter().any(|one| one.id() == code), "{report}");
    }
    assert!(replies > 0, "{report}");
}
