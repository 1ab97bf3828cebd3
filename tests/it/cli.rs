//! The command line: exit codes, messages, and JSON output.

use std::path::Path;
use std::process::Output;

use kaskade_testkit::{DIGITS, ROOT, command, digits_profile, kaskade, said, text};

fn here() -> &'static Path {
    Path::new(ROOT)
}

/// The message of a run that refused its input: exit code 1, nothing on standard output, one line on standard error.
fn refusal(output: &Output) -> String {
    let message = kaskade_testkit::refusal(output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("kaskade: "), "{message}");
    message
}

#[test]
fn a_wrong_command_line_is_a_usage_error() {
    for args in [
        &["serve-everything"][..],
        &["profile"],
        &["profile", "--app", "a.toml", "--measure-for", "soon"],
        &["profile", "--app", "a.toml", "--batches", "0"],
        &["schema", "poem"],
        &["validate"],
        &["explain", "--colour"],
    ] {
        let output = kaskade(here(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains("--help"), "{args:?}");
    }
    for (args, missing) in [
        (&["bench", "--app", DIGITS][..], "--rate"),
        (&["serve", "--app", DIGITS, "--role", "worker"][..], "--nats"),
        (&["plan", "pipeline", "--rate", "10"][..], "--pipeline"),
        (&["infer", "digits", "--index", "7"][..], "--app"),
        (
            &[
                "bench",
                "--app",
                DIGITS,
                "--nats",
                NOWHERE,
                "--rate",
                "1",
                "--plan",
                "plan.json",
            ][..],
            "in this process",
        ),
    ] {
        let message = text(&kaskade(here(), args).stderr);
        assert_eq!(
            kaskade(here(), args).status.code(),
            Some(2),
            "{args:?}: {message}"
        );
        assert!(message.contains(missing), "{args:?}: {message}");
    }
}

#[test]
fn a_missing_file_is_named_with_a_remedy() {
    let message = refusal(&kaskade(here(), &["profile", "--app", "no/such.toml"]));
    assert!(message.contains("no/such.toml: cannot be read"), "{message}");
    assert!(message.contains("name an app's TOML file"), "{message}");
}

#[test]
fn a_malformed_app_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let app = "name = \"digits\"\nslo = { p95 = \"soon\" }\n[[variants]]\nname = \"tiny\"\ndir = \"tiny\"\n";
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let message = refusal(&kaskade(folder.path(), &["profile", "--app", "app.toml"]));
    assert!(
        message.contains("app.toml:2: `soon` is not a length of time"),
        "{message}"
    );
}

