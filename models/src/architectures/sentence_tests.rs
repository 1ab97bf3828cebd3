//! Directories of sentence-transformers with other settings.

use std::path::Path;

use super::registry::{LoadOptions, load};
use crate::device::Device;
use crate::runtime::model::ModelError;
use crate::runtime::tensor::Tensor;
use crate::tasks::embedding::PROMPT_NAME;

/// Returns the embedding of a text by a copy of a directory of sentence-transformers with these files; one without content is left out.
fn embedded(text: &str, files: &[(&str, &str)]) -> Vec<f32> {
    embedded_with(None, text, files).unwrap()
}

fn embedded_with(prompt: Option<&str>, text: &str, files: &[(&str, &str)]) -> Result<Vec<f32>, ModelError> {
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
    let mut model = load(dir.path(), &Device::Cpu, &LoadOptions::default())
        .unwrap()
        .model;
    let named = [("text", Some(text)), (PROMPT_NAME, prompt)];
    let inputs = named.map(|(name, text)| Some(Tensor::from_texts(name, &[text?]).unwrap()));
    let answer = model.run(&[inputs.into_iter().flatten().collect()]).remove(0);
    Ok(answer?[0].to_f32().unwrap())
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
    // Without a limit of its own, that of the tokenizer.
    let without = ("sentence_bert_config.json", "");
    let short = ("tokenizer_config.json", r#"{"model_max_length": 4}"#);
    assert_eq!(
        embedded("the sea is deep", &[without, short]),
        embedded("the sea", &[])
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
