use std::path::{Path, PathBuf};

use super::*;
use crate::architectures::registry::{LoadOptions, architecture, load};
use crate::runtime::loaded::Loaded;
use crate::runtime::tensor::Tensor;
use crate::selftest::fixtures::Fixture;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn loaded(dir: &Path) -> Result<Loaded, LoadError> {
    load(dir, &Device::Cpu, &LoadOptions::default())
}

fn request(ids: &[i64], mask: Option<&[i64]>) -> Inputs {
    let tensor = |name, values: &[i64]| Tensor::from_i64(name, &[values.len()], values).unwrap();
    let ids = [tensor("input_ids", ids)].into_iter();
    ids.chain(mask.map(|mask| tensor("attention_mask", mask)))
        .collect()
}

fn logits(outputs: &Result<Outputs, ModelError>) -> Vec<f32> {
    outputs.as_ref().unwrap()[0].to_f32().unwrap()
}

#[test]
fn padding_changes_no_class() {
    let mut model = loaded(&folder("llama-classification")).unwrap().model;
    let answers = model.run(&[
        request(&[7, 8, 9], None),
        // Padding is recognised with and without a mask.
        request(&[7, 8, 9, 0, 0], None),
        request(&[7, 8, 9, 0, 0], Some(&[1, 1, 1, 0, 0])),
        request(&[0, 0, 7, 8, 9], Some(&[0, 0, 1, 1, 1])),
        request(&[7, 8, 9, 0, 10], None),
        request(&[0, 0], None),
        request(&[0], None),
    ]);
    for padded in &answers[1..4] {
        assert_eq!(logits(padded), logits(&answers[0]));
    }
    assert_ne!(
        logits(&answers[4]),
        logits(&answers[0]),
        "a token after padding counts"
    );
    assert_eq!(logits(&answers[5]), logits(&answers[6]));
}

#[test]
fn the_classifier_of_an_encoder_decoder_needs_the_end_of_the_text() {
    let mut model = loaded(&folder("bart-classification")).unwrap().model;
    let answers = model.run(&[
        request(&[7, 8, 2], None),
        request(&[7, 8, 2, 1, 1], Some(&[1, 1, 1, 0, 0])),
        request(&[7, 8, 9], None),
    ]);
    assert_eq!(logits(&answers[0]), logits(&answers[1]));
    let refused = answers[2].as_ref().unwrap_err().to_string();
    assert!(refused.contains("its last token must be 2"), "{refused}");
}

#[test]
fn a_directory_of_sentence_transformers_around_a_language_model_gives_its_embeddings() {
    let dir = folder("qwen3-embedding");
    assert_eq!(architecture(&dir).unwrap(), "Qwen3Model");
    let mut loaded = loaded(&dir).unwrap();
    assert_eq!(loaded.info.task, Task::Embedding);
    let read = |file: &str| -> &'static [u8] { std::fs::read(dir.join(file)).unwrap().leak() };
    let fixture = Fixture {
        name: "qwen3-embedding",
        config: read("config.json"),
        weights: read("model.safetensors"),
        tokenizer: None,
        expected: read("expected.json"),
    };
    let parity = fixture.compare_model(loaded.model.as_mut()).unwrap();
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-5,
        "{parity:?}"
    );
}

#[test]
fn a_language_model_without_a_causal_mask_gives_the_embeddings_of_transformers() {
    let dir = folder("qwen2-bidirectional");
    let read = |file: &str| -> &'static [u8] { std::fs::read(dir.join(file)).unwrap().leak() };
    let fixture = Fixture {
        name: "qwen2-bidirectional",
        config: read("config.json"),
        weights: read("model.safetensors"),
        tokenizer: Some(read("tokenizer.json")),
        expected: read("expected.json"),
    };
    let parity = fixture.compare(&Device::Cpu).unwrap();
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-5,
        "{parity:?}"
    );
}

