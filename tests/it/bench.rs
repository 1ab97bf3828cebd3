//! How `kaskade bench` ends: without an app, and by Ctrl-C, which `kaskade profile` takes alike.

use std::io::Read as _;
use std::process::{Command, Stdio};

use kaskade_testkit::{
    DIGITS, Process, ROOT, ServeProcess, TIMEOUT, command, digits_app, http_get, kaskade, text, wait_until,
};
use serde_json::Value;

/// Starts a command, interrupts it (SIGINT) once `begun` returns true, and returns its exit code, standard output and standard error.
fn interrupted(command: &mut Command, begun: impl FnMut() -> bool) -> (Option<i32>, String, String) {
    let mut process = Process::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    wait_until("the command is at work", TIMEOUT, begun);
    process.interrupt();
    let mut code = None;
    wait_until("the command ends", TIMEOUT, || {
        code = process.exited().map(|status| status.code());
        code.is_some()
    });
    let child = process.child();
    let mut texts = [String::new(), String::new()];
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut texts[0])
        .unwrap();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut texts[1])
        .unwrap();
    let [out, err] = texts;
    (code.flatten(), out, err)
}

/// Ctrl-C ended a load test without a word.
#[test]
fn an_interrupted_load_test_prints_what_it_has_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let app = digits_app(folder.path(), "");
    let mut served = ServeProcess::start(&["--app", &app, "--http", "127.0.0.1:0"]);
    let probes = served.probes();
    let url = served.url();
    let bench = [
        "bench",
        "--app",
        &app,
        "--nats",
        &url,
        "--concurrency",
        "2",
        "--duration",
        "1h",
        "--warm-up",
        "0s",
        "--json",
    ];
    let (code, out, err) = interrupted(&mut command(ROOT, &bench), || {
        let (_, page) = http_get(&probes, "/metrics").unwrap();
        let answered = "kaskade_answered_requests_total{app=\"digits\"} ";
        let count = page.lines().find_map(|line| line.strip_prefix(answered));
        count.is_some_and(|count| count != "0")
    });
    assert_eq!(code, Some(130), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["interrupted"], true);
    assert!(report["answered"].as_u64().unwrap() > 0, "{report}");
    // Those in flight are neither sent nor lost.
    assert_eq!(report["sent"], report["answered"], "{report}");
    assert!(report["seconds"].as_f64().unwrap() < 600.0, "{report}");
    let error: Value = serde_json::from_str(err.lines().last().unwrap()).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("interrupted: "), "{error}");
    served.end();
}

/// Ctrl-C ended the measuring without a word.
#[test]
fn an_interrupted_profile_is_said_not_to_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let (begun, out) = (folder.path().join("begun"), folder.path().join("profile.json"));
    // It answers nothing, and ends with the command.
    let judge = format!(
        "sh -c 'touch {}; while kill -0 $PPID 2> /dev/null; do sleep 0.05; done'",
        begun.display()
    );
    let app = format!("{ROOT}/{DIGITS}");
    let profile = [
        "profile",
        "--app",
        &app,
        "--rounds",
        "1",
        "--measure-for",
        "1ms",
        "--judge",
        &judge,
        "--out",
    ];
    let mut profile = command(folder.path(), &profile);
    let (code, _, err) = interrupted(profile.arg(&out), || begun.exists());
    assert_eq!(code, Some(130), "{err}");
    let message = err.lines().last().unwrap();
    assert_eq!(
        message,
        format!("kaskade: interrupted: {} was not written", out.display())
    );
    assert!(!out.exists());
}

/// It sent requests for all of its duration before it failed.
#[test]
fn a_load_test_of_an_app_that_does_not_run_fails_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let app = digits_app(folder.path(), "");
    let texts = folder.path().join("texts.txt");
    std::fs::write(&texts, "a text\n").unwrap();
    let mut served = ServeProcess::start(&["--app", &app]);
    let url = served.url();
    let bench = [
        "bench",
        "nosuch",
        "--nats",
        &url,
        "--texts",
        texts.to_str().unwrap(),
    ];
    for load in [["--concurrency", "4"], ["--rate", "50"]] {
        let output = kaskade(ROOT, &[&bench[..], &load, &["--duration", "1h"]].concat());
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(
            message.contains("KSK0004") && message.contains("`nosuch`"),
            "{message}"
        );
    }
}
