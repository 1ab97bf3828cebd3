//! `kaskade plan gears` and `simulate`.

use kaskade_testkit::{digits_profile as profile, json, kaskade, misuse, refusal, text};

#[test]
fn gears_are_planned_checked_and_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile();
    let plan = [
        "plan",
        "gears",
        "--profile",
        &profile,
        "--rate",
        "60000",
        "--slo-p95",
        "30ms",
        "--svg",
        "gears.svg",
        "--json",
    ];
    let planned = json(&kaskade(folder.path(), &plan));
    let gears = planned["plan"]["gears"].as_array().unwrap();
    assert!(gears.len() > 1, "one gear for every load: {planned}");
    assert_eq!(planned["plan"]["sharing"], "exclusive");
    assert!(
        std::fs::read_to_string(folder.path().join("gears.svg"))
            .unwrap()
            .contains("</svg>")
    );
    assert!(
        kaskade(folder.path(), &["validate", "plan.json"])
            .status
            .success()
    );

    std::fs::write(folder.path().join("trace.txt"), "1000 1000 40000 40000 1000 1000").unwrap();
    let simulate = [
        "simulate",
        "--plan",
        "plan.json",
        "--profile",
        &profile,
        "--trace",
        "trace.txt",
        "--svg",
        "course.svg",
        "--force",
        "--queue-capacity",
        "100000",
        "--json",
    ];
    let found = json(&kaskade(folder.path(), &simulate));
    assert_eq!(found["answered"], found["requests"], "{found}");
    assert!(found["shifts"].as_u64().unwrap() >= 1, "{found}");
    assert!(found["accuracy"].as_f64().unwrap() > 0.9);
    assert_eq!(found["course"].as_array().unwrap().len(), 6);
    assert!(folder.path().join("course.svg").exists());
    let again = json(&kaskade(folder.path(), &simulate));
    assert_eq!(
        again["latency"], found["latency"],
        "the same seed gives the same report"
    );
    let much = ["simulate", "--plan", "plan.json", "--profile", &profile];
    let much = [&much[..], &["--rate", "1e9", "--duration", "10m"]].concat();
    let said = misuse(&kaskade(folder.path(), &much));
    assert!(said.contains("600 000 000 000 requests in 600 seconds"), "{said}");
}

#[test]
fn the_time_between_batches_is_the_flags_or_the_profiles() {
    let folder = tempfile::tempdir().unwrap();
    let unmeasured = profile();
    let mut measured: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&unmeasured).unwrap()).unwrap();
    measured["turnaround_s"] = 0.0004.into();
    let file = folder.path().join("measured.json");
    std::fs::write(&file, measured.to_string()).unwrap();
    let latency = |profile: &str, more: &[&str]| {
        let plan = [
            "plan",
            "gears",
            "--profile",
            profile,
            "--rate",
            "6000",
            "--slo-p95",
            "30ms",
        ];
        let planned = kaskade(folder.path(), &[&plan[..], &["--force"], more].concat());
        assert!(planned.status.success());
        let simulate = [
            "simulate",
            "--plan",
            "plan.json",
            "--profile",
            profile,
            "--rate",
            "6000",
        ];
        let simulate = [&simulate[..], &["--duration", "5s", "--json"], more].concat();
        json(&kaskade(folder.path(), &simulate))["latency"].clone()
    };
    let measured = file.to_str().unwrap();
    let none = latency(&unmeasured, &[]);
    let flag = latency(&unmeasured, &["--turnaround", "400us"]);
    assert_ne!(flag, none);
    assert_eq!(latency(measured, &[]), flag, "the profile's");
    let least = ["--turnaround", "1us"];
    assert_eq!(
        latency(measured, &least),
        latency(&unmeasured, &least),
        "the flag's"
    );
}

#[test]
fn a_plan_of_two_devices_is_valid() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile();
    let plan = [
        "plan",
        "gears",
        "--profile",
        &profile,
        "--rate",
        "2000",
        "--slo-p95",
        "100ms",
        "--devices",
        "2",
        "--json",
    ];
    let planned = json(&kaskade(folder.path(), &plan));
    assert!(!planned["plan"]["placement"].as_array().unwrap().is_empty());
    assert!(
        kaskade(folder.path(), &["validate", "plan.json"])
            .status
            .success()
    );
}

#[test]
fn an_infeasible_plan_names_the_model_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile();
    let plan = |more: &[&str]| {
        let args = [&["plan", "gears", "--profile", &profile][..], more].concat();
        refusal(&kaskade(folder.path(), &args))
    };
    let message = plan(&["--rate", "100", "--slo-p95", "1us"]);
    assert!(
        message.contains("requests/s, at model `") && message.contains("looser objective"),
        "{message}"
    );
    let message = plan(&["--rate", "1000000000", "--slo-p95", "50ms"]);
    assert!(message.contains("more devices"), "{message}");
    for (given, missing) in [(["--slo-p95", "50ms"], "--rate"), (["--rate", "10"], "--slo-p95")] {
        let args = [&["plan", "gears", "--profile", &profile][..], &given].concat();
        let output = kaskade(folder.path(), &args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(missing), "{message}");
    }
    assert!(
        !folder.path().join("plan.json").exists(),
        "an infeasible plan is not written"
    );
}

#[test]
fn a_malformed_trace_is_refused_with_its_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let profile = profile();
    for (text, message) in [
        ("10 20 many", "many"),
        ("0.5\n0.25\n", "line 2"),
        ("", "trace.txt"),
    ] {
        std::fs::write(folder.path().join("trace.txt"), text).unwrap();
        let plan = [
            "plan",
            "gears",
            "--profile",
            &profile,
            "--slo-p95",
            "50ms",
            "--trace",
            "trace.txt",
        ];
        let said = refusal(&kaskade(folder.path(), &plan));
        assert!(said.contains("trace.txt") && said.contains(message), "{said}");
    }
}
