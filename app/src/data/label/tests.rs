use serde_json::json;

use super::*;

fn reader(task: Task, labels: &[&str]) -> LabelReader {
    let labels: Vec<String> = labels.iter().map(ToString::to_string).collect();
    LabelReader::new(task, &labels)
}

#[test]
fn classes_are_read_by_number_and_name() {
    let reader = reader(Task::Classification, &["NEGATIVE", "POSITIVE", "1"]);
    for (written, class) in [
        (json!(1), 1),
        (json!("POSITIVE"), 1),
        (json!(" positive "), 1),
        // A class name takes precedence over a class number.
        (json!("1"), 2),
        (json!("0"), 0),
        (json!(1.0), 1),
        (json!("0.0"), 0),
    ] {
        assert_eq!(reader.read(&written).unwrap(), Label::Class(class), "{written}");
    }
    for (written, reason) in [
        (json!(3), "has classes 0 to 2"),
        (json!("neutral"), "NEGATIVE, POSITIVE, 1"),
        (json!(-1), "`--judge largest`"),
        (json!(-2), "a number from 0"),
        (json!(0.5), "a number from 0"),
        (json!("-1.0"), "rows without one"),
        (json!("3.0"), "has classes 0 to 2"),
        (json!("0.5"), "NEGATIVE, POSITIVE, 1"),
        (json!("inf"), "NEGATIVE, POSITIVE, 1"),
        (json!(null), "a number from 0"),
        (json!(" "), "the label is empty"),
        (json!([0]), "a number from 0"),
    ] {
        let error = reader.read(&written).unwrap_err().to_string();
        assert!(error.contains(reason), "{written}: {error}");
    }
}

/// Regression: the label 1 was the class "2" in JSON and the class "1" in CSV, where 0 was also the class "1".
#[test]
fn a_number_is_refused_where_classes_have_other_numbers_for_names() {
    let stars = reader(Task::Classification, &["1", "2", "3", "4", "5"]);
    assert_eq!(stars.read(&json!("1")).unwrap(), Label::Class(0));
    assert_eq!(stars.read(&json!("5")).unwrap(), Label::Class(4));
    let error = stars.read(&json!("0")).unwrap_err().to_string();
    assert!(error.contains("the model's are 1, 2"), "{error}");
    for written in [json!(0), json!(1), json!(1.0)] {
        let error = stars.read(&written).unwrap_err().to_string();
        assert!(error.contains("as a text"), "{error}");
    }
    let several = reader(Task::MultiLabel, &["1", "2"]);
    assert_eq!(several.read(&json!("1, 2")).unwrap(), Label::Classes(vec![0, 1]));
    assert!(several.read(&json!([2])).is_err());
    // Names equal to the class indices are unambiguous.
    let digits = reader(Task::Classification, &["0", "1"]);
    assert_eq!(digits.read(&json!(1)).unwrap(), Label::Class(1));
}

/// Regression: the mark 1 of a list became the name "1" and then class 1, whatever it marked; the number 0 of "1" to
/// "5" became class 1.
#[test]
fn numerals_that_a_file_names_its_classes_by_are_no_names_of_others() {
    let names = |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
    let six = reader(Task::MultiLabel, &["a", "b", "c", "d", "e", "f"]);
    assert!(!six.reads_names(&names(&["0", "1"])));
    assert!(!six.reads_names(&names(&["1", "2", "3", "4", "5"])));
    assert!(six.reads_names(&names(&["a", "b"])));
    let stars = reader(Task::Classification, &["1", "2", "3", "4", "5"]);
    assert!(stars.reads_names(&names(&["1", "2", "3"])));
    assert!(!stars.reads_names(&names(&["0", "1", "2"])));
}

#[test]
fn thousands_of_names_are_found_and_an_error_shows_few() {
    let names: Vec<String> = (0..20_000).map(|class| format!("species {class}")).collect();
    let reader = LabelReader::new(Task::Classification, &names);
    for class in [0, 9_999, 19_999] {
        let written = json!(format!("Species {class}"));
        assert_eq!(reader.read(&written).unwrap(), Label::Class(class));
    }
    let error = reader.read(&json!("dodo")).unwrap_err().to_string();
    assert!(error.len() < 400 && error.contains("species 0"), "{error}");
}

#[test]
fn a_model_without_names_takes_numbers_alone() {
    let reader = reader(Task::Classification, &["LABEL_0", "LABEL_1"]);
    assert_eq!(reader.read(&json!("1")).unwrap(), Label::Class(1));
    let error = reader.read(&json!("positive")).unwrap_err().to_string();
    assert!(error.contains("names no classes"), "{error}");
}

/// Regression: labels counted from 1 were profiled as wrong answers, up to the last class, which failed only after a
/// model had run.
#[test]
fn numbers_of_classes_are_in_range_in_every_format() {
    let two = reader(Task::Classification, &["no", "yes"]);
    assert_eq!(two.class_only(1).unwrap(), Label::Class(1));
    let error = two.class_only(2).unwrap_err().to_string();
    assert!(error.contains("classes 0 to 1"), "{error}");
    assert_eq!(
        reader(Task::Classification, &[]).class_only(9).unwrap(),
        Label::Class(9)
    );
}

#[test]
fn several_labels_are_a_list_or_names_with_commas() {
    let reader = reader(Task::MultiLabel, &["a", "b", "c"]);
    for written in [
        json!(["c", "a"]),
        json!([2, 0, 0]),
        json!("c, a"),
        json!("[\"a\", 2]"),
    ] {
        assert_eq!(
            reader.read(&written).unwrap(),
            Label::Classes(vec![0, 2]),
            "{written}"
        );
    }
    assert_eq!(reader.read(&json!("")).unwrap(), Label::Classes(vec![]));
}

