use kaskade_models::Tensor;

use super::*;

#[test]
fn an_attached_variant_is_not_loaded() {
    let app = "name = \"a\"\ntask = \"classification\"\n[[variants]]\nname = \"rule\"\nattached = true\n";
    let app = App::parse(app).unwrap();
    let family = Family::from_app(&app);
    let rule = &family.members[0];
    assert!(rule.open().is_ok(), "it has no files");
    let refused = rule.load(DeviceChoice::Cpu).err().unwrap().to_string();
    assert!(
        refused.starts_with("`rule` is answered by an actor or a Python stage"),
        "{refused}"
    );
}

/// Regression: such a checkpoint was served, for instance a classifier's logits as embeddings, or a text classifier
/// among language models.
#[test]
fn a_checkpoint_of_another_task_is_refused() {
    let fixtures = std::path::Path::new(kaskade_testkit::ROOT).join("models/fixtures");
    let load = |task: &str, fixture: &str| {
        let dir = fixtures.join(fixture);
        let app = format!("name = \"a\"\ntask = \"{task}\"\n[[variants]]\nname = \"small\"\ndir = {dir:?}\n");
        let app = App::parse(&app).unwrap();
        let loaded = Family::from_app(&app).members[0].load(DeviceChoice::Cpu);
        loaded.map(|_| ()).map_err(|error| error.to_string())
    };
    for (task, fixture) in [
        ("classification", "bert-classification"),
        ("embedding", "sentence-transformer"),
        ("ranking", "sentence-transformer"),
        ("generation", "gpt2"),
    ] {
        assert_eq!(load(task, fixture), Ok(()), "{task}");
    }
    for (task, fixture, named) in [
        ("embedding", "bert-classification", "`task = \"embedding\"`"),
        ("generation", "bert-classification", "those of `classification`"),
        ("classification", "sentence-transformer", "those of `embedding`"),
        ("multi_label", "bert-classification", "those of `classification`"),
    ] {
        let error = load(task, fixture).unwrap_err();
        assert!(error.contains("`small`") && error.contains(named), "{error}");
        assert_eq!(
            error.contains("multi_label_classification"),
            task == "multi_label",
            "{error}"
        );
    }
}

