mod pipelines;
mod variants;

use std::path::Path;

use kaskade_models::power::{PowerConfig, SourceKind};
use kaskade_policy::plan::Batching;

use super::*;

/// A minimal app.
const MINIMAL: &str = "name = \"digits\"\n[[variants]]\nname = \"tiny\"\ndir = \"tiny\"\n";

fn refused(text: &str) -> (usize, String) {
    App::parse(text).unwrap_err()
}

#[test]
fn the_least_app_has_working_defaults() {
    let app = App::parse(MINIMAL).unwrap();
    assert_eq!(app.plan, PlanSource::Largest);
    assert_eq!(app.estimator(), Estimator::MaxSquared);
    assert_eq!(app.device_of(&app.variants[0]), DeviceChoice::Cpu);
    assert_eq!(app.ingress.default_budget.to_string(), "2s");
    assert_eq!(Batching::from(app.batching), Batching::default());
    assert_eq!(app.workers.len(), 1);
    assert_eq!(PowerConfig::from(&app.power), PowerConfig::default());
}

#[test]
fn every_field_is_read() {
    let app = App::parse(
        r#"
        name = "faq"
        task = "question_answering"
        slo = { p99 = "100ms" }
        device = "cuda"
        plan = { single = "small" }
        confidence = { kind = "margin" }

        [[variants]]
        name = "small"
        dir = "small"
        device = "cuda:1"

        [data.validation.idx]
        images = "i"
        labels = "l"
        skip = 10
        take = 5
        shape = [1, 8, 8]
        normalise = { divide_by = 16, mean = 0.5, std = 0.25 }

        [batching]
        max_batch = 8
        max_wait = "500us"

        [planner]
        profile = "profile.json"
        memory = "4GB"
        hop_latency = "50us"
        ranges = 8
        timeout = "5s"
        replan_on_load_drift = true
        interval = "1m"

        [ingress]
        max_in_flight = 8
        queue_capacity = 4
        default_budget = "1s"
        max_budget = "10s"
        drain_timeout = "3s"

        [[workers]]
        name = "a"
        replicas = 2

        [[workers]]
        name = "gpu"
        device = "cuda:2"
        memory = "8GB"

        [power]
        sources = ["rapl", "modelled"]
        processor = { idle_watts = 3, active_watts = 12.5 }

        [nats]
        url = "nats://127.0.0.1:4222"
        credentials = "app.creds"
        nkey = "app/nkey"
        ca = "authority.pem"
        certificate = "client.pem"
        max_payload = "4 MiB"
        replicas = 7

        [http]
        address = "0.0.0.0:8080"
        "#,
    )
    .unwrap();
    assert_eq!(app.task.estimator(), Estimator::Span);
    assert_eq!(app.nats.max_payload.bytes(), 4 << 20);
    assert_eq!(app.nats.nkey.as_deref(), Some(Path::new("app/nkey")));
    assert_eq!(app.http.unwrap().address.socket().port(), 8080);
    let problems = app.problems().join("; ");
    assert!(
        problems.contains("nats.nkey: `app/nkey` is not there"),
        "{problems}"
    );
    assert!(problems.contains("both `credentials` and `nkey`"), "{problems}");
    assert!(problems.contains("needs both"), "{problems}");
    assert!(
        problems.contains("nats.replicas: JetStream supports at most 5 replicas of a stream, not 7"),
        "{problems}"
    );
    assert_eq!(app.estimator(), Estimator::Margin);
    assert_eq!(app.slo, LatencyObjective::P99(HumanDuration::from_millis(100)));
    let (small, workers) = (&app.variants[0], &app.workers);
    assert_eq!(app.device_of(small), DeviceChoice::Cuda(1));
    assert_eq!(app.device_of_worker(&workers[0]), DeviceChoice::Cuda(0));
    assert_eq!(app.device_on(&workers[0], small), DeviceChoice::Cuda(1));
    assert_eq!(app.device_on(&workers[1], small), DeviceChoice::Cuda(2));
    assert_eq!(app.device_at("gpu"), DeviceChoice::Cuda(2));
    assert_eq!(workers[1].memory.unwrap().bytes(), 8_000_000_000);
    assert_eq!(Batching::from(app.batching).max_wait_us, 500);
    let planner = app.planner.as_ref().unwrap();
    assert!(planner.replan_on_load_drift);
    assert_eq!((planner.memory.bytes(), planner.ranges.get()), (4_000_000_000, 8));
    let power = PowerConfig::from(&app.power);
    assert_eq!(power.sources, [SourceKind::Rapl, SourceKind::Modelled]);
    assert!((power.processor.active_watts - 12.5).abs() < f64::EPSILON);
    let Some(data::DataSet::Idx(idx)) = &app.data.validation else {
        panic!("{:?}", app.data)
    };
    assert!((idx.normalise.apply(16) - 2.0).abs() < 1e-6);
    // What is written is read again.
    let again = App::parse(&toml::to_string(&app).unwrap()).unwrap();
    assert_eq!(again, app);
}