/// Regression: the error was "It is not valid JSON", although the data set contained no JSON.
#[test]
fn a_list_as_pandas_writes_it_is_read() {
    let three = reader(Task::MultiLabel, &["joy", "anger", "don't, know"]);
    for (written, classes) in [
        ("['joy', 'anger']", vec![0, 1]),
        ("['joy' \"don't, know\"]", vec![0, 2]),
        ("[]", vec![]),
    ] {
        assert_eq!(
            three.read(&json!(written)).unwrap(),
            Label::Classes(classes),
            "{written}"
        );
    }
    for written in ["['joy', anger]", "['joy", "['joy\\'', 'anger']"] {
        let error = three.read(&json!(written)).unwrap_err().to_string();
        assert!(error.contains("a list of classes in JSON"), "{written}: {error}");
    }
}

/// Regression: multi-hot lists were read as the class numbers 0 and 1.
#[test]
fn a_mark_for_each_class_is_read_as_models_are_trained_on() {
    let three = reader(Task::MultiLabel, &["a", "b", "c"]);
    for (written, classes) in [
        (json!([1, 0, 1]), vec![0, 2]),
        (json!([0.0, 1.0, 0.0]), vec![1]),
        (json!([false, false, true]), vec![2]),
        (json!([0, 0, 0]), vec![]),
        (json!("[0, 1, 1]"), vec![1, 2]),
        (json!([0, 1]), vec![0, 1]),
        (json!([2, 1, 0]), vec![0, 1, 2]),
        // The form in a CSV column.
        (json!("1,0,1"), vec![0, 2]),
        (json!("0, 1, 1"), vec![1, 2]),
        (json!("0, 2"), vec![0, 2]),
        (json!("2"), vec![2]),
        (json!("[1 0 1]"), vec![0, 2]),
        (json!("[False, True, False]"), vec![1]),
    ] {
        assert_eq!(
            three.read(&written).unwrap(),
            Label::Classes(classes),
            "{written}"
        );
    }
    let two = reader(Task::MultiLabel, &["a", "b"]);
    assert_eq!(two.read(&json!([1.0, 0.0])).unwrap(), Label::Classes(vec![0]));
    assert_eq!(two.read(&json!([1, 1])).unwrap(), Label::Classes(vec![0, 1]));
    for written in [json!([1, 0]), json!("1,0")] {
        let error = two.read(&written).unwrap_err().to_string();
        assert!(error.contains("names of classes"), "{error}");
    }
}

#[test]
fn answers_accept_each_of_their_texts() {
    let reader = reader(Task::QuestionAnswering, &[]);
    let squad = json!({"text": [" the keeper", "keeper"], "answer_start": [4, 8]});
    let label = reader.read(&squad).unwrap();
    assert!(label.accepts(&Label::text("keeper")) && label.accepts(&Label::text("the keeper ")));
    assert!(!label.accepts(&Label::text("sea")));
    assert!(reader.read(&json!("sea")).unwrap().accepts(&Label::text("sea")));
    assert!(reader.read(&json!(3)).is_err());
}

/// Regression: an unanswerable question of `SQuAD` 2.0 became a label that no answer meets.
#[test]
fn a_label_without_a_right_answer_is_refused() {
    for task in [Task::QuestionAnswering, Task::Generation] {
        let mut reader = reader(task, &[]);
        for written in [json!({"text": [], "answer_start": []}), json!([])] {
            let error = reader.read(&written).unwrap_err().to_string();
            assert!(error.contains("remove the sample"), "{error}");
        }
        reader.used = LabelUse::Reference;
        assert_eq!(reader.read(&json!({"text": []})).unwrap(), Label::Unknown);
    }
}

/// Regression: a label `crane` meant the last class of that name, and answers with the other one were wrong.
#[test]
fn a_name_of_several_classes_means_any_of_them() {
    let birds = ["crane", "owl", "Crane", "crane"];
    let one = reader(Task::Classification, &birds);
    assert_eq!(one.read(&json!("crane")).unwrap(), Label::AnyOf(vec![0, 3]));
    assert_eq!(one.read(&json!("Crane")).unwrap(), Label::Class(2));
    assert_eq!(one.read(&json!(3)).unwrap(), Label::Class(3));
    assert!(one.read(&json!("CRANE")).is_err(), "two names");
    let several = reader(Task::MultiLabel, &birds);
    for written in [json!(["owl", "crane"]), json!("owl, crane"), json!("crane")] {
        let error = several.read(&written).unwrap_err().to_string();
        assert!(error.contains("write the number"), "{written}: {error}");
    }
}

#[test]
fn names_are_read_in_any_spelling() {
    let named = reader(Task::Classification, &["not_entailment", "5 stars"]);
    assert_eq!(named.read(&json!("Not entailment")).unwrap(), Label::Class(0));
    assert_eq!(named.read(&json!("5-stars")).unwrap(), Label::Class(1));
    let unnamed = reader(Task::Classification, &["LABEL_0", "LABEL_1"]);
    assert_eq!(unnamed.read(&json!("LABEL_1")).unwrap(), Label::Class(1));
    assert!(unnamed.read(&json!("LABEL_2")).is_err());
    assert!(named.read(&json!("LABEL_1")).is_err());
}

#[test]
fn a_row_that_the_hub_has_no_label_for_has_none() {
    let mut reader = reader(Task::Classification, &["no", "yes"]);
    reader.used = LabelUse::Reference;
    for written in [json!(-1), json!(-1.0), json!("-1")] {
        assert_eq!(reader.read_if_any(Some(&written)).unwrap(), Label::Unknown);
    }
}
