//! Tests of sentence-transformers directories with other settings.

use std::path::Path;

use crate::architectures::registry::{LoadOptions, load};
use crate::checkpoint::LoadError;
use crate::device::Device;
use crate::runtime::loaded::{Loaded, Task};
use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;
use crate::selftest::fixtures::{Fixture, Parity};
use crate::tasks::embedding::PROMPT_NAME;

/// Loads a copy of a sentence-transformers directory with these files; files with empty content are omitted.
fn changed(files: &[(&str, &str)]) -> Result<Loaded, LoadError> {
    let (dir, from) = (
        tempfile::tempdir().unwrap(),
        Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/sentence-transformer"),
    );
    for part in ["", "1_Pooling", "2_Dense"] {
        std::fs::create_dir_all(dir.path().join(part)).unwrap();
        for entry in std::fs::read_dir(from.join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::copy(&path, dir.path().join(part).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    for (name, content) in files {
        let path = dir.path().join(name);
        if content.is_empty() {
            std::fs::remove_file(path).unwrap();
        } else {
            std::fs::write(path, content).unwrap();
        }
    }
    load(dir.path(), &Device::Cpu, &LoadOptions::default())
}

/// Returns the error of loading such a directory.
fn refused(files: &[(&str, &str)]) -> String {
    changed(files).err().unwrap().to_string()
}

/// Returns the embedding of a text by such a directory.
fn embedded(text: &str, files: &[(&str, &str)]) -> Vec<f32> {
    embedded_with(None, text, files).unwrap()
}

fn embedded_with(prompt: Option<&str>, text: &str, files: &[(&str, &str)]) -> Result<Vec<f32>, ModelError> {
    let mut model = changed(files).unwrap().model;
    let named = [("text", Some(text)), (PROMPT_NAME, prompt)];
    let inputs = named.map(|(name, text)| Some(Tensor::from_texts(name, &[text?]).unwrap()));
    let answer = model.run(&[inputs.into_iter().flatten().collect()]).remove(0);
    Ok(answer?[0].to_f32().unwrap())
}

/// Returns a `modules.json` with these modules, by folder and class.
fn modules(listed: &[(&str, &str)]) -> String {
    let listed = listed
        .iter()
        .map(|(path, kind)| serde_json::json!({"path": path, "type": kind}));
    listed.collect::<serde_json::Value>().to_string()
}

#[test]
fn modules_that_give_no_vector_of_a_text_are_refused() {
    let (whole, pooling, dense) = (
        ("", "x.Transformer"),
        ("1_Pooling", "x.Pooling"),
        ("2_Dense", "pylate.models.Dense.Dense"),
    );
    for (listed, reason) in [
        (modules(&[whole, dense]), "ColBERT"),
        (modules(&[whole]), "no module `Pooling`"),
        (modules(&[whole, dense, pooling]), "before a `Pooling`"),
        (
            modules(&[whole, pooling, ("2_Dense", "x.LSTM")]),
            "`x.LSTM` is not supported",
        ),
    ] {
        let error = refused(&[("modules.json", &listed)]);
        assert!(error.contains(reason), "{error}");
    }
    for kind in ["ColBERT", "SparseEncoder", "CrossEncoder"] {
        let settings = format!(r#"{{"model_type": "{kind}"}}"#);
        let error = refused(&[("config_sentence_transformers.json", &settings)]);
        assert!(error.contains("`model_type`") && error.contains(kind), "{error}");
    }
}

#[test]
fn settings_of_a_dense_layer_that_change_its_numbers_are_read_or_refused() {
    let keys = |more: &str| {
        format!(r#"{{"in_features": 16, "out_features": 12, "activation_function": "Tanh", {more}}}"#)
    };
    for (more, reason) in [
        (r#""use_residual": true"#, "residual.weight"),
        (r#""bias": false"#, "linear.bias"),
        (
            r#""module_input_name": "token_embeddings""#,
            "`module_input_name`",
        ),
        (r#""module_output_name": "other""#, "`module_output_name`"),
    ] {
        let error = refused(&[("2_Dense/config.json", &keys(more))]);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn poolings_are_read_as_sentence_transformers_reads_them() {
    let by = |config: &str| embedded("the sea is deep", &[("1_Pooling/config.json", config)]);
    let mean = by(r#"{"pooling_mode": "mean"}"#);
    for same in [
        r#"{"word_embedding_dimension": 16}"#,
        r#"{"pooling_mode": ["mean"], "pooling_mode_cls_token": true}"#,
        r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false}"#,
    ] {
        assert_eq!(by(same), mean, "{same}");
    }
    assert_ne!(by(r#"{"pooling_mode_cls_token": true}"#), mean);
    for (config, key) in [
        (r#"{"pooling_mode": ["mean", "max"]}"#, "`pooling_mode`"),
        (
            r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#,
            "`pooling_mode_*`",
        ),
    ] {
        let error = refused(&[("1_Pooling/config.json", config)]);
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn modules_are_computed_in_their_order() {
    let (loaded, parity) = compared("sentence-modules");
    assert_eq!(loaded.info.task, Task::Embedding);
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-5,
        "{parity:?}"
    );
}

#[test]
fn an_encoder_with_layers_of_scores_is_a_cross_encoder() {
    let (loaded, parity) = compared("cross-encoder-modules");
    assert_eq!(loaded.info.task, Task::Reranking);
    assert!(
        parity.cases == 3 && parity.largest_difference < 1e-5,
        "{parity:?}"
    );
}

/// Loads a directory and compares it with sentence-transformers.
fn compared(name: &'static str) -> (Loaded, Parity) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    let mut loaded = load(&dir, &Device::Cpu, &LoadOptions::default()).unwrap();
    let read = |file: &str| -> &'static [u8] { std::fs::read(dir.join(file)).unwrap().leak() };
    let fixture = Fixture {
        name,
        config: read("config.json"),
        weights: read("model.safetensors"),
        tokenizer: None,
        expected: read("expected.json"),
    };
    let parity = fixture.compare_model(loaded.model.as_mut()).unwrap();
    (loaded, parity)
}

#[test]
fn a_request_names_a_prompt_of_the_model() {
    let prompts = r#"{"prompts": {"query": "the old ", "document": ""}, "default_prompt_name": "document"}"#;
    let prompts = [("config_sentence_transformers.json", prompts)];
    assert_eq!(embedded("keeper", &prompts), embedded("keeper", &[]));
    let with = |prompt| embedded_with(Some(prompt), "keeper", &prompts);
    assert_eq!(with("query").unwrap(), embedded("the old keeper", &[]));
    assert_eq!(with("document").unwrap(), embedded("keeper", &[]));
    let error = with("passage").unwrap_err().to_string();
    assert!(error.contains(r#"it has ["document", "query"]"#), "{error}");
    let error = embedded_with(Some("query"), "keeper", &[]).unwrap_err();
    assert!(matches!(error, ModelError::UnknownInput { .. }), "{error}");
    let left_out = (
        "1_Pooling/config.json",
        r#"{"pooling_mode": "mean", "include_prompt": false}"#,
    );
    let error = embedded_with(Some("query"), "keeper", &[prompts[0], left_out]).unwrap_err();
    assert!(
        matches!(error, ModelError::UnknownInput { .. }),
        "what pooling leaves out: {error}"
    );
}

#[test]
fn settings_of_sentence_transformers_change_the_text() {
    let prompts = r#"{"prompts": {"query": "the old "}, "default_prompt_name": "query"}"#;
    let prompt = ("config_sentence_transformers.json", prompts);
    assert_eq!(embedded("keeper", &[prompt]), embedded("the old keeper", &[]));
    let cased = ("tokenizer_config.json", r#"{"do_lower_case": false}"#);
    let lower = ("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
    assert_ne!(embedded("The Sea", &[cased]), embedded("the sea", &[cased]));
    assert_eq!(
        embedded("The Sea", &[cased, lower]),
        embedded("the sea", &[cased])
    );
    // Without its own limit, the tokenizer's limit applies.
    let without = ("sentence_bert_config.json", "");
    let short = ("tokenizer_config.json", r#"{"model_max_length": 4}"#);
    assert_eq!(
        embedded("the sea is deep", &[without, short]),
        embedded("the sea", &[])
    );
    // Old versions named the file after the encoder.
    let old = ("sentence_roberta_config.json", r#"{"max_seq_length": 4}"#);
    assert_eq!(
        embedded("the sea is deep", &[without, old]),
        embedded("the sea", &[])
    );
    // Truncation may keep the end of a text instead of its beginning.
    let left = (
        "tokenizer_config.json",
        r#"{"model_max_length": 4, "truncation_side": "left"}"#,
    );
    assert_eq!(
        embedded("the sea is deep", &[without, left]),
        embedded("is deep", &[])
    );
    let endless = (
        "tokenizer_config.json",
        r#"{"model_max_length": 1000000000000000019884624838656}"#,
    );
    assert_eq!(
        embedded("the sea is deep", &[without, endless]),
        embedded("the sea is deep", &[])
    );
}

/// Loads a copy of a fixture with additional files, and with keys of its `config.json` replaced.
fn beside(fixture: &str, keys: &serde_json::Value, files: &[(&str, &str)]) -> Result<Loaded, LoadError> {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(fixture);
    std::fs::copy(
        from.join("model.safetensors"),
        dir.path().join("model.safetensors"),
    )
    .unwrap();
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&config).unwrap();
    config.extend(keys.as_object().unwrap().clone());
    std::fs::write(
        dir.path().join("config.json"),
        serde_json::to_vec(&config).unwrap(),
    )
    .unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    load(dir.path(), &Device::Cpu, &LoadOptions::default())
}

#[test]
fn a_pooling_comes_before_the_head_of_the_class() {
    let pooled = modules(&[
        ("", "x.Transformer"),
        ("1_Pooling", "x.Pooling"),
        ("2_Normalize", "x.Normalize"),
    ]);
    let pooled = [
        ("modules.json", pooled.as_str()),
        ("1_Pooling/config.json", r#"{"pooling_mode": "cls"}"#),
    ];
    let alone = modules(&[("", "x.Transformer")]);
    let alone = [("modules.json", alone.as_str())];
    let vector = |mut loaded: Loaded| {
        assert_eq!(loaded.info.task, Task::Embedding);
        let ids = Tensor::from_i64("input_ids", &[4], &[5, 9, 7, 6]).unwrap();
        loaded.model.run(&[vec![ids]]).remove(0).unwrap()[0]
            .to_f32()
            .unwrap()
    };
    for (fixture, classes, base, task) in [
        (
            "gte-new",
            ["NewForSequenceClassification", "NewForTokenClassification"],
            "NewModel",
            Task::Classification,
        ),
        (
            "bert-token-classification",
            ["BertForTokenClassification", "BertForQuestionAnswering"],
            "BertModel",
            Task::TokenClassification,
        ),
        (
            "llama-classification",
            ["LlamaForSequenceClassification", "LlamaForSequenceClassification"],
            "LlamaModel",
            Task::Classification,
        ),
    ] {
        let class = |name: &str| serde_json::json!({"architectures": [name]});
        let expected = beside(fixture, &class(base), &pooled).unwrap();
        assert_eq!(expected.info.architecture, base);
        let expected = vector(expected);
        for name in classes {
            let headed = beside(fixture, &class(name), &pooled).unwrap();
            assert_eq!(headed.info.architecture, base, "{name}");
            assert_eq!(vector(headed), expected, "{name}");
        }
        // A cross-encoder, or another model that modules only wrap.
        let wrapped = beside(fixture, &class(classes[0]), &alone).unwrap();
        assert_eq!(
            (wrapped.info.task, wrapped.info.architecture.as_str()),
            (task, classes[0])
        );
    }
}