#[test]
fn durations_of_durable_requests_are_read() {
    let table = "[durable]\nretry_timeout = \"10m\"\nack_wait = \"3s\"\nresult_retention = \"2h\"\n\
                 dead_letter_retention = \"3days\"\n";
    let app = App::parse(&format!("{MINIMAL}{table}")).unwrap();
    let durable = app.durable.unwrap();
    assert_eq!(durable.retry_timeout.to_string(), "10m");
    assert_eq!(durable.ack_wait.to_string(), "3s");
    assert_eq!(durable.result_retention.to_string(), "2h");
    assert_eq!(durable.dead_letter_retention.to_string(), "3days");
}

/// Requests of such an app had headers that every receiver refused.
#[test]
fn a_budget_of_more_than_an_hour_is_refused_with_the_limit() {
    let problems = |max_budget: &str| {
        let text = format!("{MINIMAL}[ingress]\nmax_budget = \"{max_budget}\"\n");
        let mut problems = App::parse(&text).unwrap().problems();
        problems.retain(|problem| problem.starts_with("ingress."));
        problems
    };
    assert_eq!(problems("1h"), [""; 0]);
    assert_eq!(
        problems("2h"),
        ["ingress.max_budget: 2h is longer than the longest budget; write `1h` or less"]
    );
}

