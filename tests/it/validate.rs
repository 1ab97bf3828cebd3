//! `kaskade validate`: apps, plans and pipelines.

use kaskade_testkit::{kaskade, text};

use crate::support::here;

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
    let findings = &findings["files"];
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
    let findings = &findings["files"];
    for (file, problems) in [0, 0, 1, 1].into_iter().enumerate() {
        assert_eq!(findings[file]["kind"], "pipeline", "{findings}");
        let found = findings[file]["problems"].as_array().unwrap();
        assert_eq!(found.len(), problems, "{findings}");
        let named = |problem: &serde_json::Value| problem.as_str().unwrap().starts_with(files[file]);
        assert!(!found.iter().any(named), "the file is named twice: {findings}");
    }
    assert!(text(&output.stderr).contains("2 of 4 files cannot be used"));
}

/// A sample that the signature allows and the model does not take was found by `profile` only.
#[test]
fn validate_checks_samples_as_the_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = here().join("models/fixtures/bert-classification");
    let dir = folder.path().join("model");
    std::fs::create_dir(&dir).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(fixture.join(file), dir.join(file)).unwrap();
    }
    let validate = |format: &str, file: &str, content: &str| {
        let app = format!(
            "name = \"a\"\ntask = \"classification\"\nplan = {{ single = \"small\" }}\n[[variants]]\nname = \"small\"\ndir = \"model\"\n\
             [data.validation.{format}]\nfile = \"{file}\"\n"
        );
        std::fs::write(folder.path().join("app.toml"), app).unwrap();
        std::fs::write(folder.path().join(file), content).unwrap();
        let output = kaskade(folder.path(), &["validate", "app.toml", "--load"]);
        (output.status.code(), text(&output.stdout))
    };
    // The bytes of the text's length count too.
    let most = "a ".repeat((1 << 17) - 2);
    assert_eq!(
        validate("records", "a.csv", &format!("text,label\n{most},1\n")).0,
        Some(0)
    );
    for (format, file, content, line) in [
        ("records", "a.csv", format!("text,label\nsea,1\n{most}a,1\n"), 3),
        ("tsv", "a.tsv", format!("sea\t1\n{most}a\t1\n"), 2),
    ] {
        let (code, said) = validate(format, file, &content);
        assert_eq!(code, Some(1), "{said}");
        let place = format!("{file}, line {line})");
        assert!(
            said.contains("data.validation: sample 1 (")
                && said.contains(&place)
                && said.contains("longer than 262144 bytes"),
            "{said}"
        );
    }
    let (code, said) = validate("tsv", "a.tsv", "sea\t1\nland\t1sky\t0\n");
    assert!(
        code == Some(1) && said.contains("line 2: has 3 columns, and the lines before it have 2"),
        "{said}"
    );
}

/// Requests failed at the first chat, or at each text.
#[test]
fn validate_finds_chat_templates_and_vocabularies_that_cannot_be_used() {
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
    let validate = |template: &str| {
        std::fs::write(dir.join("chat_template.jinja"), template).unwrap();
        let output = kaskade(folder.path(), &["validate", "app.toml", "--load"]);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, remarks) = validate("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!(
        (code, remarks.contains("note:")),
        (Some(0), false),
        "{said}{remarks}"
    );
    let (code, said, _) = validate("{% for m in %}");
    assert_eq!(code, Some(1));
    assert!(
        said.contains("variant `small`: the chat template failed") && said.contains("syntax error"),
        "{said}"
    );
    let (code, _, remarks) = validate("{{ raise_exception('send a system message') }}");
    assert!(
        code == Some(0) && remarks.contains("note: variant `small`: for a chat of one message"),
        "{remarks}"
    );
    std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    let (code, _, remarks) = validate("");
    assert!(
        code == Some(0) && remarks.contains("note: variant `small` takes tokens"),
        "{remarks}"
    );
    std::fs::write(dir.join("vocab.json"), "{}").unwrap();
    std::fs::write(dir.join("merges.txt"), "").unwrap();
    std::fs::write(
        dir.join("tokenizer_config.json"),
        r#"{"tokenizer_class": "OwnTokenizer"}"#,
    )
    .unwrap();
    let (code, said, _) = validate("");
    assert_eq!(code, Some(1));
    assert!(
        said.contains("`vocab.json`, `merges.txt`") && said.contains("`OwnTokenizer`"),
        "{said}"
    );
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
