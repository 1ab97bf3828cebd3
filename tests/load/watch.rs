//! `kaskade demo --watch`: the load moves the gears, and Ctrl-C ends it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use kaskade_testkit::{ROOT, ServeProcess, alone, command};
use serde_json::Value;

/// Longest wait for two gear shifts: five waves of the load, on a busy machine.
const MAX_WAIT: Duration = Duration::from_mins(5);

/// Reads the dashboard's events until one holds what is asked for.
fn until(address: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /dashboard/events/digits HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let begun = Instant::now();
    let mut last = String::new();
    for line in BufReader::new(stream).lines() {
        let line = line.unwrap();
        let Some(event) = line.strip_prefix("data: ") else {
            continue;
        };
        let event_of: Value = serde_json::from_str(event).unwrap();
        if holds(&event_of) {
            return event_of;
        }
        event.clone_into(&mut last);
        assert!(begun.elapsed() < MAX_WAIT, "no {what}; the last event: {last}");
    }
    panic!("the events ended without {what}; the last one: {last}");
}

/// The app of the demo without its largest model, which takes minutes to profile where it is not optimised.
fn quick_app(folder: &Path) -> String {
    let digits = Path::new(ROOT).join("examples/digits");
    let read = |file: &str| std::fs::read_to_string(digits.join(file)).unwrap();
    let family = read("family.toml")
        .replace("\"weights/", &format!("\"{}/weights/", digits.display()))
        .replace("\"data/", &format!("\"{}/data/", digits.display()));
    let (before, rest) = family
        .split_once("[[variants]]\nname = \"digits-large\"")
        .unwrap();
    let (_, after) = rest.split_once("[data").unwrap();
    std::fs::write(folder.join("family.toml"), format!("{before}[data{after}")).unwrap();
    let file = folder.join("app.toml");
    std::fs::write(&file, read("app.toml")).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_watched_demo_shifts_its_gears_and_ends_by_ctrl_c() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let app = quick_app(folder.path());
    let arguments = [
        "demo",
        "--watch",
        "--app",
        &app,
        "--http",
        "127.0.0.1:0",
        "--out",
        "demo",
        "--quiet",
    ];
    let mut demo = ServeProcess::run(&mut command(folder.path(), &arguments));
    let line = demo.line("open http://");
    let address = line.split('/').next().unwrap();
    let event = until(address, "two gear shifts", |event| {
        event["shifts"].as_array().is_some_and(|shifts| shifts.len() >= 2)
    });
    let shifts = event["shifts"].as_array().unwrap();
    let ways: Vec<(u64, u64)> = shifts
        .iter()
        .map(|shift| (shift["from"].as_u64().unwrap(), shift["to"].as_u64().unwrap()))
        .collect();
    assert!(
        ways.contains(&(0, 1)) && ways.contains(&(1, 0)),
        "up and down: {ways:?}"
    );
    let snapshot = &event["snapshot"];
    assert!(
        snapshot["ingresses"]["answered_per_s"].as_f64().unwrap() > 0.0,
        "{snapshot}"
    );
    assert!(
        snapshot["joules_per_request"].as_f64().unwrap() > 0.0,
        "{snapshot}"
    );
    assert!(
        snapshot["ingresses"]["p99_s"].as_f64().unwrap() > 0.0,
        "{snapshot}"
    );
    let said = demo.interrupt();
    assert!(said.contains("stopped"), "{said}");
}
