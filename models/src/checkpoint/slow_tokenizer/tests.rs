use tokenizers::Tokenizer;

use super::*;

const TEXTS: [&str; 3] = [
    "The old keeper kept ÉTÉ [SEP] light",
    "in 1919,\n  a <x> sea?",
    "</s>out",
];

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
    serde_json::from_slice(&std::fs::read(path.join("tokenizer.json")).unwrap()).unwrap()
}

fn ids(tokenizer: &Tokenizer, pair: (&str, &str)) -> (Vec<u32>, Vec<u32>) {
    let encoding = tokenizer.encode(pair, true).unwrap();
    (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec())
}

/// Asserts that the tokenizer built from files equals the complete one.
fn assert_same(whole: &Value, files: &[(&str, String)]) {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let (_, built) = build(dir.path()).unwrap().unwrap();
    let built = Tokenizer::from_bytes(built).unwrap();
    let whole = Tokenizer::from_bytes(whole.to_string()).unwrap();
    for pair in TEXTS.into_iter().zip(TEXTS.into_iter().rev()) {
        assert_eq!(ids(&built, pair), ids(&whole, pair));
    }
}

#[test]
fn a_vocabulary_of_bert_gives_its_tokenizer() {
    let whole = fixture("bert-classification");
    let mut pieces: Vec<(&String, &Value)> = whole["model"]["vocab"].as_object().unwrap().iter().collect();
    pieces.sort_by_key(|(_, id)| id.as_u64());
    let lines: Vec<&str> = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
    let vocabulary = ("vocab.txt", lines.join("\r\n"));
    let config = |json: &str| ("config.json", json.to_owned());
    assert_same(&whole, &[vocabulary.clone(), config(r#"{"model_type": "bert"}"#)]);
    let class = r#"{"tokenizer_class": "BertTokenizerFast", "sep_token": {"content": "[SEP]"}}"#;
    assert_same(
        &whole,
        &[vocabulary.clone(), ("tokenizer_config.json", class.to_owned())],
    );
    let mut longer = whole.clone();
    let mut added = longer["added_tokens"][0].clone();
    added["id"] = json!(lines.len());
    added["content"] = json!("<x>");
    (added["special"], added["normalized"]) = (json!(false), json!(true));
    longer["added_tokens"].as_array_mut().unwrap().push(added);
    let extra = ("added_tokens.json", json!({"<x>": lines.len()}).to_string());
    assert_same(&longer, &[vocabulary, config(r#"{"model_type": "bert"}"#), extra]);
}

/// Expected ids are those of `EsmTokenizer` in transformers 5.24.
#[test]
fn a_vocabulary_of_esm_splits_at_every_amino_acid() {
    let dir = tempfile::tempdir().unwrap();
    let pieces =
        "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>";
    std::fs::write(dir.path().join("vocab.txt"), pieces.replace(' ', "\n")).unwrap();
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "esm"}"#).unwrap();
    let (_, built) = build(dir.path()).unwrap().unwrap();
    let built = Tokenizer::from_bytes(built).unwrap();
    for (text, expected) in [
        ("MKTAYIAKQR", vec![0, 20, 15, 11, 5, 19, 12, 5, 15, 16, 10, 2]),
        ("M K <mask> T", vec![0, 20, 15, 32, 11, 2]),
        ("mkt", vec![0, 3, 2]),
        ("MKt JX-.", vec![0, 20, 15, 3, 3, 24, 30, 29, 2]),
        (" ", vec![0, 2]),
        ("M\u{e9}K", vec![0, 20, 3, 15, 2]),
    ] {
        assert_eq!(built.encode(text, true).unwrap().get_ids(), expected, "{text}");
    }
    assert_eq!(ids(&built, ("MK", "TA")).0, [0, 20, 15, 2, 11, 5, 2]);
}

#[test]
fn a_vocabulary_of_gpt2_gives_its_tokenizer() {
    let whole = fixture("gpt2");
    let vocabulary = ("vocab.json", whole["model"]["vocab"].to_string());
    let merges = whole["model"]["merges"].as_array().unwrap().iter().map(|merge| {
        let pair = merge
            .as_array()
            .unwrap()
            .iter()
            .map(|piece| piece.as_str().unwrap());
        pair.collect::<Vec<_>>().join(" ")
    });
    let merges = merges.collect::<Vec<_>>().join("\n");
    let config = r#"{"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>", "pad_token": "<pad>"}"#;
    let config = ("tokenizer_config.json", config.to_owned());
    assert_same(
        &whole,
        &[
            vocabulary,
            ("merges.txt", format!("#version: 0.2\n{merges}\n")),
            config,
        ],
    );
}

#[test]
fn vocabularies_of_other_classes_give_none() {
    let dir = tempfile::tempdir().unwrap();
    assert!(build(dir.path()).unwrap().is_none());
    std::fs::write(dir.path().join("vocab.txt"), "a\nb\n").unwrap();
    assert!(build(dir.path()).unwrap().is_none(), "no class");
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "roberta"}"#).unwrap();
    assert!(build(dir.path()).unwrap().is_none(), "another class");
    std::fs::write(dir.path().join("config.json"), r#"{"model_type": "bert"}"#).unwrap();
    std::fs::write(dir.path().join("vocab.txt"), [0xff, 0xfe]).unwrap();
    assert!(matches!(build(dir.path()), Err(LoadError::BadTokenizer { .. })));
}

/// Expected ids are those of `CLIPTokenizer` in transformers 5.24.
#[test]
fn a_vocabulary_of_clip_gives_its_tokenizer() {
    let characters = (0..=u8::MAX).map(crate::checkpoint::tekken::character);
    let (printed, others): (Vec<char>, Vec<char>) = characters.partition(|character| *character < '\u{100}');
    let characters: Vec<String> = printed.into_iter().chain(others).map(String::from).collect();
    let merges = ["t h", "th e</w>", "s e", "se a</w>", "o l", "ol d</w>"];
    let last = characters.iter().map(|character| format!("{character}</w>"));
    let joined = merges.iter().map(|merge| merge.replace(' ', ""));
    let special = ["<|startoftext|>", "<|endoftext|>"].map(str::to_owned);
    let pieces = characters
        .iter()
        .cloned()
        .chain(last)
        .chain(joined)
        .chain(special);
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: String| std::fs::write(dir.path().join(name), content).unwrap();
    write("vocab.json", Value::Object(vocabulary).to_string());
    write("merges.txt", format!("#version: 0.2\n{}\n", merges.join("\n")));
    write("config.json", r#"{"model_type": "clip"}"#.to_owned());
    let (_, built) = build(dir.path()).unwrap().unwrap();
    let built = Tokenizer::from_bytes(built).unwrap();
    for (text, expected) in [
        ("The old  sea's", vec![518, 513, 517, 515, 6, 338, 519]),
        (
            "e\u{301} 19<|endoftext|>\nthe",
            vec![518, 127, 358, 272, 280, 519, 513, 519],
        ),
        ("雪!?", vec![518, 165, 249, 359, 0, 286, 519]),
        ("", vec![518, 519]),
    ] {
        assert_eq!(built.encode(text, true).unwrap().get_ids(), expected, "{text}");
    }
    assert_eq!(ids(&built, ("the", "sea")).0, [518, 513, 519, 519, 515, 519]);
}