#[test]
fn validate_lists_every_problem_of_every_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "app.toml",
        "name = \"digits\"\n[[variants]]\nname = \"tiny\"\ndir = \"tiny\"\n[[variants]]\nname = \"tiny\"\ndir = \"b\"\n",
    );
    write("plan.json", r#"{"version": 1, "gears": []}"#);
    write("poem.json", r#"{"roses": "red"}"#);
    write("half.json", "{");
    let files = ["app.toml", "plan.json", "poem.json", "half.json", "absent.json"];
    let output = kaskade(folder.path(), &[&["validate", "--json"], &files[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = |file: usize| findings[file]["problems"].as_array().unwrap().clone();
    assert_eq!(problems(0).len(), 3, "{findings}");
    assert!(problems(0)[0].as_str().unwrap().starts_with("variants[1].name"));
    assert!(problems(1)[0].as_str().unwrap().contains("missing field"));
    assert!(problems(2)[0].as_str().unwrap().contains("neither a plan"));
    assert!(problems(3)[0].as_str().unwrap().contains("line 1"));
    assert!(problems(4)[0].as_str().unwrap().contains("cannot be read"));
    assert!(text(&output.stderr).contains("5 of 5 files cannot be used"));
}

/// Every other command names an app's file so, and a file that has no ending `.toml` was read as JSON.
#[test]
fn validate_takes_the_file_of_an_app_as_other_commands_do() {
    let folder = tempfile::tempdir().unwrap();
    let small = here().join("models/fixtures/bert-classification");
    let app = format!(
        "name = \"reviews\"\nplan = {{ single = \"small\" }}\n[[variants]]\nname = \"small\"\ndir = {small:?}\n"
    );
    std::fs::write(folder.path().join("app.conf"), app).unwrap();
    std::fs::write(folder.path().join("poem.json"), "{}").unwrap();
    let output = kaskade(folder.path(), &["validate", "--app", "app.conf"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim(), "app.conf: a valid app");
    let output = kaskade(folder.path(), &["validate", "poem.json", "--app", "app.conf"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("1 of 2 files cannot be used"));
}

/// What `init` writes is a valid app, and the commands that it prints plan and validate it.
#[test]
fn init_writes_an_app_that_can_be_profiled_and_planned() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |name: &str| format!("{ROOT}/examples/sentiment/weights/sentiment-{name}");
    let lines = (0..300).map(|number| {
        format!(
            "film {number} is {}\t{}\n",
            ["dull", "warm"][number % 2],
            number % 2
        )
    });
    std::fs::write(folder.path().join("data.tsv"), lines.collect::<String>()).unwrap();
    let (tiny, pico) = (weights("tiny"), weights("pico"));
    let args = [
        "init",
        "reviews",
        "--variant",
        &tiny,
        "--variant",
        &pico,
        "--data",
        "data.tsv",
    ];
    let output = kaskade(folder.path(), &args);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        said.contains("sentiment-pico (234 050 parameters), sentiment-tiny"),
        "{said}"
    );
    let valid = kaskade(folder.path(), &["validate", "reviews/app.toml", "--load"]);
    assert_eq!(text(&valid.stdout).trim(), "reviews/app.toml: a valid app");
    let mut next: Vec<Vec<&str>> = said
        .lines()
        .filter_map(|line| Some(line.strip_prefix("  kaskade ")?.split(' ').collect()))
        .collect();
    assert_eq!(next.len(), 3, "{said}");
    next[0].extend([
        "--rounds",
        "1",
        "--measure-for",
        "1ms",
        "--batches",
        "1,8",
        "--quiet",
    ]);
    for command in &next[..2] {
        let output = kaskade(folder.path(), command);
        assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    }
    let again = refusal(&kaskade(folder.path(), &args));
    assert!(again.contains("exists") && again.contains("--force"), "{again}");
    assert!(
        kaskade(folder.path(), &[&args[..], &["--force"]].concat())
            .status
            .success()
    );
    let none = refusal(&kaskade(
        folder.path(),
        &["init", "other", "--variant", "no/such"],
    ));
    assert!(none.contains("`hf download no/such --local-dir DIR`"), "{none}");
    assert_eq!(kaskade(folder.path(), &["init", "other"]).status.code(), Some(2));
    assert!(!folder.path().join("other").exists());
}

#[test]
fn validate_refuses_an_architecture_that_is_not_supported() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("funnel")).unwrap();
    write(
        "funnel/config.json",
        r#"{"architectures": ["FunnelForSequenceClassification"], "model_type": "funnel", "d_model": 768}"#,
    );
    write(
        "app.toml",
        "name = \"reviews\"\n[[variants]]\nname = \"small\"\ndir = \"funnel\"\n",
    );
    let output = kaskade(folder.path(), &["validate", "app.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    for part in [
        "app.toml: variants[0].dir: variant `small`",
        "`FunnelForSequenceClassification`, which is not supported",
        "docs/reference/architectures",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn validate_checks_pipelines_of_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let example = std::fs::read_to_string(here().join("examples/traffic/pipeline.json")).unwrap();
    let pipeline: serde_json::Value = serde_json::from_str(&example).unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    write("good.json", example);
    write("good.toml", toml::to_string(&pipeline).unwrap());
    let mut bad = pipeline;
    bad["tasks"][0]["name"] = "".into();
    write("bad.json", bad.to_string());
    write("bad.toml", toml::to_string(&bad).unwrap());
    let files = ["good.json", "good.toml", "bad.json", "bad.toml"];
    let output = kaskade(folder.path(), &[&["validate", "--json"], &files[..]].concat());
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for (file, problems) in [0, 0, 1, 1].into_iter().enumerate() {
        assert_eq!(findings[file]["kind"], "pipeline", "{findings}");
        let found = findings[file]["problems"].as_array().unwrap();
        assert_eq!(found.len(), problems, "{findings}");
        let named = |problem: &serde_json::Value| problem.as_str().unwrap().starts_with(files[file]);
        assert!(!found.iter().any(named), "the file is named twice: {findings}");
    }
    assert!(text(&output.stderr).contains("2 of 4 files cannot be used"));
}

#[test]
fn validate_finds_what_only_loading_shows() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = here().join("models/fixtures/mixtral");
    let dir = folder.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture.join(name), dir.join(name)).unwrap();
    }
    std::fs::write(
        folder.path().join("app.toml"),
        "name = \"a\"\ntask = \"generation\"\nplan = { single = \"small\" }\n[[variants]]\nname = \"small\"\ndir = \"model\"\n",
    )
    .unwrap();
    let validate = |more: &[&str]| kaskade(folder.path(), &[&["validate", "app.toml"], more].concat());
    assert!(validate(&["--load"]).status.success());
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let mut wrong = config;
    wrong["num_experts_per_tok"] = 99.into();
    std::fs::write(dir.join("config.json"), wrong.to_string()).unwrap();
    assert!(validate(&[]).status.success());
    let output = validate(&["--load"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(
        said.contains("variant `small`") && said.contains("num_experts_per_tok"),
        "{said}"
    );
    std::fs::write(dir.join("model.safetensors"), "no weights").unwrap();
    let output = validate(&[]);
    assert_eq!(output.status.code(), Some(1), "opening finds a malformed file");
    let said = text(&output.stdout);
    assert!(
        said.contains("variant `small`") && said.contains("model.safetensors"),
        "{said}"
    );
}

#[test]
fn validate_reads_the_samples_for_every_variant() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = here().join("models/fixtures/bert-classification");
    let app = ["small", "large"].map(|name| format!("[[variants]]\nname = \"{name}\"\ndir = \"{name}\"\n"));
    for name in ["small", "large"] {
        let dir = folder.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(fixture.join(file), dir.join(file)).unwrap();
        }
    }
    let app = format!(
        "name = \"a\"\ntask = \"classification\"\nplan = {{ single = \"small\" }}\n{}[data.validation.records]\nfile = \"a.csv\"\n",
        app.concat()
    );
    std::fs::write(folder.path().join("app.toml"), app).unwrap();
    let validate = |csv: &str| {
        std::fs::write(folder.path().join("a.csv"), csv).unwrap();
        kaskade(folder.path(), &["validate", "app.toml", "--load"])
    };
    assert!(validate("text,label\nthe sea,positive\n").status.success());
    for (csv, problem) in [
        ("text,label\n", "there are no samples in it"),
        ("words,label\nthe sea,1\n", "no column for the text"),
        ("text,label\nthe sea,3\n", "there is no class 3"),
    ] {
        let output = validate(csv);
        assert_eq!(output.status.code(), Some(1), "{csv}");
        let said = text(&output.stdout);
        assert!(
            said.contains("data.validation: ") && said.contains(problem),
            "{said}"
        );
        assert_eq!(said.trim().lines().count(), 1, "the file is one problem: {said}");
    }
    std::fs::remove_file(folder.path().join("large/tokenizer.json")).unwrap();
    let said = text(&validate("text,label\nthe sea,1\n").stdout);
    assert!(
        said.contains("variant `large`: data.validation") && said.contains("tokenizer"),
        "{said}"
    );
    assert!(!said.contains("variant `small`"), "{said}");
}

#[test]
fn the_compose_plan_serves_the_gpu_worker_on_cuda() {
    let plan = std::fs::read_to_string(here().join("examples/compose/plan.json")).unwrap();
    let plan = kaskade_policy::plan::Plan::from_json(&plan).unwrap();
    let app = kaskade_app::config::App::load(&here().join("examples/compose/app.toml")).unwrap();
    kaskade_app::planning::initial::check(&app, &plan).unwrap();
    let devices: Vec<&str> = plan
        .placement
        .iter()
        .filter(|replica| replica.worker == "gpu")
        .map(|replica| replica.device.as_str())
        .collect();
    assert_eq!(devices.len(), plan.variants.len());
    assert!(
        devices.iter().all(|device| device.starts_with("cuda")),
        "{devices:?}"
    );
    for replica in &plan.placement {
        let planned: kaskade_models::DeviceChoice = replica.device.parse().unwrap();
        assert_eq!(planned, app.device_at(&replica.worker), "{}", replica.id);
    }
}

#[test]
fn explain_knows_every_code_and_refuses_others() {
    let output = kaskade(here(), &["explain", "ksk0007"]);
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("KSK0007 "));
    let by_number = kaskade(here(), &["explain", "7"]);
    assert_eq!(by_number.stdout, output.stdout);
    let all = kaskade(here(), &["explain", "--json"]);
    let all: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    assert_eq!(all.as_array().unwrap().len(), kaskade_actors::Code::ALL.len());
    let message = refusal(&kaskade(here(), &["explain", "KSK9999"]));
    assert!(message.contains("`kaskade explain` lists them all"), "{message}");
}