#[test]
fn each_malformed_value_is_refused_with_its_line() {
    let after = |extra: &str| format!("{MINIMAL}{extra}");
    for (text, line, reason) in [
        (String::new(), 1, "missing field `name`"),
        ("name = \"a.b\"\nvariants = []\n".to_owned(), 1, "NATS subject"),
        (
            format!("colour = \"red\"\n{MINIMAL}"),
            1,
            "unknown field `colour`",
        ),
        (
            format!("\nslo = {{ p95 = \"soon\" }}\n{MINIMAL}"),
            2,
            "not a length of time",
        ),
        (
            format!("\n\nslo = {{ p95 = \"0s\" }}\n{MINIMAL}"),
            3,
            "shorter than a microsecond",
        ),
        (
            format!("\nslo = \"80ms\"\n{MINIMAL}"),
            2,
            "write `slo = { p95 = \"80ms\" }`",
        ),
        (format!("slo = {{}}\n{MINIMAL}"), 1, "names no quantile"),
        (
            format!("slo = {{ p50 = \"1s\", p99 = \"2s\" }}\n{MINIMAL}"),
            1,
            "several quantiles",
        ),
        (
            format!("slo = {{ p75 = \"1s\" }}\n{MINIMAL}"),
            1,
            "unknown value `p75`",
        ),
        (format!("slo = 100\n{MINIMAL}"), 1, "a table with one of p50"),
        (
            after("[durable]\nsilence = \"5s\"\n"),
            6,
            "`silence` was renamed; write `ack_wait`",
        ),
        (
            format!("family = \"family.toml\"\n{MINIMAL}"),
            3,
            "`variants` belongs to the family file",
        ),
        (
            format!("task = \"poetry\"\n{MINIMAL}"),
            1,
            "unknown value `poetry`",
        ),
        (
            format!("plan = {{ best = \"x\" }}\n{MINIMAL}"),
            1,
            "unknown value `best`",
        ),
        (
            after("[http]\naddress = \"here\"\n"),
            6,
            "not an address to listen on",
        ),
        (
            after("[http]\naddress = \"localhost:80\"\n"),
            6,
            "not an address to listen on",
        ),
        (after("weight = 3\n"), 5, "unknown field `weight`"),
        (after("[batching]\nmax_batch = 0\n"), 6, "at least 1"),
        (after("[ingress]\nmax_in_flight = -1\n"), 6, "integer"),
        (format!("device = \"tpu\"\n{MINIMAL}"), 1, "`tpu` is not a device"),
        (
            after("[power]\ngpu = { idle_watts = 1, active_watts = 0 }\n"),
            6,
            "not a power",
        ),
        (
            after("[power.processor]\nidle_watts = nan\nactive_watts = 1\n"),
            6,
            "not a power",
        ),
        (after("[power]\nsources = [\"sun\"]\n"), 6, "unknown value `sun`"),
        (
            after("[data.test.idx]\nimages = \"i\"\nlabels = \"l\"\nshape = [0]\n"),
            8,
            "at least 1",
        ),
        (after("[nats]\nmax_payload = \"0 B\"\n"), 6, "no room"),
        (after("[nats\n"), 5, "table"),
    ] {
        let (actual, message) = refused(&text);
        assert!(message.contains(reason), "{message}\n{text}");
        assert_eq!(actual, line, "{message}\n{text}");
    }
}

#[test]
fn a_value_without_its_unit_or_of_zero_is_refused_with_what_to_write() {
    let tsv = "[data.test.tsv]\nfile = \"t\"\ntake = 0\n";
    for (text, line, expected) in [
        (format!("{MINIMAL}{tsv}"), 7, "use a whole number of at least 1"),
        (
            format!("slo = {{ p95 = 100 }}\n{MINIMAL}"),
            1,
            "write `\"100ms\"`",
        ),
        (
            format!("slo = {{ p95 = 0.1 }}\n{MINIMAL}"),
            1,
            "a length of time with its unit",
        ),
    ] {
        let (actual, message) = refused(&text);
        assert!(message.contains(expected), "{message}\n{text}");
        assert_eq!(actual, line, "{message}\n{text}");
    }
}

#[test]
fn several_formats_of_a_data_set_are_named() {
    let tables =
        "[data.validation.tsv]\nfile = \"t\"\n[data.validation.idx]\nimages = \"i\"\nlabels = \"l\"\n";
    let inline = "data.validation = { tsv = { file = \"t\" }, idx = { images = \"i\", labels = \"l\" } }\n";
    for text in [format!("{MINIMAL}{tables}"), format!("{inline}{MINIMAL}")] {
        let (_, message) = refused(&text);
        let expected = "`data.validation` has the formats `idx` and `tsv`; only one is allowed";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn every_inconsistency_is_named_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.toml");
    let text = r#"
        name = "digits"
        plan = { single = "huge" }
        batching = { min_queue = 9, max_batch = 4 }
        [[variants]]
        name = "tiny"
        dir = "tiny"
        [[variants]]
        name = "tiny"
        dir = "present"
        [data.test.idx]
        images = "i"
        labels = "present/config.json"
        [[workers]]
        name = "a"
        [[workers]]
        name = "a"
    "#;
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir(folder.path().join("present")).unwrap();
    let config = r#"{"architectures": ["BertForSequenceClassification"]}"#;
    std::fs::write(folder.path().join("present/config.json"), config).unwrap();
    let Err(ConfigError::Inconsistent { problems, .. }) = App::load(&file) else {
        panic!("accepted")
    };
    let paths: Vec<&str> = problems
        .iter()
        .map(|problem| problem.split(':').next().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "variants[1].name",
            "workers[1].name",
            "variants[0].dir",
            "plan.single",
            "batching.min_queue",
            "data.test.idx.images",
        ]
    );
}

