use super::*;

fn root(path: &str) -> PathBuf {
    Path::new(kaskade_testkit::ROOT).join(path)
}

fn weights(names: &[&str]) -> Vec<Origin> {
    let paths = names.iter().map(|name| root(name));
    paths.map(|path| Origin::Path(None, path)).collect()
}

const SENTIMENT: [&str; 2] = [
    "examples/sentiment/weights/sentiment-mini",
    "examples/sentiment/weights/sentiment-pico",
];

/// Writes two labelled sentences to a file in `folder`.
fn samples(folder: &Path, name: &str, text: &str) -> PathBuf {
    let file = folder.join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// Writes the draft and loads it like `validate`.
fn written(app: &NewApp) -> (Draft, App) {
    let draft = app.draft().unwrap();
    crate::report::write_file(&draft.file, &draft.text).unwrap();
    let app = App::load(&draft.file).unwrap();
    crate::planning::initial::of(&app).unwrap();
    (draft, app)
}

fn refused(app: &NewApp) -> String {
    crate::report::in_one_line(&app.draft().unwrap_err())
}

#[test]
fn checkpoints_and_samples_become_a_valid_app() {
    let folder = tempfile::tempdir().unwrap();
    let json = "{\"text\": \"a warm film\", \"label\": \"positive\"}\n{\"text\": \"dull\", \"label\": 0}\n";
    for (name, content, format) in [
        ("a.tsv", "a warm film\t1\ndull\t0\n", "tsv"),
        ("b.tsv", "sentence\tlabel\na warm film\t1\ndull\t0\n", "records"),
        ("c.csv", "sentence,label\na warm film,1\ndull,0\n", "records"),
        ("d.jsonl", json, "records"),
    ] {
        let app = NewApp {
            folder: folder.path().join("reviews"),
            origins: weights(&SENTIMENT),
            validation: Some(samples(folder.path(), name, content)),
            ..NewApp::default()
        };
        let (draft, app) = written(&app);
        assert_eq!(
            (draft.name.as_str(), draft.task),
            ("reviews", Task::Classification)
        );
        let names: Vec<&str> = app.variants.iter().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["sentiment-pico", "sentiment-mini"], "smallest first");
        assert_eq!(draft.samples, Some(2));
        assert!(
            draft.text.contains(&format!("[data.validation.{format}]")),
            "{}",
            draft.text
        );
        assert!(draft.next_commands()[1].starts_with("kaskade plan cascade"));
    }
}

#[test]
fn folders_of_classes_and_of_splits_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = |path: &str, text: &str| {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for (path, text) in [
        ("classes/negative/a.txt", "dull"),
        ("classes/positive/a.txt", "warm"),
    ] {
        file(path, text);
    }
    for split in ["validation", "test"] {
        file(
            &format!("splits/{split}.jsonl"),
            "{\"text\": \"dull\", \"label\": 0}\n",
        );
    }
    file("other/train.jsonl", "{\"text\": \"dull\", \"label\": 0}\n");
    let with = |data: &str| NewApp {
        folder: folder.path().join("reviews"),
        origins: weights(&SENTIMENT),
        validation: Some(folder.path().join(data)),
        ..NewApp::default()
    };
    let (draft, _) = written(&with("classes"));
    assert!(
        draft.samples == Some(2) && draft.text.contains("split = \".\""),
        "{}",
        draft.text
    );
    let (draft, app) = written(&with("splits"));
    assert!(
        draft.samples == Some(1) && app.data.test.is_some(),
        "{}",
        draft.text
    );
    let message = refused(&with("other"));
    assert!(message.contains("train.jsonl"), "{message}");
}

/// Uses a GGUF file, an endpoint and an image model.
#[test]
fn the_task_is_that_of_the_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let draft = |origins: Vec<Origin>| {
        let app = NewApp {
            folder: folder.path().to_owned(),
            name: "a".parse().ok(),
            origins,
            ..NewApp::default()
        };
        written(&app).0
    };
    let endpoint = |model: &str| Origin::endpoint("http://127.0.0.1:1/v1", model, Some("KEY"));
    let models = |names: &[&str]| weights(names);
    assert_eq!(draft(models(&["models/fixtures/vit"])).task, Task::Classification);
    assert_eq!(draft(models(&["models/fixtures/cnn"])).task, Task::Classification);
    assert_eq!(draft(vec![endpoint("org/big")]).task, Task::Generation);
    let mut both = models(&["models/fixtures/gguf/llama"]);
    both.insert(0, endpoint("org/big"));
    let cascade = draft(both);
    let names: Vec<&str> = cascade
        .variants
        .iter()
        .map(|variant| variant.name.as_str())
        .collect();
    assert_eq!(
        (cascade.task, names.as_slice()),
        (Task::Generation, ["llama", "big"].as_slice())
    );
    assert!(
        cascade.text.contains("api_key = { env = \"KEY\" }"),
        "{}",
        cascade.text
    );
    let mut classifies = models(&SENTIMENT[..1]);
    classifies.push(endpoint("org/big"));
    let classifies = draft(classifies).text;
    assert!(
        classifies.contains("labels = [\"negative\", \"positive\"]"),
        "{classifies}"
    );
}