/// Returns an app with two checkpoints; `id2label` states the class names of the second.
fn app_with_second_classes(folder: &std::path::Path, id2label: &str) -> App {
    let fixture = std::path::Path::new(kaskade_testkit::ROOT).join("models/fixtures/bert-classification");
    let config = std::fs::read_to_string(fixture.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let mut variants = String::new();
    for (name, id2label) in [
        ("small", r#"{"0": "bad", "1": "good", "2": "neutral"}"#),
        ("large", id2label),
    ] {
        let dir = folder.join(name);
        std::fs::create_dir_all(&dir).unwrap();
        config["id2label"] = serde_json::from_str(id2label).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        std::fs::copy(fixture.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
        variants.extend([format!("[[variants]]\nname = \"{name}\"\ndir = {dir:?}\n")]);
    }
    let app = format!("name = \"a\"\ntask = \"classification\"\nplan = {{ single = \"small\" }}\n{variants}");
    App::parse(&app).unwrap()
}

/// Regression: an app was valid although only its small variant had a tokenizer, and escalated requests failed.
#[test]
fn every_variant_that_reads_texts_needs_a_tokenizer_if_one_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let weights = std::path::Path::new(kaskade_testkit::ROOT).join("examples/sentiment/weights");
    let copy = |name: &str, files: &[&str]| {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        for file in files {
            std::fs::copy(weights.join("sentiment-pico").join(file), dir.join(file)).unwrap();
        }
    };
    let checkpoint = ["config.json", "model.safetensors"];
    copy("none", &checkpoint);
    copy("with", &[&checkpoint[..], &["tokenizer.json"]].concat());
    let check = |names: [&str; 2], data: &str| {
        let variants = names.iter().zip(["small", "large"]).map(|(dir, name)| {
            let dir = folder.path().join(dir);
            format!("[[variants]]\nname = \"{name}\"\ndir = {dir:?}\n")
        });
        let app = format!("name = \"a\"\n{}{data}", variants.collect::<String>());
        let app = App::parse(&app).unwrap();
        let checked = Family::from_app(&app).check_tokenizers(&app.data);
        checked.map_err(|error| error.to_string())
    };
    assert_eq!(check(["with", "with"], ""), Ok(()));
    assert_eq!(check(["none", "none"], ""), Ok(()), "clients may send tokens");
    let large = check(["with", "none"], "").unwrap_err();
    assert!(
        large.contains("`large`") && large.contains("`small` reads texts"),
        "{large}"
    );
    let small = check(["none", "with"], "").unwrap_err();
    assert!(
        small.contains("`small`") && small.contains("`large` reads texts"),
        "{small}"
    );
    let data = check(["none", "none"], "[data.validation.tsv]\nfile = \"a.tsv\"\n").unwrap_err();
    assert!(
        data.contains("`small`") && data.contains("data sets hold texts"),
        "{data}"
    );
}

/// Regression: `serve` answered with classes in another order.
#[test]
fn an_app_whose_checkpoints_have_other_classes_is_not_served() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_second_classes(folder.path(), r#"{"0": "good", "1": "bad", "2": "mixed"}"#);
    let refused = Family::from_app(&app).check_classes().unwrap_err().to_string();
    assert!(
        refused.starts_with("variant `large`: its classes are `good`, `bad`")
            && refused.contains("`id2label`"),
        "{refused}"
    );
    let refused = crate::serving::Service::builder(&app).start().err().unwrap();
    assert!(refused.to_string().contains("`id2label`"), "{refused}");
    for id2label in [
        r#"{"0": "BAD", "1": "GOOD", "2": "NEUTRAL"}"#,
        r#"{"0": "good", "1": "neutral", "2": "bad"}"#,
    ] {
        let app = app_with_second_classes(folder.path(), id2label);
        assert!(Family::from_app(&app).check_classes().is_ok());
    }
    // This host has only the checkpoints of its own replicas.
    std::fs::remove_dir_all(folder.path().join("large")).unwrap();
    assert!(Family::from_app(&app).check_classes().is_ok());
    // Regression: an unreadable configuration was skipped.
    let app = app_with_second_classes(folder.path(), r#"{"0": "good", "1": "bad", "2": "neutral"}"#);
    std::fs::write(folder.path().join("small/config.json"), "{").unwrap();
    let refused = Family::from_app(&app).check_classes().unwrap_err().to_string();
    assert!(
        refused.starts_with("variant `large`") && refused.contains("`small`, whose files do not tell it ("),
        "{refused}"
    );
}

/// Regression: classes not named in a `config.json`, such as those of ONNX files, were compared only by `profile`.
#[test]
fn classes_that_only_loading_shows_are_compared_when_they_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_second_classes(folder.path(), r#"{"0": "neutral", "1": "bad", "2": "good"}"#);
    let mut family = Family::from_app(&app);
    for member in &mut family.members {
        member.classes = Arc::default();
    }
    let loader = family.loader();
    let load = |variant: &str| {
        let replica = Replica::whole(format!("{variant}-0"), variant, "local", "cpu");
        loader(&replica).map(|_| ())
    };
    assert_eq!(load("small"), Ok(()));
    let refused = load("large").unwrap_err();
    assert!(
        refused
            .starts_with("variant `large`: its classes are `neutral`, `bad`, `good`, and those of `small`")
            && refused.contains("state `classes`"),
        "{refused}"
    );
    assert_eq!(load("small"), Ok(()));
}

/// Regression: the error suggested renaming the classes, which made the answers wrong.
#[test]
fn a_checkpoint_with_its_classes_in_another_order_answers_in_that_of_the_app() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_second_classes(folder.path(), r#"{"0": "Neutral", "1": "BAD", "2": "good"}"#);
    let family = Family::from_app(&app);
    let ids = vec![Tensor::from_i64("input_ids", &[4], &[2, 7, 5, 3]).unwrap()];
    let answers = |place: usize| {
        let mut loaded = family.members[place].load(DeviceChoice::Cpu).unwrap();
        assert_eq!(loaded.info.labels, ["bad", "good", "neutral"]);
        loaded.model.run(std::slice::from_ref(&ids)).remove(0).unwrap()
    };
    let (own, ordered) = (answers(0), answers(1));
    let (own, moved) = (own[0].to_f32().unwrap(), ordered[0].to_f32().unwrap());
    assert_eq!(moved, [own[1], own[2], own[0]]);
    let best = (0..3)
        .max_by(|one, other| moved[*one].total_cmp(&moved[*other]))
        .unwrap();
    let label = ordered.iter().find(|output| output.name == "label").unwrap();
    assert_eq!(label.to_texts().unwrap(), [["bad", "good", "neutral"][best]]);
    // The app's file states the order if the checkpoint that states it is on another host.
    std::fs::remove_dir_all(folder.path().join("small")).unwrap();
    let refused = Family::from_app(&app).members[1]
        .load(DeviceChoice::Cpu)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("state `classes` in the app's file"), "{refused}");
    let mut app = app;
    app.classes = ["good", "bad", "neutral"].map(str::to_owned).to_vec();
    let loaded = Family::from_app(&app).members[1].load(DeviceChoice::Cpu).unwrap();
    assert_eq!(loaded.info.labels, ["good", "bad", "neutral"]);
}

/// Regression: any checkpoint in the directory was served, such as retrained weights with the thresholds of the
/// previous ones.
#[test]
fn a_worker_refuses_another_checkpoint_than_the_profiled_one() {
    let folder = tempfile::tempdir().unwrap();
    let app = app_with_second_classes(folder.path(), r#"{"0": "bad", "1": "good", "2": "neutral"}"#);
    let large = Family::from_app(&app).members[1].clone();
    let profiled = large.fingerprint().unwrap();
    let replica = Replica::whole("large-0", "large", "local", "cpu").with_checkpoint(profiled.as_deref());
    let load = |replica: &Replica| Family::from_app(&app).loader()(replica).map(|_| ());
    assert_eq!(load(&replica), Ok(()));
    let config = folder.path().join("large/config.json");
    let retrained = std::fs::read_to_string(&config)
        .unwrap()
        .replace("neutral", "mixed");
    std::fs::write(&config, retrained).unwrap();
    let refused = load(&replica).unwrap_err();
    assert!(
        refused.starts_with("`large` is another checkpoint than the profiled one")
            && refused.contains("kaskade profile"),
        "{refused}"
    );
    assert_eq!(load(&replica.clone().with_checkpoint(None)), Ok(()));
    // `serve`, `validate` and `plan apply --app` report it before anything starts.
    let mut plan = crate::planning::initial::single(&app, "large");
    let named = plan.placement[0].clone().with_checkpoint(profiled.as_deref());
    plan.placement[0] = named;
    let refused = crate::planning::initial::check(&app, &plan)
        .unwrap_err()
        .to_string();
    assert!(
        refused.starts_with("placement[0].checkpoint: `large` is another"),
        "{refused}"
    );
    // A host without files of this variant.
    std::fs::remove_dir_all(folder.path().join("large")).unwrap();
    assert!(crate::planning::initial::check(&app, &plan).is_ok());
}

#[test]
fn converted_weights_are_another_checkpoint() {
    let fixture = std::path::Path::new(kaskade_testkit::ROOT).join("models/fixtures/bert-classification");
    let fingerprint = |dtype: &str| {
        let app = format!(
            "name = \"a\"\ntask = \"classification\"\n[[variants]]\nname = \"small\"\ndir = {fixture:?}\n{dtype}"
        );
        let app = App::parse(&app).unwrap();
        Family::from_app(&app).members[0].fingerprint().unwrap().unwrap()
    };
    assert_eq!(
        fingerprint("dtype = \"q8_0\"\n"),
        format!("{}/q8_0", fingerprint(""))
    );
}
