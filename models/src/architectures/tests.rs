//! Compares every architecture with transformers, and tests invalid checkpoints and requests.

mod adapter;
mod bounds;
mod family;
mod flash;
mod partition;
mod requests;
mod sentence;
mod text;
mod usage;

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use super::registry::*;
use crate::checkpoint::{Checkpoint, LoadError};
use crate::device::Device;
use crate::runtime::loaded::{Loaded, Task};
use crate::runtime::model::check_outputs;
use crate::runtime::model::{Inputs, ModelError};
use crate::runtime::tensor::Tensor as Wire;
use crate::selftest::fixtures::{self, Fixture};

fn fixture(name: &str) -> Fixture {
    fixtures::ALL
        .into_iter()
        .find(|fixture| fixture.name == name)
        .unwrap()
}

fn load_parts(fixture: &Fixture, config: &[u8], weights: Vec<u8>) -> Result<Loaded, LoadError> {
    let tokenizer = fixture.tokenizer.map(bytes::Bytes::from_static);
    let checkpoint = Checkpoint::from_bytes(fixture.name, config, weights, tokenizer)?;
    load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
}

fn load_fixture(name: &str) -> Loaded {
    let fixture = fixture(name);
    load_checkpoint(
        fixture.checkpoint().unwrap(),
        &Device::Cpu,
        &LoadOptions::default(),
    )
    .unwrap()
}

type Owned = (String, Dtype, Vec<usize>, Vec<u8>);

