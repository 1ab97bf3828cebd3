use super::*;

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn placed(expected: &[&str], found: &[&str]) -> Result<Option<Vec<usize>>, ClassMismatch> {
    let classes = FamilyClasses {
        stated: names(expected),
        ..FamilyClasses::default()
    };
    classes.order(&names(found))
}

/// Regression: a correct checkpoint in another order was refused, and the suggested remedy led to wrong answers.
#[test]
fn another_order_is_found_whatever_the_spelling() {
    let expected = ["very_negative", "n\u{e9}utral", "Positive"];
    for found in [
        ["positive", "very negative", "n\u{e9}utral"],
        ["POSITIVE ", "Very-Negative", "ne\u{301}utral"],
    ] {
        assert_eq!(placed(&expected, &found), Ok(Some(vec![1, 2, 0])));
    }
    assert_eq!(
        placed(&expected, &["very negative", "N\u{c9}UTRAL", "positive"]),
        Ok(None)
    );
}

/// Regression: the classes -1 and 1 were exchanged, because their names were equal without the sign.
#[test]
fn names_that_differ_in_spelling_alone_may_be_others() {
    assert_eq!(
        placed(&["-1", "0", "1"], &["1", "0", "-1"]),
        Ok(Some(vec![2, 1, 0]))
    );
    assert_eq!(
        placed(&["Crane", "crane"], &["crane", "Crane"]),
        Ok(Some(vec![1, 0]))
    );
    assert_eq!(
        placed(&["+", "-", "_"], &["_", "-", "+"]),
        Ok(Some(vec![2, 1, 0]))
    );
}

/// Regression: such classes were assumed to be in the same order, and `pos` was answered as `negative`.
#[test]
fn only_some_of_the_same_names_are_refused() {
    let expected = ["negative", "neutral", "positive"];
    let error = placed(&expected, &["pos", "neutral", "neg"]).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("its classes `pos`, `neg` have other names")
            && error.contains("`negative`, `positive`,"),
        "{error}"
    );
    // A placeholder name is at its own index, and so is a single remaining name.
    for found in [["LABEL_0", "LABEL_1", "positive"], ["negative", "neutral", "pos"]] {
        assert_eq!(placed(&expected, &found), Ok(None), "{found:?}");
    }
}

/// Checkpoints spell some of the thousand classes of `ImageNet` differently.
#[test]
fn a_tenth_of_the_names_may_be_spelled_otherwise() {
    let expected: Vec<String> = (0..20).map(|class| format!("class {class}")).collect();
    let mut found = expected.clone();
    (found[3], found[7]) = ("three".to_owned(), "seven".to_owned());
    assert_eq!(Order::of(&expected, &found), Order::Assumed);
    found[11] = "eleven".to_owned();
    assert!(matches!(Order::of(&expected, &found), Order::Partly(others) if others.len() == 3));
}

/// Some `ImageNet` checkpoints list all synonyms of a class, others only the first.
#[test]
fn a_synonym_is_the_name_of_the_same_class() {
    let classes = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let listed = classes(&["tench, Tinca tinca", "cock", "great grey owl, Strix nebulosa"]);
    assert_eq!(
        Order::of(&listed, &classes(&["tench", "cock", "great grey owl"])),
        Order::Same
    );
    // The first synonym of a class may be the name of another class.
    let (dog, both) = (
        classes(&["Cardigan, Welsh corgi", "cardigan"]),
        classes(&["Cardigan", "cardigan"]),
    );
    assert_eq!(Order::of(&dog, &both), Order::Same);
    assert!(matches!(
        Order::of(&classes(&["crane bird", "crane"]), &classes(&["crane", "crane"])),
        Order::Partly(_)
    ));
    let others = classes(&["carp, Cyprinus", "cock", "owl"]);
    assert!(matches!(Order::of(&listed, &others), Order::Partly(_)));
}

/// Regression: no remark was made about names of which none is equal.
#[test]
fn an_assumed_order_is_said() {
    let classes = FamilyClasses {
        stated: names(&["negative", "positive"]),
        ..FamilyClasses::default()
    };
    let said = classes.assumption("large", &names(&["bad", "good"])).unwrap();
    assert!(
        said.starts_with("`large` has other names for its classes (`bad`, `good`) than the app's file")
            && said.contains("(`negative`, `positive`)"),
        "{said}"
    );
    for own in [
        ["LABEL_0", "LABEL_1"],
        ["Negative", "positive"],
        ["positive", "negative"],
    ] {
        assert_eq!(classes.assumption("large", &names(&own)), None, "{own:?}");
    }
    assert_eq!(
        FamilyClasses::default().assumption("large", &names(&["a", "b"])),
        None
    );
}

