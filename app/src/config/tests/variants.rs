//! Variants and what their task allows.

use super::*;

#[test]
fn answers_without_a_confidence_are_served_by_one_variant() {
    let problems = |task: &str, plan: &str| {
        let app =
            format!("name = \"a\"\ntask = \"{task}\"\n{plan}\n[[variants]]\nname = \"a\"\ndir = \"a\"\n");
        App::parse(&app).unwrap().problems().join("; ")
    };
    for task in ["embedding", "reranking"] {
        assert!(
            problems(task, "plan = { file = \"plan.json\" }").contains("no confidence"),
            "{task}"
        );
        assert!(
            !problems(task, "plan = { single = \"a\" }").contains("no confidence"),
            "{task}"
        );
    }
    assert!(!problems("multi_label", "plan = { file = \"plan.json\" }").contains("no confidence"));
}

#[test]
fn settings_of_other_tasks_than_token_classification_are_refused() {
    let problems = |task: &str, variant: &str, more: &str| {
        let app = format!("name = \"a\"\ntask = \"{task}\"\n{more}\n[[variants]]\nname = \"a\"\n{variant}\n");
        App::parse(&app).unwrap().problems().join("; ")
    };
    let (dir, file) = ("dir = 'a'\naggregation_strategy = 'first'", "file = 'a.onnx'");
    let graded = |metric: &str| format!("data = {{ metric = '{metric}', min_score = 0.5 }}");
    let (tokens, texts) = ("token_classification", "generation");
    let none = problems(tokens, dir, &graded("entity_f1"));
    assert!(
        !none.contains("aggregation_strategy") && !none.contains("metric"),
        "{none}"
    );
    for (found, key) in [
        (problems(texts, dir, ""), "aggregation_strategy: only"),
        (problems(tokens, dir, &graded("rouge_l")), "data.metric: "),
        (
            problems(texts, "dir = 'a'", &graded("entity_f1")),
            "data.metric: ",
        ),
        (problems(tokens, file, ""), "file: ONNX files give no entities"),
        (
            problems(tokens, dir, "confidence = { kind = 'margin' }"),
            "confidence: a token classifier",
        ),
    ] {
        assert!(found.contains(key), "{key}: {found}");
    }
    assert!(
        App::parse("name = 'a'\n[[variants]]\nname = 'a'\ndir = 'a'\naggregation_strategy = 'none'\n")
            .is_err()
    );
}

/// Returns the problems of an app with one variant.
fn problems_of(variant: &str) -> Vec<String> {
    let text = format!("name = \"a\"\n[[variants]]\nname = \"v\"\n{variant}\n");
    App::parse(&text).map_or_else(|(_, reason)| vec![reason], |app| app.problems())
}

#[test]
fn a_gpu_has_no_quantised_weights() {
    let on = |devices: &[&str], dtype: &str| {
        let workers = devices.iter().enumerate();
        let workers = workers
            .map(|(number, device)| format!("[[workers]]\nname = \"w{number}\"\ndevice = \"{device}\"\n"));
        let workers: String = workers.collect();
        let text =
            format!("name = \"a\"\n{workers}[[variants]]\nname = \"v\"\ndir = \"v\"\ndtype = \"{dtype}\"\n");
        let app = App::parse(&text).unwrap();
        let problems = app.problems().into_iter();
        problems
            .filter(|problem| problem.contains("dtype"))
            .collect::<String>()
    };
    assert!(on(&["cuda:0", "cuda:1"], "q8_0").contains("need the device `cpu`"));
    let fine: [(&[&str], &str); 5] = [
        (&["cuda:0"], "bf16"),
        (&["cuda:0"], "f32"),
        (&["cpu"], "q8_0"),
        (&["cuda:0", "cpu"], "q8_0"),
        (&[], "q4_0"),
    ];
    for (devices, dtype) in fine {
        assert_eq!(on(devices, dtype), "", "{devices:?} {dtype}");
    }
}

#[test]
fn fields_of_requests_are_for_chats() {
    let remote = "remote = { kind = \"openai\", base_url = \"http://127.0.0.1:1/v1\", model = \"m\", labels = [\"no\", \"yes\"] }";
    let oip = "remote = { kind = \"oip\", base_url = \"http://127.0.0.1:1\", model = \"m\" }";
    let set = |field: &str| remote.replace(" }", &format!(", {field} }}"));
    let thinks =
        "max_tokens = 512, omit = [\"temperature\"], extra_body = { reasoning_effort = \"minimal\" }";
    assert_eq!(problems_of(&set(thinks)), Vec::<String>::new());
    for (variant, expected) in [
        (
            set("omit = [\"messages\"]"),
            "remote.omit: `messages` is none of temperature",
        ),
        (
            set("extra_body = { model = \"x\" }"),
            "remote.extra_body: `model`",
        ),
        (
            oip.replace(" }", ", omit = [\"seed\"] }"),
            "remote.omit: is for `openai`",
        ),
        (
            oip.replace(" }", ", max_tokens = 9 }"),
            "remote.max_tokens: is for classification",
        ),
    ] {
        let found = problems_of(&variant);
        assert!(
            found.iter().any(|problem| problem.contains(expected)),
            "{variant}: {found:?}"
        );
    }
}

