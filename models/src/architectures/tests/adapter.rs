//! Tests of an embedding model with task adapters, of which the default prompt selects one.

use std::path::{Path, PathBuf};

use crate::architectures::registry::{LoadOptions, load};
use crate::checkpoint::LoadError;
use crate::device::Device;
use crate::runtime::loaded::{Loaded, Task};
use crate::runtime::tensor::Tensor;
use crate::selftest::fixtures::Fixture;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join("jina-embeddings-v3-adapters")
}

fn loaded(dir: &Path) -> Result<Loaded, LoadError> {
    load(dir, &Device::Cpu, &LoadOptions::default())
}

#[test]
fn the_adapter_of_the_default_prompt_is_added_to_the_weights() {
    let mut loaded = loaded(&folder()).unwrap();
    assert_eq!(loaded.info.task, Task::Embedding);
    let read = |file: &str| -> &'static [u8] { std::fs::read(folder().join(file)).unwrap().leak() };
    let fixture = Fixture {
        name: "jina-embeddings-v3-adapters",
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

/// Returns a copy of the fixture with another default prompt, and with a changed `config.json`.
fn with_prompt(name: &str, change: impl FnOnce(&mut serde_json::Value)) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("1_Pooling")).unwrap();
    for file in [
        "1_Pooling/config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    ] {
        std::fs::copy(folder().join(file), to.path().join(file)).unwrap();
    }
    let config = std::fs::read(folder().join("config.json")).unwrap();
    let mut config = serde_json::from_slice(&config).unwrap();
    change(&mut config);
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    let prompts = serde_json::json!({
        "prompts": {"none": "", "retrieval.query": "", "separation": ""},
        "default_prompt_name": name,
    });
    let file = to.path().join("config_sentence_transformers.json");
    std::fs::write(file, prompts.to_string()).unwrap();
    to
}

#[test]
fn every_prompt_has_its_adapter_or_none() {
    let embedding = |name: &str| {
        let dir = with_prompt(name, |_| {});
        let inputs = vec![Tensor::from_texts("text", &["the old keeper"]).unwrap()];
        let answer = loaded(dir.path()).unwrap().model.run(&[inputs]).remove(0);
        answer.unwrap()[0].to_f32().unwrap()
    };
    let all = ["none", "retrieval.query", "separation"].map(embedding);
    assert_ne!(all[0], all[1]);
    assert_ne!(all[1], all[2]);
    assert_ne!(all[0], all[2]);
    // A prompt of another adapter must not be prepended to a text, because its adapter is not applied.
    let loaded = loaded(with_prompt("separation", |_| {}).path()).unwrap();
    assert!(loaded.info.prompts.is_empty());
}

#[test]
fn adapters_of_another_rank_are_refused_by_name() {
    let dir = with_prompt("separation", |config| config["lora_rank"] = 3.into());
    let error = loaded(dir.path()).err().unwrap().to_string();
    assert!(error.contains("parametrizations.weight.0.lora"), "{error}");
    let dir = with_prompt("separation", |config| config["truncate_dim"] = 8.into());
    let error = loaded(dir.path()).err().unwrap().to_string();
    assert!(error.contains("truncate_dim"), "{error}");
}
