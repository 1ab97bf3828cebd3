use std::collections::HashMap;
use std::path::PathBuf;

use kaskade_policy::plan::Partition;
use safetensors::SafeTensors;
use safetensors::tensor::{TensorView, serialize};
use serde_json::json;

use super::*;
use crate::decoder::registry;

fn file(fixture: &str, name: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(root.join("fixtures").join(fixture).join(name)).unwrap()
}

fn config(json: &Value) -> Config {
    Config::parse("config.json", json.to_string().as_bytes()).unwrap()
}

/// Opens a fixture with a changed configuration, and with tensors renamed or dropped by `rename`.
fn changed(
    fixture: &str,
    change: impl FnOnce(&mut Value),
    rename: impl Fn(&str) -> Option<String>,
) -> Checkpoint {
    let mut config: Value = serde_json::from_slice(&file(fixture, "config.json")).unwrap();
    change(&mut config);
    let weights = file(fixture, "model.safetensors");
    let stored = SafeTensors::deserialize(&weights).unwrap();
    let kept: HashMap<String, TensorView<'_>> = stored
        .iter()
        .filter_map(|(name, view)| Some((rename(name)?, view)))
        .collect();
    let weights = serialize(&kept, None).unwrap();
    Checkpoint::from_bytes(fixture, config.to_string().as_bytes(), weights, None).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "the form of a change")]
fn same(name: &str) -> Option<String> {
    Some(name.to_owned())
}

fn refused(
    fixture: &str,
    change: impl FnOnce(&mut Value),
    rename: impl Fn(&str) -> Option<String>,
) -> LoadError {
    registry::read_decoder(changed(fixture, change, rename)).unwrap_err()
}

#[test]
fn every_class_has_a_language_model_of_a_known_family() {
    for multimodal in CLASSES {
        let config = config(&json!({"text_config": {}, "thinker_config": {"text_config": {}}}));
        let family = multimodal.family(&config).map(|family| family.generator.unwrap());
        assert!(family.is_ok(), "{}: {family:?}", multimodal.class);
        let types = CLASSES
            .iter()
            .filter(|other| other.model_type == multimodal.model_type);
        assert_eq!(types.count(), 1, "{}", multimodal.model_type);
    }
}

#[test]
fn a_configuration_without_language_model_is_refused() {
    let error = refused(
        "gemma3-vision",
        |config| config["text_config"] = Value::Null,
        same,
    );
    assert!(
        matches!(&error, LoadError::MissingKey { file, key } if file.ends_with("config.json") && key == "text_config"),
        "{error}"
    );
    let error = refused("gemma3-vision", |config| config["text_config"] = json!(7), same);
    assert!(
        matches!(&error, LoadError::BadKey { key, .. } if key == "text_config"),
        "{error}"
    );
    for name in ["rwkv", "t5"] {
        let error = refused(
            "mistral3",
            |config| config["text_config"]["model_type"] = json!(name),
            same,
        );
        assert!(
            matches!(&error, LoadError::BadKey { key, .. } if key == "text_config.model_type"),
            "{error}"
        );
        assert!(
            error.to_string().contains("Mistral3ForConditionalGeneration"),
            "{error}"
        );
    }
    let error = refused(
        "mistral3",
        |config| config["text_config"]["hidden_size"] = json!(0),
        same,
    );
    assert!(
        matches!(&error, LoadError::BadKey { key, .. } if key == "text_config.hidden_size"),
        "{error}"
    );
}

#[test]
fn missing_tensors_are_named_as_the_file_has_the_others() {
    let lost = [
        (
            "gemma3-vision",
            "language_model.model.layers.1.mlp.up_proj.weight",
        ),
        ("mistral3", "model.language_model.layers.1.mlp.up_proj.weight"),
        ("mistral3", "lm_head.weight"),
        ("qwen2-5-vl", "model.layers.1.self_attn.q_proj.bias"),
        ("smolvlm", "model.text_model.layers.0.self_attn.o_proj.weight"),
    ];
    for (fixture, lost) in lost {
        let untied = |config: &mut Value| {
            config["tie_word_embeddings"] = json!(fixture == "qwen2-5-vl" || fixture == "gemma3-vision");
        };
        let error = refused(fixture, untied, |name| (name != lost).then(|| name.to_owned()));
        assert!(
            matches!(&error, LoadError::MissingTensor { name, .. } if name == lost),
            "{fixture}: {error}"
        );
    }
}

