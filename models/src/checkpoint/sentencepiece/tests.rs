//! Comparison with the tokenizers that transformers converts, by `fixtures/make_sentencepiece_fixtures.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tokenizers::Tokenizer;

use super::*;

/// What transformers computed.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    #[serde(flatten)]
    tokenizers: BTreeMap<String, Results>,
}

#[derive(Deserialize)]
struct Results {
    ids: Vec<Vec<u32>>,
    decoded: Vec<String>,
    /// Ids and token types of neighbouring texts, from the eighth on.
    pairs: Vec<[Vec<u32>; 2]>,
}

/// The fixtures; `SENTENCEPIECE_FIXTURES` names others that the script wrote.
fn folder() -> PathBuf {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/sentencepiece");
    std::env::var_os("SENTENCEPIECE_FIXTURES").map_or_else(|| committed.into(), PathBuf::from)
}

fn built(dir: &Path) -> Tokenizer {
    let (_, json) = build(dir).unwrap().expect("a known class");
    Tokenizer::from_bytes(json).unwrap()
}

#[test]
fn tokens_equal_those_of_transformers() {
    let expected = std::fs::read(folder().join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_slice(&expected).unwrap();
    assert_eq!(expected.tokenizers.len(), 12);
    for (name, results) in &expected.tokenizers {
        let tokenizer = built(&folder().join(name));
        assert_eq!(results.ids.len(), expected.texts.len());
        for ((text, ids), decoded) in expected.texts.iter().zip(&results.ids).zip(&results.decoded) {
            let encoding = tokenizer.encode(text.as_str(), true).unwrap();
            assert_eq!(
                encoding.get_ids(),
                ids,
                "{name}: {text:?}: {:?}",
                encoding.get_tokens()
            );
            assert_eq!(&tokenizer.decode(ids, true).unwrap(), decoded, "{name}: {text:?}");
        }
        let texts = expected.texts.iter().skip(7);
        for (pair, [ids, types]) in texts.clone().zip(texts.skip(1)).zip(&results.pairs) {
            let encoding = tokenizer
                .encode((pair.0.as_str(), pair.1.as_str()), true)
                .unwrap();
            assert_eq!(encoding.get_ids(), ids, "{name}: {pair:?}");
            assert_eq!(encoding.get_type_ids(), types, "{name}: {pair:?}");
        }
    }
}

/// Copies a fixture, with files that replace its own.
fn with(name: &str, file: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let from = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/sentencepiece"));
    std::fs::copy(from.join(name).join(file), dir.path().join(file)).unwrap();
    for (file, content) in files {
        std::fs::write(dir.path().join(file), content).unwrap();
    }
    dir
}

#[test]
fn the_model_type_decides_without_a_class() {
    let dir = with("camembert", "sentencepiece.bpe.model", &[]);
    assert!(build(dir.path()).unwrap().is_none(), "no class");
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "camembert"}"#).unwrap();
    assert_eq!(built(dir.path()).token_to_id("<unk>NOTUSED"), Some(4));
    let file = crate::checkpoint::TokenizerFile::beside(dir.path())
        .unwrap()
        .unwrap();
    assert!(file.file.ends_with("sentencepiece.bpe.model"), "{}", file.file);
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    assert!(build(dir.path()).unwrap().is_none(), "another class");
}

#[test]
fn added_tokens_of_other_files_are_known() {
    let config = r#"{
        "tokenizer_class": "LlamaTokenizer", "pad_token": {"content": "<pad>"}, "additional_special_tokens": ["<one>"],
        "added_tokens_decoder": {"421": {
            "content": "<two>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true
        }}
    }"#;
    let files = [
        ("tokenizer_config.json", config),
        ("added_tokens.json", r#"{"<three>": 420}"#),
    ];
    let tokenizer = built(with("llama", "tokenizer.model", &files).path());
    let id = |token| tokenizer.token_to_id(token).unwrap();
    let ids = ["<three>", "<two>", "<pad>", "<one>"].map(id);
    assert_eq!(ids, [420, 421, 422, 423]);
    let encoding = tokenizer.encode("<one><pad><three><two>", false).unwrap();
    let ids = encoding.get_ids();
    assert_eq!(ids.iter().filter(|token| **token >= 420).count(), 4, "{ids:?}");
}

#[test]
fn settings_that_cannot_be_met_are_refused() {
    let many = [(
        "tokenizer_config.json",
        r#"{"tokenizer_class": "T5Tokenizer", "extra_ids": 10001}"#,
    )];
    let error = build(with("t5", "spiece.model", &many).path()).unwrap_err();
    assert!(
        matches!(&error, LoadError::BadKey { key, .. } if key == "extra_ids"),
        "{error}"
    );
    let other = r#"{"tokenizer_class": "AlbertTokenizer", "bos_token": "<b>", "cls_token": "<c>"}"#;
    let other = [("tokenizer_config.json", other)];
    let error = build(with("t5", "spiece.model", &other).path()).unwrap_err();
    assert!(error.to_string().contains("no piece `[CLS]`"), "{error}");
    let llama = [
        (
            "tokenizer_config.json",
            r#"{"tokenizer_class": "LlamaTokenizer"}"#,
        ),
        ("spiece.model", "text"),
    ];
    let error = build(with("llama", "tokenizer.model", &llama).path()).unwrap_err();
    assert!(
        matches!(&error, LoadError::BadTokenizer { file, .. } if file.ends_with("spiece.model")),
        "{error}"
    );
}
