//! Tests headers, blocks and vocabularies of the fixtures of `fixtures/make_gguf_fixtures.py`, and damaged files.

use std::path::PathBuf;

use proptest::prelude::*;
use serde::Deserialize;
use tokenizers::Tokenizer;

use super::metadata::Value;
use super::*;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "fixtures", "gguf"].iter().collect()
}

fn fixture(name: &str) -> Bytes {
    std::fs::read(folder().join(name)).unwrap().into()
}

fn header(bytes: &Bytes) -> Result<Header, LoadError> {
    let source = Source::Memory(bytes.clone());
    Header::read("file.gguf", &source, bytes.len() as u64)
}

fn reason(bytes: Vec<u8>) -> String {
    header(&bytes.into()).unwrap_err().to_string()
}

#[test]
fn blocks_have_the_values_of_the_package_gguf() {
    let bytes = fixture("blocks.gguf");
    let header = header(&bytes).unwrap();
    let data = bytes.slice(header.data_start as usize..);
    let mut count = 0;
    for (name, tensor) in &header.tensors {
        let Some(expected) = header.tensors.get(&format!("{name}.decoded")) else {
            continue;
        };
        assert_eq!(tensor.kind.name(), name);
        assert_eq!(tensor.shape, expected.shape, "{name}");
        let [stored, expected] = [tensor, expected].map(|tensor| {
            let mut values = vec![f32::NAN; tensor.shape.iter().product()];
            tensor
                .kind
                .decode(&data[tensor.range.0..tensor.range.1], &mut values);
            values
                .iter()
                .map(|value| value + 0.0)
                .map(f32::to_bits)
                .collect::<Vec<_>>()
        });
        assert_eq!(stored, expected, "{name}");
        count += 1;
    }
    assert_eq!(count, 16);
}

/// Expected tokens of texts, by pre-tokenizer or by class.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<String>,
    tokens: BTreeMap<String, Vec<Vec<u32>>>,
}

fn tokenizer(metadata: &Metadata) -> Tokenizer {
    let built = Vocabulary::read(metadata).unwrap().build().unwrap().unwrap();
    Tokenizer::from_bytes(&built.json).unwrap()
}

#[test]
fn words_are_those_of_the_published_pre_tokenizers() {
    let expected: Expected = serde_json::from_slice(&fixture("tokens.json")).unwrap();
    let mut metadata = header(&fixture("bpe.gguf")).unwrap().metadata;
    assert!(expected.tokens.len() >= 8);
    for (name, tokens) in &expected.tokens {
        metadata
            .values
            .insert("tokenizer.ggml.pre".into(), Value::Text(name.clone()));
        let tokenizer = tokenizer(&metadata);
        for (text, tokens) in expected.texts.iter().zip(tokens) {
            let encoding = tokenizer.encode(text.as_str(), true).unwrap();
            assert_eq!(encoding.get_ids(), tokens, "{name}: {text:?}");
        }
    }
}

#[test]
fn every_pre_tokenizer_gives_a_tokenizer() {
    let mut metadata = header(&fixture("bpe.gguf")).unwrap().metadata;
    for name in pre_tokenizers::PreTokenizer::names() {
        metadata
            .values
            .insert("tokenizer.ggml.pre".into(), Value::Text(name.into()));
        let tokenizer = tokenizer(&metadata);
        let text = "It's 12345 o'clock,\n\n  HelloWorld \u{4e16}\u{754c}!";
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(ids.get_ids(), true).unwrap(), text, "{name}");
    }
    metadata
        .values
        .insert("tokenizer.ggml.pre".into(), Value::Text("new".into()));
    let error = Vocabulary::read(&metadata)
        .unwrap()
        .build()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("tokenizer.ggml.pre` = \"new\"") && error.contains("llama-bpe"),
        "{error}"
    );
}

#[test]
fn pieces_are_those_of_sentencepiece() {
    #[derive(Deserialize)]
    struct Pieces {
        texts: Vec<String>,
        llama: Ids,
        gemma: Ids,
    }
    #[derive(Deserialize)]
    struct Ids {
        ids: Vec<Vec<u32>>,
        decoded: Vec<String>,
    }
    let expected: Pieces = serde_json::from_slice(&fixture("../sentencepiece/expected.json")).unwrap();
    for (name, results) in [("llama", &expected.llama), ("gemma", &expected.gemma)] {
        let tokenizer = tokenizer(&header(&fixture(&format!("{name}-spm.gguf"))).unwrap().metadata);
        let results = results.ids.iter().zip(&results.decoded);
        for (text, (ids, decoded)) in expected.texts.iter().zip(results) {
            // Skips tokens beyond the vocabulary, which belong to another file.
            if ids
                .iter()
                .any(|id| *id as usize >= tokenizer.get_vocab_size(true))
            {
                continue;
            }
            let encoding = tokenizer.encode(text.as_str(), true).unwrap();
            assert_eq!(
                encoding.get_ids(),
                ids,
                "{name}: {text:?}: {:?}",
                encoding.get_tokens()
            );
            // Which user-defined tokens are special is stated in settings next to the model, which the GGUF file does
            // not contain.
            if !text.contains("<start_of_turn>") {
                assert_eq!(&tokenizer.decode(ids, true).unwrap(), decoded, "{name}: {text:?}");
            }
        }
    }
}

