//! `kaskade plan pipeline` and `simulate`.

use std::path::Path;
use std::process::Output;

use kaskade_testkit::{ROOT, digits_profile, json, kaskade, misuse, refusal};

fn plan(folder: &Path, more: &[&str]) -> Output {
    kaskade(folder, &[&["plan", "pipeline"][..], more].concat())
}

/// A pipeline of two tasks.
const SMALL: &str = r#"
name = "small"
slo_us = 200000
batches = [1, 2]

[[tasks]]
name = "find"
children = ["tell"]

[[tasks.variants]]
name = "find-well"
accuracy = 1.0
multiplicative_factor = 3.0
branch_ratios = { tell = 1.0 }
latency = [{ batch = 1, us = 10000.0 }, { batch = 2, us = 16000.0 }]

[[tasks]]
name = "tell"

[[tasks.variants]]
name = "tell-well"
accuracy = 1.0
latency = [{ batch = 1, us = 20000.0 }, { batch = 2, us = 32000.0 }]

[[tasks.variants]]
name = "tell-fast"
accuracy = 0.8
latency = [{ batch = 1, us = 4000.0 }, { batch = 2, us = 6000.0 }]
"#;

#[test]
fn hardware_scaling_comes_before_accuracy_scaling_and_overload() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let at = |rate: &str| {
        let options = [
            "--pipeline",
            "small.toml",
            "--workers",
            "10",
            "--json",
            "--force",
            "--rate",
            rate,
        ];
        json(&plan(folder.path(), &options))
    };
    let (low, high, most) = (at("20"), at("200"), at("5000"));
    assert_eq!(low["allocation"]["scaling"]["by"], "hardware");
    assert!(low["allocation"]["used"].as_u64() < Some(10));
    assert_eq!(low["allocation"]["accuracy"], 1.0);
    assert_eq!(high["allocation"]["scaling"]["by"], "accuracy");
    assert!(high["allocation"]["accuracy"].as_f64().unwrap() < 1.0);
    assert_eq!(most["allocation"]["scaling"]["by"], "overload");
    assert!(most["allocation"]["served_qps"].as_f64().unwrap() < 5000.0);
    assert_eq!(most["plan"]["placement"].as_array().unwrap().len(), 10);
    assert_eq!(most["plan"]["dropping"], "slack");
}

#[test]
fn a_pipeline_is_planned_drawn_and_valid() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let options = ["--pipeline", "small.toml", "--rate", "150", "--svg", "demand.svg"];
    let output = plan(folder.path(), &options);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("written to plan.json, demand.svg"), "{said}");
    let drawn = std::fs::read_to_string(folder.path().join("demand.svg")).unwrap();
    assert!(drawn.contains("</svg>"));
    let valid = kaskade(folder.path(), &["validate", "plan.json"]);
    assert!(
        valid.status.success(),
        "{}",
        String::from_utf8_lossy(&valid.stdout)
    );
}

#[test]
fn errors_of_a_pipeline_name_its_parts() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |text: &str| {
        std::fs::write(folder.path().join("p.toml"), text).unwrap();
        refusal(&plan(folder.path(), &["--pipeline", "p.toml", "--rate", "10"]))
    };
    let message = refused(&SMALL.replace("children = [\"tell\"]", "children = [\"talk\"]"));
    assert!(message.contains("talk"), "{message}");
    let message = refused(&SMALL.replace("name = \"tell\"\n", "name = \"tell\"\nchildren = [\"find\"]\n"));
    assert!(message.contains("find"), "{message}");
    let message = refused(&SMALL.replace("slo_us = 200000", "slo_us = 1000"));
    assert!(
        message.contains("find-well") || message.contains("objective"),
        "{message}"
    );
    let message = refused(&SMALL.replace("accuracy = 0.8", "accuracy = nan"));
    assert!(message.contains("accuracy"), "{message}");
    let message = refused(&SMALL.replace("slo_us", "slo"));
    assert!(message.contains("slo"), "{message}");
    let message = refusal(&plan(folder.path(), &["--pipeline", "none.toml", "--rate", "10"]));
    assert!(message.contains("none.toml"), "{message}");
}

#[test]
fn a_pipeline_plan_is_simulated_with_its_branches_and_paths() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("small.toml"), SMALL).unwrap();
    let named = ["--pipeline", "small.toml"];
    let planned = plan(
        folder.path(),
        &[
            &named[..],
            &["--workers", "10", "--rate", "150", "--headroom", "1"],
        ]
        .concat(),
    );
    assert!(planned.status.success());
    let simulate = |rate: &str, more: &[&str]| {
        let args = [
            "simulate",
            "--plan",
            "plan.json",
            "--rate",
            rate,
            "--duration",
            "20s",
        ];
        kaskade(folder.path(), &[&args[..], &named, more].concat())
    };
    let quiet = json(&simulate("50", &["--json", "--svg", "course.svg"]));
    let loud = json(&simulate("400", &["--json"]));
    // Every request has three branches; none is lost or counted twice.
    assert_eq!(
        quiet["branches"]["answered"].as_u64().unwrap() + quiet["branches"]["dropped"].as_u64().unwrap(),
        3 * quiet["requests"].as_u64().unwrap()
    );
    assert!(quiet["slo_violation_ratio"].as_f64() < loud["slo_violation_ratio"].as_f64());
    assert!(loud["dropped"].as_u64().unwrap() > 0, "{loud}");
    let accuracy = quiet["accuracy"].as_f64().unwrap();
    let paths = quiet["paths"].as_array().unwrap();
    let (graded, branches) = paths.iter().fold((0.0, 0.0), |sum, path| {
        let count = path["answered"].as_f64().unwrap();
        (sum.0 + count * path["accuracy"].as_f64().unwrap(), sum.1 + count)
    });
    assert!((graded / branches - accuracy).abs() < 0.02, "{accuracy}");
    assert!(folder.path().join("course.svg").exists());
    let said = String::from_utf8(simulate("400", &[]).stdout).unwrap();
    for word in ["dropped", "branches", "violations", "find-well -> tell-"] {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_cascade_plan_needs_its_profile_to_be_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let profile = digits_profile();
    let gears = [
        "plan",
        "gears",
        "--profile",
        &profile,
        "--rate",
        "1000",
        "--slo-p95",
        "50ms",
    ];
    assert!(kaskade(folder.path(), &gears).status.success());
    let message = misuse(&kaskade(
        folder.path(),
        &["simulate", "--plan", "plan.json", "--rate", "10"],
    ));
    assert!(message.contains("--profile"), "{message}");
}

/// It said that the app has no pipeline.
#[test]
fn an_index_of_scenes_is_refused() {
    let app = "examples/traffic/app.toml";
    let message = refusal(&kaskade(ROOT, &["infer", "--app", app, "--index", "0"]));
    assert!(
        message.contains("`--index` reads no scenes") && message.contains("`--tensors"),
        "{message}"
    );
}