#[test]
fn other_classes_and_numbers_of_classes_are_refused() {
    let expected = ["negative", "positive"];
    for found in [&["negative", "neutral", "positive"][..], &["positive", "neutral"]] {
        let error = placed(&expected, found).unwrap_err().to_string();
        assert!(
            error.contains("`classes`") && error.contains("`negative`, `positive`"),
            "{error}"
        );
    }
    // Either of two classes with one name may be meant.
    assert!(placed(&["crane", "owl", "crane"], &["owl", "crane", "crane"]).is_err());
    assert!(placed(&["crane", "crane", "owl"], &["crane", "owl", "jay"]).is_err());
    let many: Vec<String> = (0..1_000).map(|class| format!("c{class}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let error = placed(&many, &expected).unwrap_err().to_string();
    assert!(error.contains("1000 in all") && error.len() < 500, "{error}");
}

#[test]
fn names_that_tell_nothing_have_the_same_numbers() {
    let expected = ["negative", "positive"];
    for found in [["LABEL_0", "LABEL_1"], ["bad", "good"], ["negative", "good"]] {
        assert_eq!(placed(&expected, &found), Ok(None), "{found:?}");
    }
    assert_eq!(
        placed(&["crane", "owl", "crane"], &["crane", "eule", "crane"]),
        Ok(None)
    );
    assert_eq!(FamilyClasses::default().order(&names(&expected)), Ok(None));
}

#[test]
fn the_first_names_count_and_a_missing_checkpoint_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = |name: &str, names: &[&str]| {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let id2label: BTreeMap<String, &&str> = names
            .iter()
            .enumerate()
            .map(|(class, name)| (class.to_string(), name))
            .collect();
        let config = serde_json::json!({"id2label": id2label});
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
        (name.to_owned(), Source::Directory(dir))
    };
    let unnamed = source("u", &["LABEL_0", "LABEL_1"]);
    let (first, other) = (source("a", &["no", "yes"]), source("p", &["yes", "no"]));
    let classes = |sources: &[&(String, Source)]| FamilyClasses {
        sources: sources.iter().map(|source| (*source).clone()).collect(),
        ..FamilyClasses::default()
    };
    // Regression: all others were compared with the variant without names.
    let all = classes(&[&unnamed, &first, &other]);
    assert_eq!(all.names(), ["no", "yes"]);
    assert_eq!(all.order(&names(&["yes", "no"])), Ok(Some(vec![1, 0])));
    let missing = ("gone".to_owned(), Source::Directory(folder.path().join("gone")));
    let partial = classes(&[&missing, &other]);
    assert!(partial.names().is_empty());
    let error = partial.order(&names(&["yes", "no"])).unwrap_err().to_string();
    assert!(
        error.contains("`gone`") && error.contains("state `classes`"),
        "{error}"
    );
    assert_eq!(partial.order(&names(&["LABEL_0", "LABEL_1"])), Ok(None));
    assert_eq!(classes(&[&other, &missing]).names(), ["yes", "no"]);
    // Regression: an ONNX file on another host stated no names, so hosts had different orders.
    let onnx = ("onnx".to_owned(), Source::Onnx(folder.path().join("small.onnx")));
    let partial = classes(&[&onnx, &other]);
    assert!(partial.names().is_empty());
    let error = partial.order(&names(&["yes", "no"])).unwrap_err().to_string();
    assert!(
        error.contains("`onnx`, whose checkpoint is not on this host"),
        "{error}"
    );
    // Regression: an unreadable configuration was reported as being on another host.
    let broken = source("broken", &["no", "yes"]);
    std::fs::write(folder.path().join("broken/config.json"), "{").unwrap();
    let partial = classes(&[&broken, &other]);
    assert!(partial.names().is_empty());
    let error = partial.order(&names(&["yes", "no"])).unwrap_err().to_string();
    assert!(
        error.contains("`broken`, whose files do not tell it (") && error.contains("is not a configuration"),
        "{error}"
    );
}

#[test]
fn an_onnx_file_has_the_names_beside_it_or_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let onnx = folder.path().join("onnx");
    std::fs::create_dir(&onnx).unwrap();
    let source = Source::Onnx(onnx.join("model.onnx"));
    assert!(stated_names(&source).is_err_and(|error| is_absent(&error)));
    std::fs::write(onnx.join("model.onnx"), "").unwrap();
    assert_eq!(stated_names(&source).unwrap(), None);
    std::fs::write(
        folder.path().join("config.json"),
        r#"{"id2label": {"0": "a", "1": "b"}}"#,
    )
    .unwrap();
    assert_eq!(stated_names(&source).unwrap(), Some(names(&["a", "b"])));
    std::fs::write(onnx.join("config.json"), r#"{"id2label": {"0": "c", "1": "d"}}"#).unwrap();
    assert_eq!(stated_names(&source).unwrap(), Some(names(&["c", "d"])));
}

#[test]
fn names_that_only_loading_shows_are_compared() {
    let mut classes = Classes::default();
    let mut check = |variant: &str, labels: &[&str]| {
        let info = ModelInfo {
            name: String::new(),
            architecture: String::new(),
            parameters: 1,
            weight_bytes: 4,
            task: Answers::Classification,
            labels: names(labels),
            prompts: Vec::new(),
            similarity: kaskade_models::Similarity::default(),
        };
        classes.check(variant, &info)
    };
    assert_eq!(check("u", &["LABEL_0", "LABEL_1"]), Ok(()));
    assert_eq!(check("a", &["no", "yes"]), Ok(()));
    assert_eq!(check("b", &["No", "Yes"]), Ok(()));
    let error = check("p", &["yes", "no"]).unwrap_err().to_string();
    assert!(
        error.contains("those of `a` `no`, `yes`") && error.contains("state `classes`"),
        "{error}"
    );
}

#[test]
fn labels_of_entities_that_one_variant_alone_has_are_named() {
    let of = |variant: &str, labels: &[&str]| (variant.to_owned(), names(labels));
    let small = of("small", &["O", "B-PER", "I-PER", "B-LOC"]);
    let large = of("large", &["O", "I-PERSON", "I-LOC"]);
    let remarks = entity_label_warnings(&[small.clone(), large]);
    assert!(
        remarks.len() == 1 && remarks[0].contains("only `small` has `PER`, and only `large` has `PERSON`"),
        "{remarks:?}"
    );
    assert!(entity_label_warnings(&[small, of("other", &["O", "I-LOC", "I-PER"])]).is_empty());
}