#[test]
fn schemas_are_the_committed_ones() {
    for format in ["app", "plan", "profile", "pipeline", "channels"] {
        let output = kaskade(here(), &["schema", format]);
        assert!(output.status.success());
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let committed = here().join(format!("docs/{format}.schema.json"));
        let committed: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(committed).unwrap()).unwrap();
        assert_eq!(
            printed, committed,
            "run `kaskade schema {format} > docs/{format}.schema.json`"
        );
    }
}

#[test]
fn the_processor_passes_its_quick_self_test() {
    let folder = tempfile::tempdir().unwrap();
    let quick = [
        "selftest",
        "--suite",
        "quick",
        "--measure-for",
        "20ms",
        "--quiet",
        "--json",
    ];
    let output = kaskade(folder.path(), &[&quick[..], &["--out", "report.json"]].concat());
    let message = text(&output.stderr);
    assert!(output.status.success(), "{message}");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed["passed"], true);
    let written = std::fs::read(folder.path().join("report.json")).unwrap();
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&written).unwrap(),
        printed
    );
    let absent = kaskade(folder.path(), &[&quick[..], &["--device", "cuda:999"]].concat());
    assert_eq!(absent.status.code(), Some(1));
    let printed: serde_json::Value = serde_json::from_slice(&absent.stdout).unwrap();
    assert_eq!(printed["passed"], false);
    assert!(text(&absent.stderr).contains("`cuda:999` does not pass"));
    let wrong = kaskade(folder.path(), &["selftest", "--device", "tpu"]);
    assert_eq!(wrong.status.code(), Some(2));
}