#[test]
fn serving_needs_no_files_of_data_sets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.toml");
    let text = "name = \"a\"\n[[variants]]\nname = \"v\"\ndir = \"present\"\n[data.validation.tsv]\nfile = \"absent.tsv\"\n";
    std::fs::write(&file, text).unwrap();
    std::fs::create_dir(folder.path().join("present")).unwrap();
    let config = r#"{"architectures": ["BertForSequenceClassification"]}"#;
    std::fs::write(folder.path().join("present/config.json"), config).unwrap();
    let error = App::load(&file).unwrap_err().to_string();
    assert!(error.contains("data.validation.tsv.file"), "{error}");
    App::load_to_serve(&file).unwrap();
}

#[test]
fn a_folder_that_is_no_checkpoint_is_named_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in [
        "empty",
        "adapter",
        "run/checkpoint-90",
        "run/checkpoint-500",
        "run/runs",
        "models--org--name/refs",
        "models--org--name/snapshots/abc",
        "models--org--name/snapshots/def",
    ] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    std::fs::write(at("adapter/adapter_config.json"), "{}").unwrap();
    for name in ["run/checkpoint-90", "run/checkpoint-500"] {
        std::fs::write(at(name).join("config.json"), "{}").unwrap();
    }
    std::fs::write(at("models--org--name/refs/main"), "def\n").unwrap();
    let names = [
        "absent",
        "absent.gguf",
        "empty",
        "adapter",
        "run",
        "models--org--name",
    ];
    let variants = names.map(|name| {
        format!(
            "[[variants]]\nname = \"{}\"\ndir = \"{name}\"\n",
            name.replace('.', "-")
        )
    });
    std::fs::write(
        at("app.toml"),
        format!("name = \"reviews\"\n{}", variants.concat()),
    )
    .unwrap();
    let Err(ConfigError::Inconsistent { problems, .. }) = App::load(&at("app.toml")) else {
        panic!("accepted")
    };
    let expected = [
        "absent` does not exist",
        "absent.gguf` does not exist",
        "empty` is not a checkpoint: it is neither a GGUF file",
        "`model.merge_and_unload().save_pretrained(FOLDER)`",
        "checkpoint-500`",
        "snapshots/def`",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, part) in problems.iter().zip(expected) {
        assert!(problem.contains(part), "{part}: {problem}");
    }
}

#[test]
fn a_checkpoint_of_an_unsupported_architecture_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    for name in ["bert", "funnel", "broken"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    write(
        "bert/config.json",
        r#"{"architectures": ["BertForSequenceClassification"], "model_type": "bert"}"#,
    );
    write(
        "funnel/config.json",
        r#"{"architectures": ["FunnelForSequenceClassification"], "model_type": "funnel"}"#,
    );
    write("broken/config.json", "[]");
    let variants = ["bert", "funnel", "broken"]
        .map(|name| format!("[[variants]]\nname = \"{name}-base\"\ndir = \"{name}\"\n"));
    write("app.toml", &format!("name = \"reviews\"\n{}", variants.concat()));
    let Err(ConfigError::Inconsistent { problems, .. }) = App::load(&folder.path().join("app.toml")) else {
        panic!("accepted")
    };
    let [unknown, broken] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    for part in [
        "variants[1].dir: variant `funnel-base`",
        "funnel/config.json` names the architecture `FunnelForSequenceClassification`, which is not supported",
        "ForSequenceClassification",
        "docs/reference/architectures",
    ] {
        assert!(unknown.contains(part), "{part}: {unknown}");
    }
    assert!(
        broken.starts_with("variants[2].dir: variant `broken-base`"),
        "{broken}"
    );
}