/// Returns the fixture's weights file with tensors changed by `edit`.
fn edited(fixture: &Fixture, edit: impl FnOnce(&mut Vec<Owned>)) -> Vec<u8> {
    let file = SafeTensors::deserialize(fixture.weights).unwrap();
    let mut tensors: Vec<Owned> = file
        .iter()
        .map(|(name, view)| {
            (
                name.to_owned(),
                view.dtype(),
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    edit(&mut tensors);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (
            name.as_str(),
            TensorView::new(*dtype, shape.clone(), data).unwrap(),
        )
    });
    serialize(views, None::<HashMap<String, String>>).unwrap()
}

fn config_with(fixture: &Fixture, key: &str, value: serde_json::Value) -> Vec<u8> {
    let mut config: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(fixture.config).unwrap();
    if value.is_null() {
        config.remove(key);
    } else {
        config.insert(key.into(), value);
    }
    serde_json::to_vec(&config).unwrap()
}

#[test]
fn every_architecture_matches_transformers() {
    for fixture in fixtures::ALL {
        let parity = fixture.compare(&Device::Cpu).unwrap();
        println!("{}: {parity:?}", fixture.name);
        assert!(parity.cases >= 3);
        assert!(parity.largest_difference < 1e-4, "{}: {parity:?}", fixture.name);
        assert!(
            parity.largest_padding_difference < 1e-5,
            "{}: {parity:?}",
            fixture.name
        );
    }
}

#[test]
fn a_checkpoint_is_described() {
    let info = load_fixture("bert-classification").info;
    assert_eq!(info.architecture, "BertForSequenceClassification");
    assert_eq!(
        (info.task, info.labels.as_slice()),
        (
            Task::Classification,
            &["negative", "neutral", "positive"].map(String::from)[..]
        )
    );
    let file = SafeTensors::deserialize(fixture("bert-classification").weights).unwrap();
    let elements: usize = file
        .iter()
        .map(|(_, view)| view.shape().iter().product::<usize>())
        .sum();
    assert_eq!(
        (info.parameters, info.weight_bytes),
        (elements as u64, 4 * elements as u64)
    );
    assert_eq!(
        load_fixture("bert-question-answering").info.task,
        Task::QuestionAnswering
    );
}

#[test]
fn a_directory_loads_like_the_same_bytes() {
    let fixture = fixture("vit");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("digits-vit");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(path.join("config.json"), fixture.config).unwrap();
    let missing = load(&path, &Device::Cpu, &LoadOptions::default()).err().unwrap();
    assert!(matches!(missing, LoadError::MissingFile { path, .. } if path.ends_with("model.safetensors")));
    std::fs::write(path.join("model.safetensors"), fixture.weights).unwrap();
    let mut loaded = load(&path, &Device::Cpu, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.info.name, "digits-vit");
    assert!(
        fixture
            .compare_model(loaded.model.as_mut())
            .unwrap()
            .largest_difference
            < 1e-4
    );
    std::fs::write(path.join("config.json"), vec![b' '; 5 << 20]).unwrap();
    let oversize = load(&path, &Device::Cpu, &LoadOptions::default()).err().unwrap();
    assert!(matches!(oversize, LoadError::TooLarge { .. }));
}

#[test]
fn half_precision_checkpoints_equal_their_rounded_weights() {
    type Halve = fn(f32) -> ([u8; 2], f32);
    let halves: [(Dtype, Halve); 2] = [
        (Dtype::F16, |value| {
            let half = half::f16::from_f32(value);
            (half.to_le_bytes(), half.to_f32())
        }),
        (Dtype::BF16, |value| {
            let half = half::bf16::from_f32(value);
            (half.to_le_bytes(), half.to_f32())
        }),
    ];
    for fixture in fixtures::ALL {
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            .collect();
        for (dtype, halve) in halves {
            let of_floats = |data: &[u8]| {
                data.as_chunks::<4>()
                    .0
                    .iter()
                    .map(|b| halve(f32::from_le_bytes(*b)))
                    .collect::<Vec<_>>()
            };
            let half = edited(&fixture, |tensors| {
                for (_, kind, _, data) in tensors {
                    *kind = dtype;
                    *data = of_floats(data).iter().flat_map(|(bytes, _)| *bytes).collect();
                }
            });
            let rounded = edited(&fixture, |tensors| {
                for (.., data) in tensors {
                    *data = of_floats(data)
                        .iter()
                        .flat_map(|(_, value)| value.to_le_bytes())
                        .collect();
                }
            });
            let answers = [half, rounded].map(|weights| {
                load_parts(&fixture, fixture.config, weights)
                    .unwrap()
                    .model
                    .run(&requests)
            });
            assert_eq!(answers[0], answers[1], "{} {dtype}", fixture.name);
        }
    }
}

#[test]
fn every_missing_tensor_is_named() {
    for fixture in fixtures::ALL {
        let names: Vec<String> = SafeTensors::deserialize(fixture.weights)
            .unwrap()
            .iter()
            .map(|(name, _)| name.into())
            .collect();
        for missing in names {
            let weights = edited(&fixture, |tensors| tensors.retain(|(name, ..)| *name != missing));
            let error = load_parts(&fixture, fixture.config, weights).err().unwrap();
            assert!(
                matches!(&error, LoadError::MissingTensor { name, .. } if *name == missing),
                "{missing}: {error}"
            );
        }
    }
}

#[test]
fn every_tensor_of_a_wrong_shape_is_named() {
    for fixture in fixtures::ALL {
        let names: Vec<String> = SafeTensors::deserialize(fixture.weights)
            .unwrap()
            .iter()
            .map(|(name, _)| name.into())
            .collect();
        for wrong in names {
            let weights = edited(&fixture, |tensors| {
                let (.., shape, _) = tensors.iter_mut().find(|(name, ..)| *name == wrong).unwrap();
                shape.push(1);
            });
            let error = load_parts(&fixture, fixture.config, weights).err().unwrap();
            assert!(
                matches!(&error, LoadError::WrongShape { name, actual, expected, .. } if *name == wrong && actual.len() == expected.len() + 1),
                "{wrong}: {error}"
            );
        }
    }
}

#[test]
fn unused_tensors_are_rejected() {
    let extra = |name: &str| (name.to_owned(), Dtype::F32, vec![1], vec![0; 4]);
    let bert = fixture("bert-question-answering");
    let with = |name: &str| {
        let weights = edited(&bert, |tensors| tensors.push(extra(name)));
        load_parts(&bert, bert.config, weights)
    };
    assert!(matches!(
        with("bert.encoder.layer.2.output.dense.bias"),
        Err(LoadError::UnusedTensors { .. })
    ));
    assert!(with("bert.embeddings.position_ids").is_ok());
    assert!(with("bert.pooler.dense.bias").is_ok());
}

#[test]
fn every_missing_key_is_named() {
    // The image networks have their own keys, which `tests/it/small_families.rs` covers. Other families name some of
    // these keys differently.
    let named_so = |fixture: &Fixture| fixture.name.starts_with("bert-") || fixture.name == "vit";
    for fixture in fixtures::ALL.into_iter().filter(named_so) {
        let mut keys = vec![
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
        ];
        keys.extend(if fixture.name == "vit" {
            vec![
                "image_size",
                "patch_size",
                "num_channels",
                "hidden_act",
                "layer_norm_eps",
            ]
        } else {
            vec!["vocab_size", "max_position_embeddings"]
        });
        for missing in keys {
            let without = config_with(&fixture, missing, serde_json::Value::Null);
            let error = load_parts(&fixture, &without, fixture.weights.to_vec())
                .err()
                .unwrap();
            assert!(
                matches!(&error, LoadError::MissingKey { key, .. } if key == missing),
                "{missing}: {error}"
            );
            for nonsense in [
                serde_json::json!(-1),
                serde_json::json!("x"),
                serde_json::json!([0, 0]),
            ] {
                let wrong = config_with(&fixture, missing, nonsense);
                let error = load_parts(&fixture, &wrong, fixture.weights.to_vec())
                    .err()
                    .unwrap();
                assert!(
                    matches!(&error, LoadError::BadKey { key, .. } if key == missing),
                    "{missing}: {error}"
                );
            }
        }
        for (key, value) in [
            ("num_attention_heads", serde_json::json!(3)),
            ("hidden_act", serde_json::json!("swiglu")),
            ("id2label", serde_json::json!({"1": "one"})),
        ] {
            let wrong = config_with(&fixture, key, value);
            let error = load_parts(&fixture, &wrong, fixture.weights.to_vec())
                .err()
                .unwrap();
            assert!(error.to_string().contains(key), "{error}");
        }
    }
}

#[test]
fn keys_that_old_files_leave_out_have_the_defaults_of_transformers() {
    let fixture = fixture("bert-classification");
    let answers = |config: &[u8]| {
        let requests: Vec<Inputs> = fixture
            .cases()
            .unwrap()
            .into_iter()
            .map(|case| case.inputs)
            .collect();
        let mut model = load_parts(&fixture, config, fixture.weights.to_vec())
            .unwrap()
            .model;
        model.run(&requests)
    };
    for (key, default) in [
        ("layer_norm_eps", serde_json::json!(1e-12)),
        ("hidden_act", serde_json::json!("gelu")),
        ("type_vocab_size", serde_json::json!(2)),
    ] {
        let stated = answers(&config_with(&fixture, key, default));
        assert_eq!(
            answers(&config_with(&fixture, key, serde_json::Value::Null)),
            stated,
            "{key}"
        );
    }
}

#[test]
fn huge_sizes_are_rejected_without_allocation() {
    for fixture in fixtures::ALL {
        for key in [
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "vocab_size",
            "max_position_embeddings",
            "image_size",
            "patch_size",
            "num_channels",
        ] {
            for huge in [u64::MAX, 1 << 40] {
                let config = config_with(&fixture, key, serde_json::json!(huge));
                let applies = serde_json::from_slice::<serde_json::Value>(fixture.config)
                    .unwrap()
                    .get(key)
                    .is_some();
                let rejected = load_parts(&fixture, &config, fixture.weights.to_vec()).is_err();
                assert_eq!(rejected, applies, "{} {key} = {huge}", fixture.name);
            }
        }
    }
}

#[test]
fn an_unknown_architecture_is_rejected_with_the_supported_ones() {
    let fixture = fixture("vit");
    let config = config_with(
        &fixture,
        "architectures",
        serde_json::json!(["LevitForImageClassification"]),
    );
    let error = load_parts(&fixture, &config, fixture.weights.to_vec())
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("`LevitForImageClassification`") && error.contains("docs/reference/architectures"),
        "{error}"
    );
    let none = load_parts(&fixture, b"{}", fixture.weights.to_vec())
        .err()
        .unwrap();
    assert!(matches!(none, LoadError::UnknownArchitecture { .. }));
}