#[test]
fn tokens_that_begin_and_end_texts_follow_the_flags() {
    let mut metadata = header(&fixture("bpe.gguf")).unwrap().metadata;
    for flag in ["add_bos_token", "add_eos_token"] {
        metadata
            .values
            .insert(format!("tokenizer.ggml.{flag}"), Value::Bool(true));
    }
    let ids = tokenizer(&metadata)
        .encode("a</s>", true)
        .unwrap()
        .get_ids()
        .to_vec();
    assert_eq!((ids[0], &ids[2..]), (0, &[1, 1][..]));
    let vocabulary = Vocabulary::read(&metadata).unwrap();
    assert_eq!(vocabulary.ends().unwrap(), [1]);
    assert_eq!(vocabulary.special().unwrap().bos_token.as_deref(), Some("<s>"));
    metadata
        .values
        .insert("tokenizer.ggml.eot_token_id".into(), Value::Integer(1 << 20));
    let error = Vocabulary::read(&metadata).unwrap().ends().unwrap_err();
    assert!(error.to_string().contains("eot_token_id"), "{error}");
}

/// Builds a file with only these keys and tensors.
fn file(keys: &[&[u8]], tensors: &[(&str, &[u64], u32, u64)], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for key in keys {
        bytes.extend_from_slice(key);
    }
    for (name, shape, kind, offset) in tensors {
        bytes.extend(text(name));
        bytes.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes
}

fn key(name: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [text(name), kind.to_le_bytes().to_vec(), value.to_vec()].concat()
}

#[test]
fn damaged_headers_are_refused_with_a_reason() {
    let name = key("general.architecture", 8, &text("llama"));
    let whole = file(&[&name], &[("a", &[32, 2], 0, 0), ("b", &[4], 0, 256)], 272);
    assert_eq!(header(&whole.clone().into()).unwrap().tensors.len(), 2);
    for cut in 0..whole.len() {
        assert!(header(&whole[..cut].to_vec().into()).is_err(), "{cut}");
    }
    let array = |kind: u32, count: u64| {
        let value = [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
        file(&[&key("x", 9, &value)], &[], 64)
    };
    let tensor = |shape: &[u64], kind, offset| file(&[], &[("a", shape, kind, offset)], 64);
    let version = |bytes: [u8; 4]| [&b"GGUF"[..], &bytes, &[0; 32]].concat();
    let twice = key("x", 7, &[1]);
    let mut huge = b"GGUF\x03\0\0\0".to_vec();
    huge.extend([0xff; 16]);
    for (bytes, expected) in [
        (b"GGML\x03\0\0\0".to_vec(), "does not begin"),
        (version([1, 0, 0, 0]), "version is 1"),
        (version([0, 0, 0, 3]), "big-endian"),
        (huge, "cannot hold them"),
        (array(6, 1 << 60), "cannot hold them"),
        (array(8, 1000), "cannot hold them"),
        (array(9, 1), "arrays of arrays"),
        (array(77, 1), "77 is not a type"),
        (file(&[&key("x", 13, &[])], &[], 64), "13 is not a type"),
        (file(&[&key("x", 7, &[2])], &[], 64), "2 is not a boolean"),
        (
            file(&[&key("x", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff])], &[], 64),
            "not UTF-8",
        ),
        (
            file(&[&key("x", 8, &u64::MAX.to_le_bytes())], &[], 64),
            "bytes; at most",
        ),
        (file(&[&twice, &twice], &[], 64), "`x` twice"),
        (
            file(&[&key("general.alignment", 4, &[3, 0, 0, 0])], &[], 64),
            "power of two",
        ),
        (tensor(&[], 0, 0), "0 dimensions"),
        (tensor(&[1, 1, 1, 1, 1], 0, 0), "5 dimensions"),
        (tensor(&[0], 0, 0), "a dimension that is 0"),
        (tensor(&[1 << 40, 1 << 40], 0, 0), "too large"),
        (tensor(&[u64::MAX], 0, 0), "are too long"),
        (tensor(&[17], 0, 0), "it is cut off"),
        (tensor(&[8], 0, 64), "it is cut off"),
        (tensor(&[8], 0, 16), "not a multiple of 32"),
        (tensor(&[8], 0, u64::MAX - 31), "too large"),
        (tensor(&[33], 8, 0), "blocks of Q8_0 do not divide"),
        (tensor(&[256], 19, 0), "has the type IQ1_S; F32, F16"),
        (tensor(&[256], 99, 0), "unknown type 99"),
        (file(&[], &[("a", &[8], 0, 0), ("b", &[4], 0, 0)], 64), "overlaps"),
        (
            file(&[], &[("b", &[4], 0, 32), ("a", &[16], 0, 0)], 64),
            "overlaps",
        ),
        (
            file(&[], &[("a", &[8], 0, 0), ("a", &[8], 0, 32)], 64),
            "`a` twice",
        ),
    ] {
        let reason = reason(bytes);
        assert!(reason.contains(expected), "{expected}: {reason}");
    }
}

#[test]
fn what_is_not_read_is_named() {
    let error = |keys: &[&[u8]], tensors: &[(&str, &[u64], u32, u64)]| {
        let bytes = file(keys, tensors, 4096);
        from_bytes("file.gguf", bytes.into()).unwrap_err().to_string()
    };
    let name = |name| key("general.architecture", 8, &text(name));
    let unknown = error(&[&name("mamba")], &[]);
    assert!(
        unknown.contains("\"mamba\"") && unknown.contains("qwen3moe"),
        "{unknown}"
    );
    assert!(error(&[], &[]).contains("general.architecture"));
    let llama = name("llama");
    let missing = error(&[&llama], &[]);
    assert!(missing.contains("llama.embedding_length"), "{missing}");
    let part = key("split.count", 2, &[3, 0]);
    let part = error(&[&llama, &part], &[]);
    assert!(
        part.contains("split.count") && part.contains("-of-00003.gguf"),
        "{part}"
    );
}

#[test]
fn a_git_lfs_pointer_is_named() {
    let pointer =
        Bytes::from_static(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    let error = from_bytes("m.gguf", pointer).unwrap_err();
    assert!(matches!(error, LoadError::GitLfsPointer { .. }), "{error}");
}

#[test]
fn files_of_a_model_are_found() {
    let found = |path: &Path| find(path).map(Option::unwrap_or_default);
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let touch = |name: &str| std::fs::write(at(name), b"GGUF").unwrap();
    assert_eq!(found(dir.path()).unwrap(), Vec::<PathBuf>::new());
    touch("mmproj-model.gguf");
    touch("m-00002-of-00002.gguf");
    let both = [at("m-00001-of-00002.gguf"), at("m-00002-of-00002.gguf")];
    assert_eq!(found(dir.path()).unwrap(), both);
    assert_eq!(found(&both[1]).unwrap(), both);
    assert!(matches!(
        open(dir.path(), &both),
        Err(LoadError::MissingFile { .. })
    ));
    touch("other.GGUF");
    assert_eq!(found(&at("other.GGUF")).unwrap(), [at("other.GGUF")]);
    let several = found(dir.path()).unwrap_err().to_string();
    assert!(several.contains("other.GGUF"), "{several}");
    touch("model.safetensors");
    assert_eq!(find(dir.path()).unwrap(), None);
    for name in [
        "m-1-of-2",
        "m-00000-of-00000",
        "m-00001-of-99999",
        "00001-of-00002",
    ] {
        assert_eq!(part(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let framed = [&b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0"[..], &bytes].concat();
        let _ = from_bytes("file", framed.into());
        let _ = from_bytes("file", bytes.into());
    }

    /// Checks that a damaged file is either rejected, or opened and read without a panic.
    #[test]
    fn no_damage_panics(edits in prop::collection::vec((0.0..1.0_f64, any::<u8>()), 1..6), cut in 0.0..4.0_f64) {
        let mut bytes = fixture("llama-q4/model.gguf").to_vec();
        // Damages the header with its sizes and types most often.
        let header = 8000.min(bytes.len()) as f64;
        for (place, byte) in edits {
            bytes[(place * header) as usize] = byte;
        }
        bytes.truncate((cut * bytes.len() as f64) as usize);
        if let Ok(checkpoint) = from_bytes("file", bytes.into()) {
            let _ = crate::decoder::registry::read_decoder(checkpoint);
        }
    }
}
