//! The perceptron and the small convolutional network: sizes, and invalid checkpoints and requests. The unit tests of
//! all architectures compare the outputs with PyTorch.

use kaskade_models::fixtures::{self, Fixture};
use kaskade_models::{
    Checkpoint, Device, LoadError, LoadOptions, Loaded, ModelError, Tensor, load_checkpoint,
};
use serde_json::{Value, json};

fn fixture(name: &str) -> Fixture {
    fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == name)
        .unwrap()
}

fn loaded(name: &str) -> Loaded {
    let checkpoint = fixture(name).checkpoint().unwrap();
    load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default()).unwrap()
}

#[test]
fn every_weight_is_counted() {
    let linear = |inputs: u64, outputs: u64| inputs * outputs + outputs;
    let conv = |inputs: u64, outputs: u64| 9 * inputs * outputs + outputs;
    let mlp = linear(12, 7) + linear(7, 5) + linear(5, 4);
    let stages = conv(2, 3) + 2 * conv(3, 3) + conv(3, 5) + 4 * conv(5, 5);
    // The second stage halves 5x4 to 3x2.
    let cnn = stages + linear(5 * 3 * 2, 4);
    for (name, parameters) in [("mlp", mlp), ("cnn", cnn)] {
        let info = loaded(name).info;
        assert_eq!((info.parameters, info.weight_bytes), (parameters, 4 * parameters));
        assert_eq!(info.labels, ["class 0", "class 1", "class 2", "class 3"]);
    }
}

#[test]
fn an_invalid_request_fails_alone() {
    let image = |name: &str, shape: &[usize]| {
        Tensor::from_f32(name, shape, &vec![0.5; shape.iter().product()]).unwrap()
    };
    let nan = Tensor::from_f32("image", &[2, 2, 3], &[f32::NAN; 12]).unwrap();
    let answers = loaded("mlp").model.run(&[
        vec![image("image", &[2, 2, 3])],
        vec![image("image", &[2, 2, 2])],
        vec![image("picture", &[2, 2, 3])],
        vec![nan],
        vec![],
        vec![image("image", &[2, 2, 3])],
    ]);
    assert_eq!(answers.len(), 6);
    assert!(answers[0].is_ok() && answers[0] == answers[5]);
    assert!(matches!(answers[1], Err(ModelError::WrongShape { .. })));
    assert!(matches!(answers[2], Err(ModelError::UnknownInput { .. })));
    assert!(matches!(answers[3], Err(ModelError::Tensor(_))));
    assert!(matches!(answers[4], Err(ModelError::MissingInput { .. })));
}

/// Returns the error of loading a fixture with `key` of its configuration set to `value`; null counts as missing.
fn load_error(name: &str, key: &str, value: Value) -> LoadError {
    let fixture = fixture(name);
    let mut config: Value = serde_json::from_slice(fixture.config).unwrap();
    config[key] = value;
    let config = config.to_string();
    let checkpoint = Checkpoint::from_bytes(name, config.as_bytes(), fixture.weights, None).unwrap();
    load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
        .err()
        .unwrap()
}

#[test]
fn every_missing_key_is_named() {
    for (name, missing) in [
        ("mlp", "input_shape"),
        ("mlp", "hidden_sizes"),
        ("cnn", "input_shape"),
        ("cnn", "stages"),
    ] {
        let error = load_error(name, missing, Value::Null);
        assert!(
            matches!(&error, LoadError::MissingKey { key, .. } if key == missing),
            "{error}"
        );
    }
}

#[test]
fn an_invalid_configuration_is_rejected_by_key() {
    let huge = u64::MAX / 2;
    for (family, key, value) in [
        ("mlp", "input_shape", json!([])),
        ("mlp", "input_shape", json!([2, 0])),
        ("mlp", "input_shape", json!([huge, huge])),
        ("mlp", "hidden_sizes", json!([7, 0])),
        ("mlp", "hidden_sizes", json!("wide")),
        ("cnn", "input_shape", json!([40])),
        ("cnn", "stages", json!([])),
        (
            "cnn",
            "stages",
            json!([{"channels": 0, "stride": 1, "blocks": 0}]),
        ),
        (
            "cnn",
            "stages",
            json!([{"channels": 1, "stride": 0, "blocks": 0}]),
        ),
        (
            "cnn",
            "stages",
            json!([{"channels": huge, "stride": 1, "blocks": 0}]),
        ),
        (
            "cnn",
            "stages",
            json!([{"channels": 1, "stride": 1, "blocks": 0, "colour": 3}]),
        ),
    ] {
        let error = load_error(family, key, value.clone());
        assert!(
            matches!(&error, LoadError::BadKey { key: named, .. } if named == key),
            "{key} = {value}: {error}"
        );
    }
}

#[test]
fn mismatched_weights_are_rejected_by_name() {
    let wrong = load_error("mlp", "hidden_sizes", json!([7, 6]));
    assert!(wrong.to_string().contains("layers.1."), "{wrong}");
    let missing = load_error("mlp", "hidden_sizes", json!([7, 5, 4]));
    assert!(missing.to_string().contains("layers.3."), "{missing}");
    let unused = load_error("mlp", "hidden_sizes", json!([7]));
    assert!(unused.to_string().contains("layers.1"), "{unused}");
    let deep = json!([{"channels": 3, "stride": 1, "blocks": 1_000_000_000_000_u64}]);
    let missing = load_error("cnn", "stages", deep);
    assert!(
        missing.to_string().contains("stages.0.blocks.1.conv1."),
        "{missing}"
    );
}
