use super::*;
use crate::data::Origins;
use crate::data::reply::LOGITS;

/// Scores the class named in the input, with constant confidence; correct three times out of four.
struct Overconfident;

impl Model for Overconfident {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let answer = |inputs: &Inputs| {
            let class_of = inputs.first().map_or(0.0, |input| input.to_f32().unwrap()[0]);
            let scores = [0.0, 1.0, 2.0].map(|class| if (class - class_of).abs() < 0.5 { 9.0 } else { 0.0 });
            Ok(vec![Tensor::from_f32(LOGITS, &[3], &scores).unwrap()])
        };
        batch.iter().map(answer).collect()
    }
}

fn asking(class: f32) -> Inputs {
    vec![Tensor::from_f32("x", &[1], &[class]).unwrap()]
}

struct Refuses;

impl Model for Refuses {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let refused = || ModelError::Failed {
            reason: "no".to_owned(),
        };
        batch.iter().map(|_| Err(refused())).collect()
    }
}

#[test]
fn a_sample_that_a_model_refuses_is_named_by_its_file() {
    let mut set = Samples {
        inputs: vec![asking(1.0)],
        labels: vec![Label::Class(0)],
        origins: Origins::default(),
    };
    let refused = |set: &Samples| {
        let correctness = Correctness::default();
        let error = calibrated(&mut Refuses, set, Estimator::MaxSquared, &correctness, |_| ()).err();
        crate::report::in_one_line(&error.unwrap())
    };
    assert!(refused(&set).starts_with("sample 0: "), "{}", refused(&set));
    set.origins.push(std::path::Path::new("a.csv"), Some(7));
    assert!(
        refused(&set).starts_with("sample 0 (a.csv, line 7): "),
        "{}",
        refused(&set)
    );
}

/// Answers like [`Overconfident`] but refuses one sample as too long.
struct Short;

impl Model for Short {
    fn run(&mut self, batch: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
        let mut answers = Overconfident.run(batch);
        for (answer, inputs) in answers.iter_mut().zip(batch) {
            if *inputs == asking(2.0) {
                *answer = Err(ModelError::TooLong {
                    reason: "5 tokens".to_owned(),
                });
            }
        }
        answers
    }
}

/// Regression: one such sample ended the whole profile.
#[test]
fn a_sample_that_is_too_long_goes_on_where_requests_do() {
    let set = Samples {
        inputs: (0..40_u8)
            .map(|number| asking(if number == 1 { 2.0 } else { f32::from(number % 2) }))
            .collect(),
        labels: (0..40)
            .map(|number| {
                Label::Class(if number == 1 {
                    2
                } else {
                    usize::from(number % 2 == 1 || number % 8 == 0)
                })
            })
            .collect(),
        origins: Origins::default(),
    };
    let run = |forwards_too_long| {
        let correctness = Correctness {
            forwards_too_long,
            ..Correctness::default()
        };
        calibrated(&mut Short, &set, Estimator::MaxSquared, &correctness, |_| ())
    };
    let answers = run(true).unwrap();
    assert_eq!(answers.too_long, [1]);
    let validation = answers.validation;
    assert_eq!((validation.confidences[1], validation.correct[1]), (0.0, false));
    assert_eq!((validation.margins[1], validation.entropies[1]), (0.0, 1.0));
    assert_eq!(validation.predictions[..4], [0, NO_ANSWER, 0, 1]);
    assert!((0..40).all(|number| number == 1 || validation.confidences[number] > 0.0));
    // No model follows the largest one.
    let error = crate::report::in_one_line(&run(false).unwrap_err());
    assert!(error.starts_with("sample 1: "), "{error}");
}

#[test]
fn overconfidence_is_calibrated_and_no_answer_changes() {
    let requests: Vec<Inputs> = (0..200_u8).map(|n| asking(f32::from(n % 3))).collect();
    let right = |n: usize| if n.is_multiple_of(4) { (n + 1) % 3 } else { n % 3 };
    let set = Samples {
        inputs: requests,
        labels: (0..200).map(|n| Label::Class(right(n))).collect(),
        origins: Origins::default(),
    };
    let mut seen = 0;
    let answers = calibrated(
        &mut Overconfident,
        &set,
        Estimator::MaxSquared,
        &Correctness::default(),
        |done| seen += done,
    )
    .unwrap();
    assert_eq!(seen, 200);
    assert!(answers.calibration.temperature > 1.5, "{:?}", answers.calibration);
    // The temperature fits the accuracy on the selection part; the error is measured on all samples.
    let selection = split_samples(200).selection;
    let fitted =
        selection.iter().filter(|place| !place.is_multiple_of(4)).count() as f64 / selection.len() as f64;
    let unfitted = (fitted - 0.75).abs();
    assert!(
        (answers.ece.after - unfitted).abs() < 0.02 && answers.ece.before > 0.2,
        "{:?}, expected {unfitted}",
        answers.ece
    );
    assert_eq!(
        answers.validation.correct.iter().filter(|right| **right).count(),
        150
    );
    assert!(
        answers
            .validation
            .predictions
            .iter()
            .zip(0..)
            .all(|(answer, n)| *answer == n % 3)
    );
}

#[test]
fn the_mean_cost_is_known_only_if_every_cost_is() {
    let mean = |costs: &[Option<f64>]| mean_cost(costs.iter().map(|cost| cost.map(Cost::priced)));
    let known = mean(&[Some(1.0), Some(2.0)]).unwrap();
    assert!((known.per_request - 1.5).abs() < 1e-12, "{known:?}");
    assert_eq!(mean(&[Some(1.0), None]), None);
    assert_eq!(mean(&[]), None);
}

