//! `kaskade plan placement`.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use kaskade_testkit::{
    NatsOptions, NatsServer, ROOT, ServeProcess, command, json, kaskade, refusal, text, wait_until,
};
use serde_json::Value;

fn example(path: &str) -> String {
    format!("{ROOT}/examples/{path}")
}

/// The profile of the digits without memory: it is mostly that of the process, since these models are so small.
fn without_memory(folder: &Path) -> String {
    let text = std::fs::read_to_string(example("digits/profile.json")).unwrap();
    let mut profile: Value = serde_json::from_str(&text).unwrap();
    for variant in profile["variants"].as_array_mut().unwrap() {
        for cost in variant["costs"].as_array_mut().unwrap() {
            cost.as_object_mut().unwrap().remove("memory_bytes");
        }
    }
    let path = folder.join("without-memory.json");
    std::fs::write(&path, profile.to_string()).unwrap();
    path.display().to_string()
}

/// `plan placement` over the digits, with 4 bytes per weight.
fn place(folder: &Path, more: &[&str]) -> Output {
    let profile = without_memory(folder);
    let args = [
        "plan",
        "placement",
        "--profile",
        &profile,
        "--bytes-per-weight",
        "4",
        "--force",
        "--json",
    ];
    kaskade(folder, &[&args[..], more].concat())
}