const SENTIMENT: &str = "examples/sentiment/app.toml";

#[test]
fn a_text_family_answers_without_its_samples() {
    let question = ["infer", "--app", SENTIMENT, "--json", "--text"];
    for (sentence, class) in [
        ("a warm, funny and moving film", 1),
        ("a dull and lifeless mess", 0),
    ] {
        let output = kaskade(here(), &[&question[..], &[sentence]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let reply: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(reply["variant"], "sentiment-mini");
        let logits: Vec<f64> = serde_json::from_value(reply["outputs"][0]["data"].clone()).unwrap();
        assert!(logits[class] > logits[1 - class], "{sentence}: {reply}");
    }
    assert!(kaskade(here(), &["validate", SENTIMENT]).status.success());
}

#[test]
fn a_missing_samples_variable_is_named() {
    for args in [
        &["profile", "--app", SENTIMENT, "--quiet"][..],
        &["infer", "--app", SENTIMENT, "--index", "0"],
    ] {
        let message = refusal(&kaskade(here(), args));
        assert!(message.contains("the environment variable `SST2`"), "{message}");
    }
}

#[test]
fn samples_are_read_and_a_malformed_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("dev.tsv", "a warm film\t1\na dull film\n");
    write("test.tsv", "a warm film\t1\na dull film\t0\n");
    let with_samples = |args: &[&str]| {
        let mut command = command(here(), args);
        command.env("SST2", folder.path()).output().unwrap()
    };
    let output = with_samples(&["infer", "--app", SENTIMENT, "--index", "1"]);
    assert!(
        text(&output.stdout).starts_with("class 0, which is right"),
        "{output:?}"
    );
    let message = refusal(&with_samples(&["profile", "--app", SENTIMENT, "--quiet"]));
    assert!(
        message.contains("dev.tsv cannot be used: line 2: has 1 columns"),
        "{message}"
    );
    std::fs::remove_file(folder.path().join("test.tsv")).unwrap();
    let message = refusal(&with_samples(&[
        "infer",
        "--app",
        SENTIMENT,
        "--text",
        "a warm film",
    ]));
    assert!(message.contains("data.test.tsv.file: `"), "{message}");
}

#[test]
fn a_model_that_is_not_worth_its_cost_is_left_out_of_the_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let profile = "examples/sentiment/profile.json";
    for objective in ["ap", "eo"] {
        let args = [
            "plan",
            "cascade",
            "--app",
            SENTIMENT,
            "--profile",
            profile,
            "--force",
            "--out",
        ];
        let objective = [plan.to_str().unwrap(), "--objective", objective];
        let output = kaskade(here(), &[&args[..], &objective[..]].concat());
        assert!(
            text(&output.stdout).contains("dropped sentiment-mini"),
            "{output:?}"
        );
        let plan = std::fs::read_to_string(&plan).unwrap();
        assert!(
            plan.contains("sentiment-tiny") && !plan.contains("sentiment-mini"),
            "{plan}"
        );
    }
}