#[test]
fn classifiers_see_later_tokens_only_without_a_causal_mask() {
    let first_alone = |causal: Option<bool>| {
        let dir = changed("llama-token-classification", |config| {
            config.extend(causal.map(|causal| ("is_causal".into(), causal.into())));
        });
        let mut model = loaded(dir.path()).unwrap().model;
        let answers = model.run(&[request(&[7, 8, 9], None), request(&[7, 8, 6], None)]);
        let [one, other] = [0, 1].map(|index| logits(&answers[index])[..2].to_vec());
        one == other
    };
    assert!(first_alone(None) && first_alone(Some(true)));
    assert!(!first_alone(Some(false)));
}

#[test]
fn a_causal_mask_that_cannot_be_taken_away_is_refused() {
    let refused = |name: &str, change: fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let dir = changed(name, |config| {
            config.insert("is_causal".into(), false.into());
            change(config);
        });
        let error = loaded(dir.path()).err().unwrap().to_string();
        assert!(error.contains("`is_causal`"), "{error}");
    };
    refused("qwen2", |_| {});
    refused("bloom", |config| {
        config.insert("architectures".into(), serde_json::json!(["BloomModel"]));
    });
    refused("mamba", |config| {
        config.insert("architectures".into(), serde_json::json!(["MambaModel"]));
    });
}

#[test]
fn code_that_may_change_the_attention_is_refused_unless_the_mask_is_stated() {
    let with_code = |causal: Option<bool>| {
        changed("qwen2-bidirectional", |config| {
            config.remove("is_causal");
            config.extend(causal.map(|causal| ("is_causal".into(), causal.into())));
            let code = serde_json::json!({"AutoModel": "modeling_qwen.Qwen2Model"});
            config.insert("auto_map".into(), code);
        })
    };
    let error = loaded(with_code(None).path()).err().unwrap().to_string();
    assert!(
        error.contains("`auto_map`") && error.contains("add `is_causal`"),
        "{error}"
    );
    assert!(loaded(with_code(Some(false)).path()).is_ok());
}

/// Copies a fixture with a changed `config.json`.
fn changed(
    name: &str,
    change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(folder(name).join(file), to.path().join(file)).unwrap();
    }
    let path = to.path().join("config.json");
    let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, serde_json::to_vec(&config).unwrap()).unwrap();
    to
}

#[test]
fn without_a_class_the_head_decides() {
    for (name, class) in [
        ("llama-classification", "LlamaForSequenceClassification"),
        ("gpt2", "GPT2LMHeadModel"),
        ("bert-classification", "BertForSequenceClassification"),
        ("bert-question-answering", "BertForQuestionAnswering"),
        ("vit", "ViTForImageClassification"),
        ("deit-distilled", "DeiTForImageClassificationWithTeacher"),
    ] {
        let dir = changed(name, |config| {
            config.remove("architectures");
        });
        assert_eq!(architecture(dir.path()).unwrap(), class);
        assert_eq!(loaded(dir.path()).unwrap().info.architecture, class);
    }
}

#[test]
fn another_head_of_a_known_family_is_refused_by_name() {
    for (class, similar) in [
        ("T5ForQuestionAnswering", "T5ForSequenceClassification"),
        ("BertForMaskedLM", "BertForSequenceClassification"),
    ] {
        let dir = changed("llama-classification", |config| {
            config.insert("architectures".into(), serde_json::json!([class]));
        });
        let error = loaded(dir.path()).err().unwrap().to_string();
        assert!(
            error.contains(class) && error.contains(similar) && !error.contains("Llama"),
            "{error}"
        );
    }
}

#[test]
fn partitions_count_the_weights_that_they_hold() {
    let count = |index, of| {
        let options = LoadOptions {
            partition: Partition::new(index, of).unwrap(),
            ..LoadOptions::default()
        };
        let loaded = load(&folder("llama-classification"), &Device::Cpu, &options).unwrap();
        (loaded.info.parameters, loaded.info.weight_bytes)
    };
    let (parameters, bytes) = count(0, 1);
    assert_eq!(bytes, 4 * parameters);
    // Every partition keeps the final norm.
    assert_eq!(count(0, 2).1 + count(1, 2).1, bytes + 4 * 16);
}