#[test]
fn a_cascade_is_placed_within_memory_and_utilisation_and_serves_its_load() {
    let folder = tempfile::tempdir().unwrap();
    let devices = ["--devices", "4", "--per-host", "2", "--memory", "4MB"];
    let more = ["--rate", "40000", "--utilisation", "0.8", "--svg", "placed.svg"];
    let args = [&devices[..], &more].concat();
    let placed = json(&place(folder.path(), &args));
    assert_eq!(placed["qps"], 40_000.0);
    let instances = placed["plan"]["placement"].as_array().unwrap();
    let wanted: u64 = placed["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["replicas"].as_u64().unwrap() * model["partitions"].as_u64().unwrap())
        .sum();
    assert_eq!(instances.len() as u64, wanted, "{placed}");
    for device in placed["devices"].as_array().unwrap() {
        assert!(device["memory_bytes"].as_f64().unwrap() <= 4e6, "{device}");
        assert!(device["utilisation"].as_f64().unwrap() <= 0.8 + 1e-6, "{device}");
    }
    assert!(["optimal", "gap", "no_bound"].contains(&placed["proof"]["kind"].as_str().unwrap()));
    let drawn = std::fs::read_to_string(folder.path().join("placed.svg")).unwrap();
    for name in ["digits-large", "w1", "cpu:1", "</svg>"] {
        assert!(drawn.contains(name), "{name}");
    }
    let plan = std::fs::read(folder.path().join("plan.json")).unwrap();
    json(&place(folder.path(), &args));
    assert_eq!(std::fs::read(folder.path().join("plan.json")).unwrap(), plan);
    assert!(
        kaskade(folder.path(), &["validate", "plan.json"])
            .status
            .success()
    );

    let profile = example("digits/profile.json");
    let simulate = [
        "simulate",
        "--plan",
        "plan.json",
        "--profile",
        &profile,
        "--rate",
        "40000",
        "--duration",
        "5s",
        "--json",
    ];
    let found = json(&kaskade(folder.path(), &simulate));
    assert_eq!(found["answered"], found["requests"], "{found}");
}

/// MLPs and CNNs were split into 8 partitions, and no worker could load them.
#[test]
fn variants_whose_layers_nothing_states_stay_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut profile: Value =
        serde_json::from_str(&std::fs::read_to_string(without_memory(folder.path())).unwrap()).unwrap();
    let mut placed = |layers: Option<u32>, more: &[&str]| {
        for variant in profile["variants"].as_array_mut().unwrap() {
            let variant = variant.as_object_mut().unwrap();
            variant.remove("layers");
            variant.extend(layers.map(|layers| ("layers".to_owned(), layers.into())));
        }
        std::fs::write(folder.path().join("p.json"), profile.to_string()).unwrap();
        let args = [
            "plan",
            "placement",
            "--profile",
            "p.json",
            "--bytes-per-weight",
            "4",
            "--force",
            "--json",
        ];
        let output = kaskade(folder.path(), &[&args[..], &["--devices", "2"], more].concat());
        let placed = json(&output);
        let models = placed["models"].as_array().unwrap();
        let most = models
            .iter()
            .map(|model| model["partitions"].as_u64().unwrap())
            .max();
        (most.unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (most, said) = placed(None, &[]);
    assert_eq!(most, 1);
    assert!(
        said.contains("does not state the layers of `digits-tiny`"),
        "{said}"
    );
    let (most, said) = placed(Some(1), &[]);
    assert!(most == 1 && !said.contains("layers"), "{said}");
    assert_eq!(placed(Some(4), &[]).0, 2);
    assert!(placed(None, &["--layers", "digits-small=3"]).0 <= 3);
}

#[test]
fn a_given_cascade_is_placed_like_the_same_chosen_one() {
    let folder = tempfile::tempdir().unwrap();
    let profile = example("digits/profile.json");
    let cascade = [
        "plan",
        "cascade",
        "--profile",
        &profile,
        "--objective",
        "eo",
        "--out",
        "cascade.json",
    ];
    assert!(kaskade(folder.path(), &cascade).status.success());
    let devices = ["--devices", "2"];
    let given = json(&place(
        folder.path(),
        &[&devices[..], &["--cascade", "cascade.json"]].concat(),
    ));
    let chosen = json(&place(
        folder.path(),
        &[&devices[..], &["--objective", "eo"]].concat(),
    ));
    assert_eq!(given["plan"], chosen["plan"]);
    let largest = json(&place(
        folder.path(),
        &[&devices[..], &["--objective", "largest"]].concat(),
    ));
    assert!(largest["qps"].as_f64().unwrap() < chosen["qps"].as_f64().unwrap());
}

#[test]
fn the_fewest_devices_are_used_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["--devices", "6", "--rate", "1000", "--max-partitions", "1"];
    let few = json(&place(
        folder.path(),
        &[&args[..], &["--minimise-devices"]].concat(),
    ));
    assert_eq!(few["devices_used"], 1, "{few}");
    let said = kaskade(
        folder.path(),
        &[
            "plan",
            "placement",
            "--profile",
            &example("digits/profile.json"),
            "--bytes-per-weight",
            "4",
            "--devices",
            "2",
            "--force",
        ],
    );
    let said = String::from_utf8(said.stdout).unwrap();
    for words in [
        "copies R",
        "partitions S",
        "utilisation",
        "per request",
        "planned in",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn an_infeasible_placement_names_the_constraint_and_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |more: &[&str]| refusal(&place(folder.path(), more));
    for (args, words) in [
        (
            &["--memory", "100KB", "--max-partitions", "4", "--devices", "4"][..],
            ["memory: `digits-large`", "--max-partitions"],
        ),
        (
            &["--rate", "1e9"],
            ["utilisation: 1000000000.000 requests/s", "--rate"],
        ),
    ] {
        let message = refused(args);
        for words in words {
            assert!(message.contains(words), "{args:?}: {message}");
        }
    }
    for (args, words) in [
        (&["--devices", "0"][..], "0 is not in 1..=100000"),
        (&["--devices", "1000000000"], "is not in 1..=100000"),
        (&["--utilisation", "1.5"], "1.5 is not at most 1"),
        (&["--speed", "1,2"], "2 numbers for 1 device;"),
    ] {
        let output = place(folder.path(), args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words), "{args:?}: {message}");
    }
    let slow = r#"{"same_device": {"given": {"latency_s": 1, "bytes_per_s": 1e9}},
        "same_host": {"given": {"latency_s": 1e-5, "bytes_per_s": 1e9}},
        "network": {"measured": {"samples": [{"bytes": 1000, "seconds": 1e-3}]}}}"#;
    std::fs::write(folder.path().join("channels.json"), slow).unwrap();
    let message = refused(&["--channels", "channels.json"]);
    assert!(
        message.contains("nearer channel") && message.contains("--channels"),
        "{message}"
    );
    std::fs::write(folder.path().join("channels.json"), "{}").unwrap();
    let message = refused(&["--channels", "channels.json"]);
    assert!(message.contains("kaskade schema channels"), "{message}");
    assert!(
        !folder.path().join("plan.json").exists(),
        "an infeasible plan is not written"
    );
}