#[test]
fn a_variant_is_a_checkpoint_a_file_or_an_endpoint() {
    let problems = problems_of;
    let remote = "remote = { kind = \"openai\", base_url = \"http://127.0.0.1:1/v1\", model = \"m\", labels = [\"no\", \"yes\"] }";
    assert_eq!(problems(remote), Vec::<String>::new());
    assert_eq!(
        problems(&format!("{remote}\nprice = {{ input_tokens = 0.15 }}")),
        Vec::<String>::new()
    );
    let oip = "remote = { kind = \"oip\", base_url = \"http://127.0.0.1:1\", model = \"m\" }";
    assert_eq!(problems(oip), Vec::<String>::new());
    let sure = |confidence: &str| {
        let field = format!(", api = \"completions\", confidence = {{ {confidence} }} }}");
        remote.replace(" }", &field)
    };
    for confidence in [
        "agreement = {}",
        "agreement = { samples = 3, temperature = 1.0 }",
        "judge = { model = \"j\" }",
        "judge = { model = \"j\", base_url = \"https://j.example/v1\", api_key = { env = \"J\" }, price = { request = 1.0 } }",
    ] {
        assert_eq!(problems(&sure(confidence)), Vec::<String>::new(), "{confidence}");
    }
    for (confidence, expected) in [
        (
            "agreement = { samples = 1 }",
            "remote.confidence.agreement.samples",
        ),
        (
            "agreement = { temperature = 0.0 }",
            "remote.confidence.agreement.temperature",
        ),
        (
            "judge = { model = \"j\", prompt = \"{text}\" }",
            "has no `{answer}`",
        ),
        ("judge = { model = \"j\", api_key = \"sk-1\" }", "api_key"),
        (
            "judge = { model = \"j\", api_key = { env = \"J\" } }",
            "remote.confidence.judge.api_key",
        ),
    ] {
        let found = problems(&sure(confidence));
        assert!(
            found.iter().any(|problem| problem.contains(expected)),
            "{confidence}: {found:?}"
        );
        assert!(!found.concat().contains("sk-1"), "the key is shown: {found:?}");
    }
    assert_eq!(problems(&oip.replace("http:", "grpc:")), Vec::<String>::new());
    assert_eq!(problems("attached = true"), Vec::<String>::new());
    for (variant, expected) in [
        ("", "variants[0]: give one of"),
        ("dir = \"d\"\nfile = \"f\"", "variants[0]: give only one of"),
        ("dir = \"d\"\nattached = true", "variants[0]: give only one of"),
        ("attached = false", "variants[0]: give one of"),
        ("file = \"no.onnx\"", "variants[0].file: `no.onnx` is not there"),
        (&remote.replace("http:", "ftp:"), "variants[0].remote.base_url"),
        (&remote.replace("http:", "grpc:"), "variants[0].remote.base_url"),
        (&remote.replace(", \"yes\"", ""), "variants[0].remote.labels"),
        (&remote.replace("\"yes\"", "\"No\""), "variants[0].remote.labels"),
        (
            &oip.replace(" }", ", labels = [\"a\", \"b\"] }"),
            "variants[0].remote.labels",
        ),
        (
            &remote.replace(" }", ", prompt = \"hello\" }"),
            "variants[0].remote.prompt",
        ),
        (
            &remote.replace(" }", ", top_logprobs = 21 }"),
            "variants[0].remote.top_logprobs",
        ),
        (&remote.replace("openai", "ollama"), "unknown value `ollama`"),
        (&remote.replace(" }", ", api_key = \"sk-1\" }"), "api_key"),
        (
            &format!("{remote}\nprice = {{ request = -1.0 }}"),
            "variants[0].price",
        ),
    ] {
        let found = problems(variant);
        assert!(
            found.iter().any(|problem| problem.contains(expected)),
            "{variant}: {found:?}"
        );
        assert!(!found.concat().contains("sk-1"), "the key is shown: {found:?}");
    }
}

#[test]
fn a_key_is_read_from_its_place_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("key"), "sk-secret\n").unwrap();
    let text = "name = \"a\"\n[[variants]]\nname = \"v\"\n[variants.remote]\nkind = \"openai\"\nbase_url = \
                \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\nlabels = [\"no\", \"yes\"]\napi_key = { file = \"key\" }\n";
    let file = folder.path().join("app.toml");
    std::fs::write(&file, text).unwrap();
    let app = App::load(&file).unwrap();
    let config = app.variants[0].remote.as_ref().unwrap();
    let generation = kaskade_models::Generation::default();
    let endpoint = config.endpoint("v", app.task, &generation, None).unwrap();
    assert!(endpoint.key.is_some());
    assert!(!format!("{endpoint:?} {app:?}").contains("sk-secret"));
    std::fs::remove_file(folder.path().join("key")).unwrap();
    let error = config
        .endpoint("v", app.task, &generation, None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("key` cannot be read"), "{error}");
}