#[test]
fn only_tensors_of_known_modules_are_left_out() {
    let error = refused(
        "mistral3",
        |_| (),
        |name| Some(name.replace("vision_tower", "other_tower")),
    );
    let LoadError::UnusedTensors { names, .. } = &error else {
        panic!("{error}")
    };
    assert!(
        names.iter().all(|name| name.contains("other_tower.")) && names.len() > 3,
        "{names:?}"
    );
    let further =
        |name: &str| Some(name.replace("language_model.norm.weight", "language_model.further.weight"));
    let error = refused("mistral3", |_| (), further);
    assert!(
        error.to_string().contains("model.language_model.norm.weight"),
        "{error}"
    );
}

#[test]
fn tensors_of_encoders_are_not_counted() {
    let (_, whole) = registry::read_with_totals(changed("mistral3", |_| (), same)).unwrap();
    let encoders = |name: &str| !name.contains("vision_tower") && !name.contains("multi_modal_projector");
    let alone = changed("mistral3", |_| (), |name| encoders(name).then(|| name.to_owned()));
    assert_eq!(registry::read_with_totals(alone).unwrap().1, whole);
    let part = Partition::new(1, 2).unwrap();
    assert!(registry::read_partition(changed("mistral3", |_| (), same), part).is_ok());
}

#[test]
fn the_file_decides_whether_the_head_shares_the_embedding() {
    let read = |fixture: &str, inner: Value, outer: Value| {
        let change = |config: &mut Value| {
            config["tie_word_embeddings"] = outer;
            config["text_config"]["tie_word_embeddings"] = inner;
        };
        Ok::<_, LoadError>(
            registry::read_decoder(changed(fixture, change, same))?
                .head
                .shared,
        )
    };
    for (inner, outer) in [
        (json!(true), json!(false)),
        (Value::Null, json!(true)),
        (json!(false), Value::Null),
    ] {
        assert!(
            !read("mistral3", inner.clone(), outer.clone()).unwrap(),
            "{inner} {outer}"
        );
        let tied = inner == json!(true) || outer == json!(true);
        assert_eq!(read("gemma3-vision", inner, outer).is_ok(), tied);
    }
    assert!(read("gemma3-vision", Value::Null, Value::Null).unwrap());
}

#[test]
fn a_language_model_is_found_by_its_type() {
    for fixture in ["gemma3-vision", "qwen2-5-vl", "smolvlm"] {
        let change = |config: &mut Value| config["architectures"] = Value::Null;
        let found = registry::read_decoder(changed(fixture, change, same));
        let expected = registry::read_decoder(changed(fixture, |_| (), same)).unwrap();
        assert!(found.unwrap() == expected, "{fixture}");
    }
}

#[test]
fn absent_values_are_those_of_the_outermost_level_and_of_the_class() {
    let class = of_class("Gemma3ForConditionalGeneration").unwrap();
    let stated = json!({
        "eos_token_id": [1, 106],
        "pad_token_id": 3,
        "text_config": {"hidden_size": 2560, "eos_token_id": 1, "sliding_window": null, "pad_token_id": 5},
    });
    let text = class.text_config(&config(&stated), false).unwrap();
    let number = |key: &str| text.optional::<u64>(key).unwrap();
    assert_eq!(number("hidden_size"), Some(2560));
    assert_eq!(
        (number("vocab_size"), number("head_dim")),
        (Some(262_208), Some(256))
    );
    assert_eq!(
        (number("sliding_window"), number("pad_token_id")),
        (None, Some(5))
    );
    assert_eq!(
        text.optional::<Vec<u32>>("eos_token_id").unwrap(),
        Some(vec![1, 106])
    );
    assert_eq!(text.optional::<bool>(TIED).unwrap(), None);
}