/// The plan was written without it, because no integer program was needed.
#[test]
fn a_solver_that_is_not_built_in_is_refused_whether_it_is_needed_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let message = refusal(&place(folder.path(), &["--devices", "100", "--solver", "cbc"]));
    assert!(message.contains("feature `external-solvers`"), "{message}");
}

#[test]
fn an_incomplete_or_invalid_profile_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let whole: Value =
        serde_json::from_str(&std::fs::read_to_string(example("digits/profile.json")).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value), more: &[&str]| {
        let mut profile = whole.clone();
        change(&mut profile["variants"][3]["costs"][0]);
        std::fs::write(folder.path().join("profile.json"), profile.to_string()).unwrap();
        let args = [
            "plan",
            "placement",
            "--profile",
            "profile.json",
            "--objective",
            "largest",
        ];
        refusal(&kaskade(folder.path(), &[&args[..], more].concat()))
    };
    let message = refused(&|cost| cost["memory_bytes"] = Value::Null, &[]);
    assert!(
        message.contains("no memory of `digits-large`") && message.contains("--bytes-per-weight"),
        "{message}"
    );
    let weights = ["--bytes-per-weight", "4"];
    let message = refused(&|cost| cost["utilisation"] = Value::Null, &weights);
    assert!(
        message.contains("no utilisation of `digits-large` at batch 1") && message.contains("--whole-device"),
        "{message}"
    );
    let message = refused(&|cost| cost["utilisation"] = 1.5.into(), &weights);
    assert!(
        message.contains("utilisation") && message.contains("profile"),
        "{message}"
    );
    let message = refused(&|cost| cost["latency_s"] = "NaN".into(), &weights);
    assert!(message.contains("profile.json"), "{message}");
}

#[test]
fn a_model_larger_than_a_worker_is_partitioned_and_served() {
    let folder = tempfile::tempdir().unwrap();
    let weights = example("sentiment/weights");
    let variant = |name: &str| format!("[[variants]]\nname = \"{name}\"\ndir = \"{weights}/{name}\"\n");
    let app = format!(
        "name = \"sentiment\"\n{}{}{}[[workers]]\nname = \"w0\"\n[[workers]]\nname = \"w1\"\n",
        variant("sentiment-pico"),
        variant("sentiment-tiny"),
        variant("sentiment-mini")
    );
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let plan = [
        "plan",
        "placement",
        "--app",
        "app.toml",
        "--profile",
        &example("sentiment/profile.json"),
        "--objective",
        "largest",
        "--memory",
        "40MB",
        "--rate",
        "5",
        "--json",
    ];
    let placed = json(&kaskade(folder.path(), &plan));
    assert_eq!(placed["models"][0]["partitions"], 2, "{placed}");
    assert_eq!(placed["devices_used"], 2);

    let nats = NatsServer::start(NatsOptions::jetstream());
    let url = nats.url();
    let serve = |worker: &str, role: &str| {
        let args = [
            "serve",
            "--app",
            "app.toml",
            "--plan",
            "plan.json",
            "--nats",
            &url,
            "--worker",
            worker,
            "--role",
            role,
        ];
        let mut served = ServeProcess::run(&mut command(folder.path(), &args));
        served.line("serving");
        served
    };
    let _workers = [serve("w0", "worker"), serve("w1", "worker")];
    let _ingress = serve("w0", "ingress");
    let class = |more: &[&str]| {
        let ask = ["infer", "--app", "app.toml", "--text", "it is dull"];
        let output = kaskade(folder.path(), &[&ask[..], more].concat());
        let said = String::from_utf8(output.stdout).unwrap();
        output
            .status
            .success()
            .then(|| said.lines().next().unwrap().to_owned())
    };
    let mut halves = None;
    wait_until("the two partitions answer", Duration::from_secs(30), || {
        halves = class(&["--nats", &url]);
        halves.is_some()
    });
    let whole = format!("name = \"sentiment\"\n{}", variant("sentiment-mini"));
    std::fs::write(folder.path().join("app.toml"), whole).unwrap();
    assert_eq!(halves, class(&[]));
}