fn truth(outputs: &[Tensor], label: &Label) -> Result<Truth<'static>, MeasureError> {
    Judgement::of(outputs).unwrap().truth(label, Grading::default())
}

fn floats(name: &str, values: &[f32]) -> Tensor {
    Tensor::from_f32(name, &[values.len()], values).unwrap()
}

#[test]
fn answers_and_labels_of_different_kinds_are_refused() {
    let class = [floats(LOGITS, &[0.0, 1.0])];
    assert_eq!(truth(&class, &Label::Class(1)).unwrap(), Truth::Class(1));
    assert_eq!(
        truth(&class, &Label::AnyOf(vec![1, 4])).unwrap(),
        Truth::Correct(true)
    );
    let span = [
        floats("start_logits", &[0.0, 1.0]),
        floats("end_logits", &[0.0, 1.0]),
    ];
    let text = [
        Tensor::from_texts("text", &["yes "]).unwrap(),
        floats("confidence", &[0.5]),
    ];
    assert_eq!(truth(&text, &Label::text("yes")).unwrap(), Truth::Correct(true));
    let several = [
        floats("probabilities", &[0.7, 0.2, 0.6]),
        floats("confidence", &[0.5]),
    ];
    assert_eq!(
        truth(&several, &Label::Classes(vec![0, 2])).unwrap(),
        Truth::Correct(true)
    );
    for (outputs, label) in [
        (&class[..], Label::text("a")),
        (&class[..], Label::Unknown),
        (&span[..], Label::Class(0)),
        (&text[..], Label::Class(0)),
        (&several[..], Label::Class(0)),
    ] {
        assert!(truth(outputs, &label).is_err(), "{label}");
    }
    // Positions depend on the tokenizer; without texts, only positions can be compared.
    let largest = |text: Option<&str>| Label::Span {
        start: 4,
        end: 5,
        text: text.map(str::to_owned),
    };
    let answer = Tensor::from_texts("answer", &[" the sea"]).unwrap();
    let answered = [&span[..], &[answer]].concat();
    assert_eq!(
        truth(&answered, &largest(Some("the sea"))).unwrap(),
        Truth::Correct(true)
    );
    assert_eq!(
        truth(&answered, &largest(Some("sea"))).unwrap(),
        Truth::Correct(false)
    );
    for (outputs, text) in [(&answered[..], None), (&span[..], Some("the sea"))] {
        let by_positions = truth(outputs, &largest(text)).unwrap();
        assert_eq!(by_positions, Truth::Span { start: 4, end: 5 });
    }
    // If the question is sent as token ids, a span has no text.
    let error = truth(&span, &Label::text("a")).unwrap_err();
    assert!(matches!(error, MeasureError::Reply(ReplyError::NoAnswer)));
}

#[test]
fn a_judge_gets_names_of_classes_and_texts_of_spans() {
    let said = |outputs: &[Tensor]| Answered::of(outputs).unwrap().said;
    let logits = floats(LOGITS, &[0.0, 1.0]);
    assert_eq!(said(std::slice::from_ref(&logits)), 1);
    assert_eq!(
        said(&[logits, Tensor::from_texts("label", &["dog"]).unwrap()]),
        "dog"
    );
    let span = [
        floats("start_logits", &[0.0]),
        floats("end_logits", &[1.0]),
        Tensor::from_texts("answer", &["the sea"]).unwrap(),
    ];
    assert_eq!(said(&span), "the sea");
    let several = [
        floats("probabilities", &[0.7, 0.2, 0.6]),
        floats("confidence", &[0.5]),
    ];
    assert_eq!(said(&several), json!([0, 2]));
    // Labels have the same form as answers.
    let names = ["cat", "dog"].map(str::to_owned);
    assert_eq!(named(&Label::Class(1), &names), "dog");
    assert_eq!(named(&Label::Classes(vec![0, 1]), &names), json!(["cat", "dog"]));
    assert_eq!(named(&Label::Class(1), &[]), 1);
    assert_eq!(
        named(&Label::Class(1), &["LABEL_0", "LABEL_1"].map(str::to_owned)),
        1
    );
    assert_eq!(named(&Label::text("a"), &names), "a");
    let inputs = vec![
        Tensor::from_texts("query", &["q"]).unwrap(),
        Tensor::from_texts("passages", &["a", "b"]).unwrap(),
        floats("pixels", &[0.5]),
    ];
    assert_eq!(
        Value::from(texts(&inputs)),
        json!({"query": "q", "passages": ["a", "b"]})
    );
}

/// Regression: two `ImageNet` classes are named `crane`, and a label with that name meant only the last one.
#[test]
fn a_label_that_means_several_classes_is_right_for_each() {
    let set = Samples {
        inputs: [0.0, 2.0, 1.0, 1.0].map(asking).to_vec(),
        labels: vec![
            Label::AnyOf(vec![0, 2]),
            Label::AnyOf(vec![0, 2]),
            Label::AnyOf(vec![0, 2]),
            Label::Class(1),
        ],
        origins: Origins::default(),
    };
    let correctness = Correctness::default();
    let answers = calibrated(
        &mut Overconfident,
        &set,
        Estimator::MaxSquared,
        &correctness,
        |_| (),
    )
    .unwrap();
    assert_eq!(answers.validation.correct, [true, true, false, true]);
    let names = ["crane", "owl", "crane"].map(str::to_owned);
    assert_eq!(named(&Label::AnyOf(vec![0, 2]), &names), "crane");
}
