//! The committed sentiment family: it loads, reads text, and tells praise from blame.

use std::path::{Path, PathBuf};

use kaskade_models::{Device, Inputs, LoadOptions, Loaded, Tensor, load};
use tokenizers::Tokenizer;

const VARIANTS: [&str; 3] = ["sentiment-pico", "sentiment-tiny", "sentiment-mini"];

/// None of them is from the treebank.
const BLAME: [&str; 6] = [
    "a dull and lifeless mess",
    "This is the worst movie of the year.",
    "bad acting, a bad script and no laughs at all",
    "it is boring, stupid and far too long",
    "an awful waste of time and money",
    "the plot is a tired and pointless bore",
];
const PRAISE: [&str; 6] = [
    "a warm, funny and moving film",
    "One of the best films of the year!",
    "the performances are wonderful and the story is touching",
    "a beautiful, powerful and intelligent drama",
    "it is fresh, charming and a lot of fun",
    "an engaging and thoughtful portrait of love",
];

fn directory(variant: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/sentiment/weights")
        .join(variant)
}

fn served(variant: &str) -> Loaded {
    load(&directory(variant), &Device::flex(), &LoadOptions::default()).unwrap()
}

fn requests(texts: &[&str]) -> Vec<Inputs> {
    texts
        .iter()
        .map(|text| vec![Tensor::from_texts("text", &[text]).unwrap()])
        .collect()
}

fn logits(loaded: &mut Loaded, requests: &[Inputs]) -> Vec<Vec<f32>> {
    let answers = loaded.model.run(requests).into_iter();
    answers
        .map(|answer| answer.unwrap()[0].to_f32().unwrap())
        .collect()
}

#[test]
fn mini_tells_praise_from_blame() {
    let mut mini = served("sentiment-mini");
    assert_eq!(mini.info.labels, ["negative", "positive"]);
    for (texts, class) in [(BLAME, 0), (PRAISE, 1)] {
        for (text, logits) in texts.iter().zip(logits(&mut mini, &requests(&texts))) {
            assert!(logits[class] > logits[1 - class], "{text}: {logits:?}");
        }
    }
}

#[test]
fn these_sentences_get_these_logits() {
    let texts = [BLAME[0], BLAME[1], PRAISE[0], PRAISE[1]];
    let answers = VARIANTS.map(|variant| {
        let rows = logits(&mut served(variant), &requests(&texts));
        let rounded = rows
            .iter()
            .map(|row| row.iter().map(|logit| format!("{logit:.1}")).collect())
            .collect::<Vec<Vec<String>>>();
        (variant, rounded)
    });
    insta::assert_compact_json_snapshot!(answers);
}

#[test]
fn one_sentence_alone_gets_the_answer_it_gets_in_a_batch_of_longer_ones() {
    for variant in VARIANTS {
        let mut loaded = served(variant);
        let requests = requests(&[BLAME[0], PRAISE[2], BLAME[2]]);
        let together = logits(&mut loaded, &requests);
        for (request, together) in requests.iter().zip(together) {
            let alone = logits(&mut loaded, std::slice::from_ref(request)).remove(0);
            let mut pairs = alone.iter().zip(&together);
            assert!(pairs.all(|(alone, together)| (alone - together).abs() < 1e-3));
        }
    }
}

#[test]
fn the_variants_share_one_tokenizer_whose_ids_stay() {
    let files = VARIANTS.map(|variant| std::fs::read(directory(variant).join("tokenizer.json")).unwrap());
    assert!(files.iter().all(|file| *file == files[0]));
    let tokenizer = Tokenizer::from_bytes(&files[0]).unwrap();
    let encoded = ["A warm, funny film", "unwatchable", "naïve 漢 film"].map(|text| {
        let encoding = tokenizer.encode(text, true).unwrap();
        let ids = encoding.get_ids().iter().map(u32::to_string);
        (ids.collect::<Vec<_>>().join(" "), encoding.get_tokens().join(" "))
    });
    insta::assert_compact_json_snapshot!(encoded);
}

#[test]
fn every_piece_of_the_vocabulary_is_read_back_as_itself() {
    let tokenizer = Tokenizer::from_file(directory(VARIANTS[0]).join("tokenizer.json")).unwrap();
    for (token, id) in tokenizer.get_vocab(true) {
        if !token.starts_with("##") {
            let encoding = tokenizer.encode(token.as_str(), false).unwrap();
            assert_eq!(encoding.get_ids(), [id], "{token}");
        }
    }
}

#[test]
fn the_family_is_small_enough_to_commit() {
    let bytes: u64 = VARIANTS
        .iter()
        .map(|variant| directory(variant).join("model.safetensors"))
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert!(bytes < 8_000_000, "{bytes} bytes of weights");
}