#[test]
fn channels_are_measured_by_size() {
    let folder = tempfile::tempdir().unwrap();
    let args = [
        "profile",
        "channels",
        "--rounds",
        "9",
        "--max-size",
        "64KiB",
        "--out",
        "c.json",
        "--json",
    ];
    let done = kaskade(folder.path(), &args);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(
        text(&done.stderr).contains("--network"),
        "channels that are not measured are named"
    );
    let written = std::fs::read_to_string(folder.path().join("c.json")).unwrap();
    let measured: serde_json::Value = serde_json::from_str(&written).unwrap();
    assert_eq!(
        measured,
        serde_json::from_slice::<serde_json::Value>(&done.stdout).unwrap()
    );
    for channel in ["same_device", "same_host"] {
        let samples = measured[channel]["measured"]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 9, "256 bytes to 64 KiB");
        assert!(
            samples
                .iter()
                .all(|sample| sample["seconds"].as_f64().unwrap() > 0.0)
        );
    }
    let of_64_kib = |channel: &str| {
        measured[channel]["measured"]["samples"][8]["seconds"]
            .as_f64()
            .unwrap()
    };
    assert!(of_64_kib("same_device") < of_64_kib("same_host"), "{measured}");
}

#[test]
fn memory_is_measured_for_whole_models_and_partitions() {
    let app = here().join("examples/sentiment/app.toml");
    let app = app.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let measure = |partitions: &str| {
        let args = [
            "profile",
            "memory",
            "--app",
            app,
            "--variant",
            "sentiment-mini",
            "--batches",
            "1,32",
        ];
        let done = kaskade(
            folder.path(),
            &[&args[..], &["--partitions", partitions, "--json"]].concat(),
        );
        assert!(done.status.success(), "{}", text(&done.stderr));
        let measured: Vec<serde_json::Value> = serde_json::from_slice(&done.stdout).unwrap();
        measured
    };
    let bytes = |memory: &serde_json::Value, field: &str| memory[field].as_f64().unwrap();
    let whole = &measure("1")[0];
    assert!(bytes(whole, "loaded_bytes") >= 4.0 * bytes(whole, "parameters"));
    assert!(bytes(&whole["batches"][1], "bytes") >= bytes(&whole["batches"][0], "bytes"));
    let partitions = measure("4");
    assert_eq!(partitions.len(), 4);
    let parameters: f64 = partitions
        .iter()
        .map(|partition| bytes(partition, "parameters"))
        .sum();
    assert!((parameters - bytes(whole, "parameters")).abs() < 1.0);
    // The last three hold one block each; the first also holds the embeddings.
    for partition in &partitions[1..] {
        assert!(
            bytes(partition, "loaded_bytes") < 0.75 * bytes(whole, "loaded_bytes"),
            "{partitions:?}"
        );
    }
    let args = ["profile", "memory", "--app", app, "--variant", "no-such"];
    assert!(refusal(&kaskade(folder.path(), &args)).contains("sentiment-mini"));
}