#[test]
fn apps_share_a_family_file() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir_all(folder.path().join("models/small")).unwrap();
    write(
        "models/small/config.json",
        r#"{"architectures": ["GPT2LMHeadModel"]}"#,
    );
    write("models/test.jsonl", "");
    let family = "task = \"generation\"\n[[variants]]\nname = \"small\"\ndir = \"small\"\n\
                  [data.test.records]\nfile = \"test.jsonl\"\n";
    write("models/family.toml", family);
    let app = "name = \"a\"\nfamily = \"models/family.toml\"\n";
    write("a.toml", app);
    let loaded = App::load(&folder.path().join("a.toml")).unwrap();
    assert_eq!((loaded.task, loaded.family.as_ref()), (Task::Generation, None));
    assert_eq!(loaded.variants[0].dir, Some(folder.path().join("models/small")));
    let Some(data::DataSet::Records(set)) = &loaded.data.test else {
        panic!("{:?}", loaded.data)
    };
    assert_eq!(set.file, folder.path().join("models/test.jsonl"));
    // An app that was parsed without its family is written as it was read.
    let parsed = App::parse(app).unwrap();
    let again = App::parse(&toml::to_string(&parsed).unwrap()).unwrap();
    assert_eq!(again, parsed);

    write("models/family.toml", &format!("name = \"a\"\n{family}"));
    let error = App::load(&folder.path().join("a.toml")).unwrap_err().to_string();
    assert!(error.contains("family.toml:1: unknown field `name`"), "{error}");
    write("b.toml", "name = \"b\"\nfamily = \"no/family.toml\"\n");
    let error = App::load(&folder.path().join("b.toml")).unwrap_err().to_string();
    assert!(error.contains("no/family.toml: cannot be read"), "{error}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = App::load(Path::new("no/such/app.toml")).unwrap_err().to_string();
    assert!(error.starts_with("no/such/app.toml: cannot be read"), "{error}");
}

#[test]
fn the_committed_schema_is_the_one_of_the_types() {
    let file = Path::new(kaskade_testkit::ROOT).join("docs/app.schema.json");
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        let written = serde_json::to_string_pretty(&App::schema()).unwrap() + "\n";
        std::fs::write(&file, written).unwrap();
    }
    let schema = serde_json::to_value(App::schema()).unwrap();
    let committed = std::fs::read_to_string(&file).unwrap();
    let committed: serde_json::Value = serde_json::from_str(&committed).unwrap();
    assert_eq!(
        committed, schema,
        "docs/app.schema.json is stale: run `kaskade schema app > docs/app.schema.json`, or this test with UPDATE_SCHEMAS=1"
    );
}

/// Planning and profiling must not require the files that they write.
#[test]
fn an_app_is_planned_before_its_plan_and_profiles_exist() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.toml");
    let model = Path::new(kaskade_testkit::ROOT).join("models/fixtures/bert-classification");
    let app = format!(
        "name = \"reviews\"\ntask = \"classification\"\nplan = {{ file = \"plan.json\" }}\n[[variants]]\nname = \"small\"\ndir = {model:?}\n\
         [planner]\nprofile = \"profile.json\"\n"
    );
    std::fs::write(&file, app).unwrap();
    App::load_to_plan(&file).unwrap();
    let problems = |loaded: Result<App, ConfigError>| match loaded.unwrap_err() {
        ConfigError::Inconsistent { problems, .. } => problems,
        other => panic!("{other}"),
    };
    let [profile, plan] = <[String; 2]>::try_from(problems(App::load(&file))).unwrap();
    assert!(
        profile.starts_with("planner.profile:") && profile.contains("`kaskade profile`"),
        "{profile}"
    );
    assert!(
        plan.starts_with("plan.file:") && plan.contains("`kaskade plan`"),
        "{plan}"
    );
    // A process may serve the stored plan.
    assert_eq!(problems(App::load_to_serve(&file)), [profile]);
}
