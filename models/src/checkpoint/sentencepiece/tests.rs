//! Compares with tokenizers converted by transformers, from `fixtures/make_sentencepiece_fixtures.py`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use tokenizers::Tokenizer;

use super::proto::Piece;
use super::*;

/// Results of transformers.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    #[serde(flatten)]
    tokenizers: BTreeMap<String, Results>,
}

#[derive(Deserialize)]
struct Results {
    /// Texts in addition to those of all fixtures.
    #[serde(default)]
    texts: Vec<String>,
    /// Whether transformers has only a slow tokenizer of the class, which strips spaces from an answer.
    #[serde(default)]
    slow: bool,
    ids: Vec<Vec<u32>>,
    decoded: Vec<String>,
    /// Ids and token types of adjacent texts as pairs, from the eighth text on; no types if the class has none.
    pairs: Vec<[Vec<u32>; 2]>,
}

/// Returns the folder of the fixtures; `SENTENCEPIECE_FIXTURES` overrides it.
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
    assert_eq!(expected.tokenizers.len(), 21);
    for (name, results) in &expected.tokenizers {
        let tokenizer = built(&folder().join(name));
        let texts = expected.texts.iter().chain(&results.texts);
        assert_eq!(results.ids.len(), texts.clone().count());
        for ((text, ids), decoded) in texts.zip(&results.ids).zip(&results.decoded) {
            let encoding = tokenizer.encode(text.as_str(), true).unwrap();
            assert_eq!(
                encoding.get_ids(),
                ids,
                "{name}: {text:?}: {:?}",
                encoding.get_tokens()
            );
            let mut answer = tokenizer.decode(ids, true).unwrap();
            if results.slow {
                answer = answer.trim_matches(' ').to_owned();
            }
            assert_eq!(&answer, decoded, "{name}: {text:?}");
        }
        let texts = expected.texts.iter().skip(7);
        for (pair, [ids, types]) in texts.clone().zip(texts.skip(1)).zip(&results.pairs) {
            let encoding = tokenizer
                .encode((pair.0.as_str(), pair.1.as_str()), true)
                .unwrap();
            assert_eq!(encoding.get_ids(), ids, "{name}: {pair:?}");
            if !types.is_empty() {
                assert_eq!(encoding.get_type_ids(), types, "{name}: {pair:?}");
            }
        }
    }
}

/// Copies a fixture, with replacement files.
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

/// Returns the content of a file of a fixture.
fn content(name: &str, file: &str) -> String {
    let from = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/sentencepiece"));
    std::fs::read_to_string(from.join(name).join(file)).unwrap()
}

#[test]
fn pieces_of_the_target_alone_are_decoded_and_not_chosen() {
    let tokenizer = built(&folder().join("marian"));
    let vocabulary: BTreeMap<String, u32> = serde_json::from_str(&content("marian", "vocab.json")).unwrap();
    assert_eq!(
        tokenizer.token_to_id(">>fra<<"),
        vocabulary.get(">>fra<<").copied()
    );
    let source = Model::parse(&std::fs::read(folder().join("marian/source.spm")).unwrap()).unwrap();
    let source: Vec<&str> = source.pieces.iter().map(Piece::text).collect();
    let mut targets = 0;
    for (token, id) in &vocabulary {
        let plain = token.trim_start_matches('\u{2581}');
        let is_own = ["</s>", "<pad>", ">>fra<<", ">>deu<<"].contains(&token.as_str());
        if is_own || plain.is_empty() || source.contains(&token.as_str()) {
            continue;
        }
        targets += 1;
        assert_eq!(tokenizer.decode(&[*id], true).unwrap(), plain);
        let encoding = tokenizer.encode(plain, false).unwrap();
        assert!(!encoding.get_ids().contains(id), "{token}");
    }
    assert!(targets > 30, "{targets}");
    let tokens = |text: &str| tokenizer.encode(text, true).unwrap().get_ids().to_vec();
    let unknown = vocabulary["<unk>"];
    assert_eq!(
        tokens("漢字"),
        [vocabulary["\u{2581}"], unknown, vocabulary["</s>"]]
    );
}

#[test]
fn vocabularies_of_translators_are_checked() {
    let of = |name: &str, config: &str, vocabulary: Option<&str>| {
        let file = if name == "marian" {
            "source.spm"
        } else {
            "sentencepiece.bpe.model"
        };
        let mut files = vec![("tokenizer_config.json", config)];
        files.extend(vocabulary.map(|content| ("vocab.json", content)));
        let dir = with(name, file, &files);
        build(dir.path()).map(|built| built.is_some())
    };
    let reason = |name: &str, config: &str, vocabulary: &str| {
        of(name, config, Some(vocabulary)).unwrap_err().to_string()
    };
    let (marian, m2m100) = (content("marian", "vocab.json"), content("m2m100", "vocab.json"));
    let class = r#"{"tokenizer_class": "MarianTokenizer"}"#;
    assert!(!of("marian", class, None).unwrap(), "no vocab.json");
    assert!(of("marian", class, Some(&marian)).unwrap());
    assert!(!of("marian", r#"{"tokenizer_class": "T5Tokenizer"}"#, Some(&marian)).unwrap());
    let twice = reason("marian", class, r#"{"</s>": 0, "<unk>": 0}"#);
    assert!(twice.contains("each once"), "{twice}");
    let none = reason("marian", class, r#"{"</s>": 0, "<pad>": 1}"#);
    assert!(none.contains("no `<unk>`"), "{none}");
    let separate = r#"{"tokenizer_class": "MarianTokenizer", "separate_vocabs": true}"#;
    let separate = reason("marian", separate, &marian);
    assert!(separate.contains("separate_vocabs"), "{separate}");
    let codes = r#"{"tokenizer_class": "M2M100Tokenizer", "language_codes": "mine"}"#;
    let codes = reason("m2m100", codes, &m2m100);
    assert!(codes.contains("language_codes is `mine`"), "{codes}");
    let language = r#"{"tokenizer_class": "M2M100Tokenizer", "src_lang": "xx"}"#;
    let language = reason("m2m100", language, &m2m100);
    assert!(language.contains("no piece `__xx__`"), "{language}");
}

#[test]
fn pegasus_ids_follow_the_offset() {
    let of =
        |config: &str| build(with("pegasus", "spiece.model", &[("tokenizer_config.json", config)]).path());
    let config = r#"{"tokenizer_class": "PegasusTokenizer", "offset": 0, "mask_token_sent": null, "mask_token": "[MASK]"}"#;
    let (_, json) = of(config).unwrap().unwrap();
    let tokenizer = Tokenizer::from_bytes(json).unwrap();
    let ids = ["<pad>", "</s>", "<unk>"].map(|token| tokenizer.token_to_id(token));
    assert_eq!(ids, [Some(0), Some(1), Some(2)]);
    for setting in [r#""offset": 1"#, r#""offset": 0"#, r#""mask_token_sent": null"#] {
        let error = of(&format!(
            r#"{{"tokenizer_class": "PegasusTokenizer", {setting}}}"#
        ))
        .unwrap_err();
        assert!(error.to_string().contains("offset is "), "{error}");
    }
}

#[test]
fn the_class_may_be_in_the_configuration_of_the_model() {
    let config = r#"{"model_type": "mbart", "tokenizer_class": "MBart50Tokenizer"}"#;
    let dir = with("mbart50", "sentencepiece.bpe.model", &[("config.json", config)]);
    let tokenizer = built(dir.path());
    let encoding = tokenizer.encode("a", true).unwrap();
    assert_eq!(encoding.get_tokens().first().map(String::as_str), Some("en_XX"));
}
