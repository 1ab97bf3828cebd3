//! The perceptron and the small convolutional network against what torch computes with the same weights, and the
//! checkpoints that neither may serve.

use std::path::{Path, PathBuf};

use kaskade_models::{Checkpoint, Device, LoadError, LoadOptions, ModelError, Tensor, load, load_checkpoint};
use serde_json::{Value, json};

fn fixture(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(family)
}

fn rows(expected: &Value, key: &str) -> Vec<Vec<f32>> {
    serde_json::from_value(expected[key].clone()).unwrap()
}

fn parity(family: &str, shape: &[usize], parameters: u64) {
    let directory = fixture(family);
    let mut loaded = load(&directory, &Device::flex(), &LoadOptions::default()).unwrap();
    assert_eq!(loaded.info.parameters, parameters);
    assert_eq!(loaded.info.labels, ["class 0", "class 1", "class 2", "class 3"]);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(directory.join("expected.json")).unwrap()).unwrap();
    let batch: Vec<_> = rows(&expected, "images")
        .iter()
        .map(|image| vec![Tensor::from_f32("image", shape, image).unwrap()])
        .collect();
    for inputs in &batch {
        assert_eq!(loaded.model.signature().check(inputs), Ok(()));
    }
    let answers = loaded.model.run(&batch);
    for (answer, expected) in answers.into_iter().zip(rows(&expected, "logits")) {
        let answer = answer.unwrap();
        assert_eq!((answer.len(), answer[0].name.as_str()), (1, "logits"));
        for (logit, expected) in answer[0].to_f32().unwrap().into_iter().zip(expected) {
            assert!((logit - expected).abs() < 1e-4, "{logit} for {expected}");
        }
    }
}

#[test]
fn the_perceptron_computes_what_torch_does() {
    parity("kaskade-mlp", &[2, 2, 3], 12 * 7 + 7 + 7 * 5 + 5 + 5 * 4 + 4);
}

#[test]
fn the_convolutional_network_computes_what_torch_does() {
    let conv = |inputs: u64, outputs: u64| 9 * inputs * outputs + outputs;
    let stages = conv(2, 3) + 2 * conv(3, 3) + conv(3, 5) + 4 * conv(5, 5);
    parity("kaskade-cnn", &[2, 5, 4], stages + 5 * 3 * 2 * 4 + 4);
}

#[test]
fn a_request_that_does_not_fit_fails_alone() {
    let mut loaded = load(&fixture("kaskade-mlp"), &Device::flex(), &LoadOptions::default()).unwrap();
    let image = |name: &str, values: usize| Tensor::from_f32(name, &[values], &vec![0.5; values]).unwrap();
    let answers = loaded.model.run(&[
        vec![image("image", 12)],
        vec![image("image", 11)],
        vec![image("picture", 12)],
        vec![Tensor::from_i64("image", &[12], &[0; 12]).unwrap()],
        vec![image("image", 12)],
    ]);
    assert_eq!(answers.len(), 5);
    assert!(answers[0].is_ok() && answers[0] == answers[4]);
    assert!(matches!(answers[1], Err(ModelError::WrongShape { .. })));
    assert!(matches!(answers[2], Err(ModelError::MissingInput { .. })));
    assert!(matches!(answers[3], Err(ModelError::Tensor(_))));
}

/// The error of loading a fixture whose configuration has `key` set to `value`.
fn refusal(family: &str, key: &str, value: Value) -> LoadError {
    let directory = fixture(family);
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(directory.join("config.json")).unwrap()).unwrap();
    config[key] = value;
    let weights = std::fs::read(directory.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::from_bytes("x", config.to_string().as_bytes(), weights, None).unwrap();
    load_checkpoint(checkpoint, &Device::flex(), &LoadOptions::default())
        .err()
        .unwrap()
}

#[test]
fn a_configuration_that_makes_no_network_is_refused_by_key() {
    let huge = u64::MAX / 2;
    for (family, key, value) in [
        ("kaskade-mlp", "input_shape", json!([])),
        ("kaskade-mlp", "input_shape", json!([2, 0])),
        ("kaskade-mlp", "input_shape", json!([huge, huge])),
        ("kaskade-mlp", "hidden_sizes", json!([7, 0])),
        ("kaskade-mlp", "hidden_sizes", json!("wide")),
        ("kaskade-cnn", "input_shape", json!([40])),
        ("kaskade-cnn", "stages", json!([])),
        (
            "kaskade-cnn",
            "stages",
            json!([{"channels": 0, "stride": 1, "blocks": 0}]),
        ),
        (
            "kaskade-cnn",
            "stages",
            json!([{"channels": 1, "stride": 0, "blocks": 0}]),
        ),
        (
            "kaskade-cnn",
            "stages",
            json!([{"channels": huge, "stride": 1, "blocks": 0}]),
        ),
        (
            "kaskade-cnn",
            "stages",
            json!([{"channels": 1, "stride": 1, "blocks": 0, "colour": 3}]),
        ),
    ] {
        let error = refusal(family, key, value.clone());
        assert!(
            matches!(&error, LoadError::BadKey { key: named, .. } if named == key),
            "{key} = {value}: {error}"
        );
    }
}

#[test]
fn weights_that_do_not_fit_the_configuration_are_refused_by_name() {
    let wrong = refusal("kaskade-mlp", "hidden_sizes", json!([7, 6]));
    assert!(wrong.to_string().contains("layers.1.weight"), "{wrong}");
    let missing = refusal("kaskade-mlp", "hidden_sizes", json!([7, 5, 4]));
    assert!(missing.to_string().contains("layers.3.weight"), "{missing}");
    let unused = refusal("kaskade-mlp", "hidden_sizes", json!([7]));
    assert!(unused.to_string().contains("layers.1"), "{unused}");
    let deep = json!([{"channels": 3, "stride": 1, "blocks": 1_000_000_000_000_u64}]);
    let missing = refusal("kaskade-cnn", "stages", deep);
    assert!(
        missing.to_string().contains("stages.0.blocks.1.conv1.weight"),
        "{missing}"
    );
}