#[test]
fn existing_files_are_replaced_only_with_force() {
    let folder = tempfile::tempdir().unwrap();
    let profile = digits_profile();
    let plan = ["plan", "cascade", "--profile", &profile];
    for file in ["plan.json", "graph.svg"] {
        std::fs::write(folder.path().join(file), "mine").unwrap();
        let message = refusal(&kaskade(
            folder.path(),
            &[&plan[..], &["--svg", "graph.svg"]].concat(),
        ));
        assert!(
            message.contains(&format!("{file} exists")) && message.contains("--force"),
            "{message}"
        );
        assert_eq!(std::fs::read_to_string(folder.path().join(file)).unwrap(), "mine");
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert!(kaskade(folder.path(), &plan).status.success());
    assert!(refusal(&kaskade(folder.path(), &plan)).contains("plan.json exists"));
    let forced = kaskade(folder.path(), &[&plan[..], &["--force"]].concat());
    assert!(forced.status.success(), "{}", text(&forced.stderr));
    for command in [
        &["plan", "gears", "--profile", "none.json", "--rate", "10"][..],
        &["plan", "pipeline", "--pipeline", "none.toml", "--rate", "10"],
        &["plan", "placement", "--profile", "none.json"],
        &["profile", "--app", "none.toml", "--out", "plan.json"],
        &["profile", "channels", "--out", "plan.json"],
        &["selftest", "--suite", "quick", "--out", "plan.json"],
        &["simulate", "--plan", "none.json", "--svg", "plan.json"],
    ] {
        let message = refusal(&kaskade(folder.path(), command));
        assert!(message.contains("plan.json exists"), "{command:?}: {message}");
    }
}

/// Hours of measurements were lost where their file could not be written.
#[test]
fn outputs_are_checked_before_the_work() {
    let out = "/proc/out.json";
    for command in [
        &["profile", "--app", DIGITS, "--out", out][..],
        &["profile", "channels", "--nats", NOWHERE, "--out", out],
        &["demo", "--out", "/proc/demo"],
        &["plan", "cascade", "--profile", "none.json", "--out", out],
        &[
            "plan",
            "cascade",
            "--profile",
            "none.json",
            "--out",
            "none-plan.json",
            "--svg",
            out,
        ],
        &[
            "plan",
            "gears",
            "--profile",
            "none.json",
            "--rate",
            "10",
            "--out",
            out,
        ],
        &["selftest", "--suite", "quick", "--out", out],
        &["simulate", "--plan", "none.json", "--svg", out],
    ] {
        let message = refusal(&kaskade(here(), command));
        assert!(
            message.contains("/proc/") && message.contains("cannot be written"),
            "{command:?}: {message}"
        );
    }
}

/// No process listens there.
const NOWHERE: &str = "nats://127.0.0.1:1";

#[test]
fn a_temporary_failure_has_its_own_exit_code() {
    let channels = [
        "profile", "channels", "--rounds", "1", "--out", "c.json", "--nats", NOWHERE,
    ];
    let folder = tempfile::tempdir().unwrap();
    let absent = kaskade(folder.path(), &channels);
    assert_eq!(absent.status.code(), Some(75), "{}", text(&absent.stderr));
    let wrong = [&channels[..7], &["nats://host:port"]].concat();
    let wrong = kaskade(folder.path(), &wrong);
    assert_eq!(wrong.status.code(), Some(1), "{}", text(&wrong.stderr));
    let (code, message) = said(&["serve", "--app", DIGITS, "--role", "worker", "--nats", NOWHERE]);
    assert_eq!(code, Some(75), "{message}");
    assert!(!folder.path().join("c.json").exists());
}

#[test]
fn errors_are_json_on_request() {
    let error = |args: &[&str]| {
        let output = kaskade(here(), args);
        assert!(output.stdout.is_empty(), "{args:?}");
        let line = text(&output.stderr);
        let line = line.trim_end().lines().last().unwrap_or_default();
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        (output.status.code(), value["error"].clone())
    };
    let (code, wrong) = error(&["explain", "KSK9999", "--json"]);
    assert_eq!(code, Some(1));
    assert_eq!(
        (&wrong["code"], &wrong["retryable"]),
        (&serde_json::Value::Null, &false.into())
    );
    assert!(wrong["message"].as_str().unwrap().contains("KSK9999"), "{wrong}");
    let (code, usage) = error(&["explain", "--colour", "--json"]);
    assert_eq!(code, Some(2));
    assert!(usage["message"].as_str().unwrap().contains("--colour"), "{usage}");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("c.json").display().to_string();
    let absent = ["profile", "channels", "--json", "--out", &out, "--nats", NOWHERE];
    let (code, absent) = error(&absent);
    assert_eq!(code, Some(75));
    assert_eq!(
        (&absent["code"], &absent["retryable"]),
        (&"KSK0012".into(), &true.into())
    );
    assert!(
        absent["help"].as_str().unwrap().contains("nats-server"),
        "{absent}"
    );
}

#[test]
fn the_help_groups_commands_and_completions_and_man_pages_cover_them() {
    let help = text(&kaskade(here(), &["--help"]).stdout);
    for line in [
        "Start:",
        "Build:",
        "Serve:",
        "Clients:",
        "Files:",
        "Help:",
        "Precedence: flag",
    ] {
        assert!(help.contains(line), "{line}: {help}");
    }
    let folder = tempfile::tempdir().unwrap();
    let man = kaskade(folder.path(), &["man", "pages"]);
    assert!(man.status.success(), "{}", text(&man.stderr));
    let bash = kaskade(here(), &["completions", "bash"]);
    assert!(bash.status.success());
    let bash = text(&bash.stdout);
    for command in [
        "demo",
        "profile-memory",
        "plan-request",
        "serve",
        "infer",
        "validate",
        "man",
    ] {
        let page = std::fs::read_to_string(folder.path().join(format!("pages/kaskade-{command}.1"))).unwrap();
        assert!(page.contains("SYNOPSIS"), "{command}");
        let last = command.rsplit('-').next().unwrap();
        assert!(bash.contains(last), "{command}");
    }
    assert!(refusal(&kaskade(folder.path(), &["man", "pages"])).contains("--force"));
}
