//! Tests of invalid and unusual requests.

use super::*;

#[test]
fn an_invalid_request_fails_alone() {
    let mut model = load_fixture("bert-classification").model;
    let good = vec![ids("input_ids", &[5, 6, 7])];
    let bad: Vec<(Inputs, &str)> = vec![
        (
            vec![ids("input_ids", &[5, 82])],
            "`input_ids` cannot be used: element 1 is 82; this model takes 0..=81",
        ),
        (vec![ids("input_ids", &[-1])], "element 0 is -1"),
        (
            vec![ids("input_ids", &[i64::MAX])],
            "element 0 is 9223372036854775807",
        ),
        (
            vec![ids("input_ids", &[5; 25])],
            "shape [25]; this model takes [1..=24]",
        ),
        (vec![ids("input_ids", &[])], "shape [0]"),
        (vec![], "`text` and `input_ids` are missing"),
        (
            vec![text("text_pair", "the sea")],
            "`text` and `input_ids` are missing",
        ),
        (
            vec![ids("input_ids", &[5, 6]), ids("attention_mask", &[1])],
            "`attention_mask` has shape [1]",
        ),
        (
            vec![ids("input_ids", &[5, 6]), ids("attention_mask", &[0, 0])],
            "it masks every token",
        ),
        (
            vec![ids("input_ids", &[5, 6]), ids("attention_mask", &[1, 2])],
            "`attention_mask` cannot be used: element 1 is 2",
        ),
        (
            vec![ids("input_ids", &[5, 6]), ids("token_type_ids", &[0, 2])],
            "`token_type_ids` cannot be used",
        ),
        (
            vec![ids("input_ids", &[5, 6]), text("text", "the sea")],
            "send only one",
        ),
        (
            vec![ids("input_ids", &[5, 6]), text("text_pair", "the sea")],
            "send only one",
        ),
        (
            vec![ids("attention_mask", &[1]), text("text", "the sea")],
            "`attention_mask` cannot be used",
        ),
        (
            vec![text("text", &"sea ".repeat(1 << 17))],
            "longer than 262144 bytes",
        ),
        (
            vec![Wire {
                data: vec![1, 0, 0, 0, 0xff].into(),
                ..text("text", "x")
            }],
            "not UTF-8",
        ),
        (
            vec![Wire::from_f32("input_ids", &[1], &[5.0]).unwrap()],
            "is FP32, not INT64",
        ),
        (vec![ids("labels", &[1])], "`labels` is unknown"),
    ];
    let alone = model.run(std::slice::from_ref(&good)).remove(0).unwrap();
    let mut batch: Vec<Inputs> = vec![good.clone()];
    batch.extend(bad.iter().map(|(inputs, _)| inputs.clone()));
    batch.push(good);
    let answers = model.run(&batch);
    assert_eq!(answers.len(), batch.len());
    for (answer, (_, expected)) in answers[1..].iter().zip(&bad) {
        let error = answer.as_ref().unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for answer in [&answers[0], &answers[answers.len() - 1]] {
        assert_eq!(answer.as_ref().unwrap(), &alone);
    }
}

#[test]
fn a_batch_of_invalid_requests_is_answered() {
    let mut model = load_fixture("bert-classification").model;
    let answers = model.run(&[vec![ids("input_ids", &[-1])], vec![ids("input_ids", &[99])]]);
    assert!(answers.len() == 2 && answers.iter().all(Result::is_err));
}

#[test]
fn unusual_texts_are_answered_or_rejected() {
    for name in ["bert-classification", "bert-question-answering"] {
        let mut model = load_fixture(name).model;
        let long = "the sea ".repeat(100);
        let texts = [
            "",
            " ",
            "\u{0}",
            "雪",
            "é",
            "?",
            "[CLS] [SEP]",
            "\u{202e}abc",
            long.as_str(),
            "🌊🌊",
        ];
        for first in texts {
            for second in texts {
                for answer in model.run(&[vec![text("text", first), text("text_pair", second)]]) {
                    match answer {
                        Ok(outputs) => assert!(check_outputs(outputs).is_ok(), "{first:?} {second:?}"),
                        Err(error) => assert!(matches!(error, ModelError::BadInput { .. }), "{error}"),
                    }
                }
            }
        }
    }
    let mut answering = load_fixture("bert-question-answering").model;
    let alone = answering
        .run(&[vec![text("text", "where?")]])
        .remove(0)
        .unwrap_err();
    assert!(alone.to_string().contains("send its context as `text_pair`"));
}

#[test]
fn a_checkpoint_without_a_tokenizer_takes_only_ids() {
    let fixture = fixture("bert-classification");
    let checkpoint = Checkpoint::from_bytes("x", fixture.config, fixture.weights.to_vec(), None).unwrap();
    let mut model = load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
        .unwrap()
        .model;
    assert!(model.run(&[vec![ids("input_ids", &[5])]])[0].is_ok());
    let refused = model.run(&[vec![text("text", "sea")]]).remove(0).unwrap_err();
    assert!(
        matches!(&refused, ModelError::BadInput { name, reason } if name == "text" && reason.contains("save_pretrained")),
        "{refused}"
    );
    assert!(matches!(
        model.signature().check(&[]),
        Err(ModelError::MissingInput { .. })
    ));
}

#[test]
fn a_pair_is_refused_by_a_model_of_one_token_type() {
    let fixture = fixture("bert-classification");
    let name = "bert.embeddings.token_type_embeddings.weight";
    let weights = edited(&fixture, |tensors| {
        let (_, _, shape, data) = tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap();
        data.truncate(data.len() / shape[0]);
        shape[0] = 1;
    });
    let config = config_with(&fixture, "type_vocab_size", serde_json::json!(1));
    let mut model = load_parts(&fixture, &config, weights).unwrap().model;
    let one = vec![text("text", "the sea")];
    let pair = vec![text("text", "the sea"), text("text_pair", "is deep")];
    let mut answers = model.run(&[one, pair]);
    let refused = answers.remove(1).unwrap_err().to_string();
    assert!(
        refused.contains("`text_pair`") && refused.contains("reads one text, not two"),
        "{refused}"
    );
    assert!(answers.remove(0).is_ok());
}

#[test]
fn pixels_of_a_wrong_shape_fail_alone() {
    let mut model = load_fixture("vit").model;
    let image = |shape: &[usize], value: f32| {
        vec![Wire::from_f32("pixel_values", shape, &vec![value; shape.iter().product()]).unwrap()]
    };
    let answers = model.run(&[
        image(&[3, 12, 8], 0.5),
        image(&[3, 8, 12], 0.5),
        image(&[3, 12, 8], f32::NAN),
        vec![],
    ]);
    assert!(answers[0].is_ok());
    assert!(matches!(answers[1], Err(ModelError::WrongShape { .. })));
    assert!(matches!(answers[2], Err(ModelError::Tensor(_))));
    assert!(matches!(answers[3], Err(ModelError::MissingInput { .. })));
}