#[test]
fn what_cannot_be_served_or_read_is_refused_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let app = |origins: Vec<Origin>| NewApp {
        folder: folder.path().join("reviews"),
        origins,
        ..NewApp::default()
    };
    let absent = refused(&app(weights(&["models/fixtures/none/such"])));
    assert!(absent.contains("hf download none/such --local-dir"), "{absent}");
    let no_checkpoint = refused(&app(weights(&["models/src"])));
    assert!(no_checkpoint.contains("is not a checkpoint"), "{no_checkpoint}");
    let tasks = refused(&app(weights(&[SENTIMENT[0], "models/fixtures/gpt2"])));
    assert!(
        tasks.contains("`sentiment-mini` answers `classification`")
            || tasks.contains("`gpt2` answers `generation`"),
        "{tasks}"
    );
    let stated = refused(&NewApp {
        task: Some(Task::Embedding),
        ..app(weights(&SENTIMENT))
    });
    assert!(stated.contains("not `embedding`"), "{stated}");
    let twice = refused(&app(weights(&[SENTIMENT[0], SENTIMENT[0]])));
    assert!(twice.contains("--variant NAME="), "{twice}");
    for (name, text, said) in [
        ("a.txt", "a film\t1\n", "the name must end with"),
        ("a.jsonl", "no JSON\n", "line 1"),
        (
            "b.jsonl",
            "{\"text\": \"a\", \"label\": \"no class\"}\n",
            "no class",
        ),
        ("a.csv", "", "a.csv"),
    ] {
        let data = refused(&NewApp {
            validation: Some(samples(folder.path(), name, text)),
            ..app(weights(&SENTIMENT))
        });
        assert!(data.contains(said) && data.contains(name), "{data}");
    }
    let missing = refused(&NewApp {
        validation: Some(folder.path().join("none.csv")),
        ..app(weights(&SENTIMENT))
    });
    assert!(missing.contains("none.csv"), "{missing}");
    let unnamed = refused(&NewApp {
        folder: folder.path().join("a b"),
        ..app(weights(&SENTIMENT))
    });
    assert!(unnamed.contains("`a b` cannot name an app"), "{unnamed}");
    assert!(!folder.path().join("reviews").exists());
}

#[test]
fn a_variant_may_be_named() {
    let origin: Origin = "small=checkpoints/a".parse().unwrap();
    assert_eq!(origin, Origin::Path("small".parse().ok(), "checkpoints/a".into()));
    let origin: Origin = "checkpoints/a".parse().unwrap();
    assert_eq!(origin, Origin::Path(None, "checkpoints/a".into()));
}

/// Regression: two endpoints of one model could not be told apart in the error "give one another name: `--variant
/// NAME=`".
#[test]
fn endpoints_of_one_model_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let app = |addresses: [&str; 2]| NewApp {
        folder: folder.path().to_owned(),
        name: "a".parse().ok(),
        origins: addresses
            .iter()
            .map(|address| Origin::endpoint(address, "org/big", None))
            .collect(),
        ..NewApp::default()
    };
    let [near, far] = ["http://127.0.0.1:1/v1", "http://127.0.0.1:2/v1?region=eu"];
    let twice = refused(&app([near, far]));
    assert!(
        twice.contains(&format!("`--endpoint NAME={far} --model org/big`")),
        "{twice}"
    );
    let other = format!("far={far}");
    let (_, app) = written(&app([near, &other]));
    let names: Vec<&str> = app.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(names, ["big", "far"]);
}

/// Regression: names in the data were refused and endpoints had none, although `config.json` beside the file states
/// them.
#[test]
fn an_onnx_file_has_the_names_of_its_classes_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    // A model with an empty graph.
    std::fs::write(&model, [0x3a, 0]).unwrap();
    let config = r#"{"id2label": {"0": "negative", "1": "positive"}}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let json = "{\"text\": \"a warm film\", \"label\": \"positive\"}\n";
    let app = |others: Vec<Origin>| NewApp {
        folder: folder.path().join("reviews"),
        task: Some(Task::Classification),
        origins: [vec![Origin::Path(None, model.clone())], others].concat(),
        validation: Some(samples(folder.path(), "a.jsonl", json)),
        ..NewApp::default()
    };
    assert_eq!(app(Vec::new()).draft().unwrap().samples, Some(1));
    let endpoint = Origin::endpoint("http://127.0.0.1:1/v1", "org/big", None);
    let draft = app(vec![endpoint]).draft().unwrap();
    assert!(
        draft.samples == Some(1) && draft.text.contains("labels = [\"negative\", \"positive\"]"),
        "{}",
        draft.text
    );
}
