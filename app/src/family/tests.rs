use super::*;

#[test]
fn an_attached_variant_is_not_loaded() {
    let app = "name = \"a\"\ntask = \"classification\"\n[[variants]]\nname = \"rule\"\nattached = true\n";
    let app = App::parse(app).unwrap();
    let family = Family::of(&app);
    let rule = &family.members[0];
    assert!(rule.open().is_ok(), "it has no files");
    let refused = rule.load(DeviceChoice::Cpu).err().unwrap().to_string();
    assert!(
        refused.starts_with("`rule` is answered by an actor or a Python stage"),
        "{refused}"
    );
}

/// It was served: a classifier's logits as vectors, and a text classifier among language models.
#[test]
fn a_checkpoint_of_another_task_is_refused() {
    let fixtures = std::path::Path::new(kaskade_testkit::ROOT).join("models/fixtures");
    let load = |task: &str, fixture: &str| {
        let dir = fixtures.join(fixture);
        let app = format!("name = \"a\"\ntask = \"{task}\"\n[[variants]]\nname = \"small\"\ndir = {dir:?}\n");
        let app = App::parse(&app).unwrap();
        let loaded = Family::of(&app).members[0].load(DeviceChoice::Cpu);
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
    }
}