#[test]
fn a_truncated_file_is_rejected() {
    let fixture = fixture("vit");
    for length in [0, 7, 8, 100, fixture.weights.len() - 1] {
        let error = load_parts(&fixture, fixture.config, fixture.weights[..length].to_vec())
            .err()
            .unwrap();
        assert!(matches!(error, LoadError::BadWeights { .. }), "{length}: {error}");
    }
}

#[test]
fn an_invalid_tokenizer_is_rejected() {
    let fixture = fixture("bert-classification");
    for json in [
        "",
        "{}",
        "[1]",
        r#"{"version": "1.0", "model": {"type": "Nothing"}}"#,
    ] {
        let tokenizer = Some(bytes::Bytes::copy_from_slice(json.as_bytes()));
        let checkpoint =
            Checkpoint::from_bytes("x", fixture.config, fixture.weights.to_vec(), tokenizer).unwrap();
        let error = load_checkpoint(checkpoint, &Device::Cpu, &LoadOptions::default())
            .err()
            .unwrap();
        assert!(
            error
                .to_string()
                .starts_with("`x/tokenizer.json` is not a valid tokenizer"),
            "{error}"
        );
    }
}

fn ids(name: &str, values: &[i64]) -> Wire {
    Wire::from_i64(name, &[values.len()], values).unwrap()
}

fn text(name: &str, text: &str) -> Wire {
    Wire::from_texts(name, &[text]).unwrap()
}
