//! Compares static embeddings with model2vec and sentence-transformers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use super::*;
use crate::architectures::registry::{self, LoadOptions, load};
use crate::checkpoint::is_checkpoint;
use crate::runtime::loaded::Loaded;
use crate::selftest::fixtures::Fixture;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn loaded(dir: &Path) -> Result<Loaded, LoadError> {
    load(dir, &Device::Cpu, &LoadOptions::default())
}

/// Returns a copy of a fixture with replaced files; files with empty content are omitted.
fn changed(name: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    for (name, content) in files {
        let path = dir.path().join(name);
        match *content {
            "" => std::fs::remove_file(path).unwrap(),
            content => std::fs::write(path, content).unwrap(),
        }
    }
    dir
}

fn embedded(model: &mut dyn Model, inputs: Inputs) -> Result<Vec<f32>, ModelError> {
    Ok(model.run(&[inputs]).remove(0)?[0].to_f32().unwrap())
}

fn text(text: &str) -> Inputs {
    vec![Tensor::from_texts("text", &[text]).unwrap()]
}

#[test]
fn directories_match_the_library_that_wrote_them() {
    for (name, class, cases) in [
        ("model2vec", STATIC_MODEL, 7),
        ("model2vec-quantised", STATIC_MODEL, 6),
        ("static-embedding", STATIC_EMBEDDING, 7),
    ] {
        let dir = folder(name);
        assert!(is_checkpoint(&dir));
        assert_eq!(registry::architecture(&dir).unwrap(), class);
        assert!(registry::partitioning(&dir).unwrap().is_none());
        let mut loaded = loaded(&dir).unwrap();
        assert_eq!(
            (loaded.info.task, loaded.info.architecture.as_str()),
            (Task::Embedding, class)
        );
        let expected = std::fs::read(dir.join("expected.json")).unwrap().leak();
        let fixture = Fixture {
            name,
            config: b"{}",
            weights: b"",
            tokenizer: None,
            expected,
        };
        let parity = fixture.compare_model(loaded.model.as_mut()).unwrap();
        assert!(
            parity.cases == cases && parity.largest_difference < 1e-5 * parity.largest_expected.max(1.0),
            "{name}: {parity:?}"
        );
    }
}

#[test]
fn a_directory_of_model2vec_needs_no_modules() {
    let dir = changed("model2vec", &[("modules.json", "")]);
    let mut alone = loaded(dir.path()).unwrap().model;
    let mut whole = loaded(&folder("model2vec")).unwrap().model;
    let answers = [&mut alone, &mut whole].map(|model| embedded(model.as_mut(), text("the deep sea")));
    assert_eq!(answers[0], answers[1]);
    let answer = answers[0].as_ref().unwrap();
    let length = answer.iter().map(|value| value * value).sum::<f32>();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
}

#[test]
fn unknown_tokens_do_not_count_and_long_texts_end() {
    let config = r#"{"model_type": "model2vec", "max_length": 2}"#;
    let dir = changed("model2vec", &[("config.json", config)]);
    let mut model = loaded(dir.path()).unwrap().model;
    let mut of = |words: &str| embedded(model.as_mut(), text(words)).unwrap();
    assert_eq!(of("雪 the"), of("the"));
    assert_eq!(of("the sea is"), of("the sea"));
    // The unknown token counts for truncation.
    assert_eq!(of("雪 the sea"), of("the"));
    assert_eq!(of(""), vec![0.0; 10]);
}

#[test]
fn forms_that_are_not_computed_are_refused() {
    let dir = |files: &[(&str, &str)]| {
        let dir = changed("static-embedding", files);
        loaded(dir.path()).err().unwrap().to_string()
    };
    let listed = |kinds: [&str; 2]| {
        let modules = kinds.map(|kind| serde_json::json!({"path": "", "type": format!("x.{kind}")}));
        serde_json::json!(modules).to_string()
    };
    for (kinds, reason) in [
        (["StaticEmbedding", "Pooling"], "`x.Pooling` is not supported"),
        (
            ["StaticEmbedding", "StaticEmbedding"],
            "`x.StaticEmbedding` is not supported",
        ),
        (
            ["WordEmbeddings", "Pooling"],
            "`x.WordEmbeddings` is not supported",
        ),
    ] {
        let error = dir(&[("modules.json", &listed(kinds))]);
        assert!(error.contains(reason), "{error}");
    }
    let error = dir(&[("tokenizer.json", "{}")]);
    assert!(error.contains("is not a valid tokenizer"), "{error}");
    for (key, reason) in [
        (r#""max_length": 0"#, "`max_length` = 0"),
        (
            r#""head_config": {"task": "classification"}"#,
            "classifiers of model2vec",
        ),
    ] {
        let config = format!(r#"{{"model_type": "model2vec", {key}}}"#);
        let wrong = changed("model2vec", &[("config.json", &config)]);
        let error = loaded(wrong.path()).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_mapping_must_name_rows() {
    let dir = changed("model2vec-quantised", &[]);
    let path = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for (row, is_good) in [(19_i8, true), (20, false), (-1, false)] {
        let count = file.tensor("mapping").unwrap().shape()[0];
        let mapping: Vec<u8> = vec![i64::from(row); count]
            .iter()
            .flat_map(|row| row.to_le_bytes())
            .collect();
        let tensors = file.iter().map(|(name, view)| match name {
            "mapping" => (name, TensorView::new(Dtype::I64, vec![count], &mapping).unwrap()),
            _ => (name, view),
        });
        std::fs::write(
            &path,
            serialize(tensors, None::<HashMap<String, String>>).unwrap(),
        )
        .unwrap();
        match loaded(dir.path()) {
            Ok(_) => assert!(is_good, "{row}"),
            Err(error) => assert!(
                !is_good && error.to_string().contains(&format!("the row {row} of 20")),
                "{error}"
            ),
        }
    }
}

#[test]
fn invalid_requests_are_refused() {
    let mut model = loaded(&folder("static-embedding")).unwrap().model;
    let ids = |name: &str, ids: &[i64]| Tensor::from_i64(name, &[ids.len()], ids).unwrap();
    let prompt = Tensor::from_texts(PROMPT_NAME, &["passage"]).unwrap();
    let named = |name: &str| Tensor::from_texts(name, &["the sea"]).unwrap();
    for (inputs, reason) in [
        (vec![], "`text` and `input_ids` are missing"),
        (vec![ids("input_ids", &[-1])], "element 0 is -1"),
        (vec![ids("input_ids", &[1 << 20])], "element 0 is 1048576"),
        (vec![ids("input_ids", &[7]), named("text")], "send only one"),
        (vec![ids("input_ids", &[7]), prompt.clone()], "with `text` only"),
        (vec![named("text"), prompt], "no prompt `passage`"),
        (vec![named("text"), named("text_pair")], "`text_pair` is unknown"),
    ] {
        let error = embedded(model.as_mut(), inputs).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(embedded(model.as_mut(), vec![ids("input_ids", &[7, 9])]).is_ok());
    let dir = changed("static-embedding", &[("tokenizer.json", "")]);
    let mut bare = loaded(dir.path()).unwrap().model;
    let error = embedded(bare.as_mut(), text("the sea")).unwrap_err().to_string();
    assert!(error.contains("no tokenizer.json"), "{error}");
}
