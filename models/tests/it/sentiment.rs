//! The committed sentiment family: classification of texts, tokenizer, and a snapshot of its logits.

use std::path::{Path, PathBuf};

use kaskade_models::{Device, Inputs, LoadOptions, Loaded, Tensor, load};
use tokenizers::Tokenizer;

const VARIANTS: [&str; 3] = ["sentiment-pico", "sentiment-tiny", "sentiment-mini"];

/// Negative reviews; none of these texts is from the training data.
const NEGATIVE: [&str; 6] = [
    "a dull and lifeless mess",
    "This is the worst movie of the year.",
    "bad acting, a bad script and no laughs at all",
    "it is boring, stupid and far too long",
    "an awful waste of time and money",
    "the plot is a tired and pointless bore",
];
/// Positive reviews.
const POSITIVE: [&str; 6] = [
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

fn loaded(variant: &str) -> Loaded {
    load(&directory(variant), &Device::Cpu, &LoadOptions::default()).unwrap()
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
fn mini_separates_positive_from_negative_reviews() {
    let mut mini = loaded("sentiment-mini");
    assert_eq!(mini.info.labels, ["negative", "positive"]);
    for (texts, class) in [(NEGATIVE, 0), (POSITIVE, 1)] {
        for (text, logits) in texts.iter().zip(logits(&mut mini, &requests(&texts))) {
            assert!(logits[class] > logits[1 - class], "{text}: {logits:?}");
        }
    }
}

#[test]
fn logits_of_some_sentences() {
    let texts = [NEGATIVE[0], NEGATIVE[1], POSITIVE[0], POSITIVE[1]];
    let answers = VARIANTS.map(|variant| {
        let rows = logits(&mut loaded(variant), &requests(&texts));
        let rounded = rows
            .iter()
            .map(|row| row.iter().map(|logit| format!("{logit:.1}")).collect())
            .collect::<Vec<Vec<String>>>();
        (variant, rounded)
    });
    insta::assert_compact_json_snapshot!(answers);
}

#[test]
fn a_single_sentence_gets_the_same_answer_as_in_a_padded_batch() {
    for variant in VARIANTS {
        let mut loaded = loaded(variant);
        let requests = requests(&[NEGATIVE[0], POSITIVE[2], NEGATIVE[2]]);
        let together = logits(&mut loaded, &requests);
        for (request, together) in requests.iter().zip(together) {
            let alone = logits(&mut loaded, std::slice::from_ref(request)).remove(0);
            let mut pairs = alone.iter().zip(&together);
            assert!(pairs.all(|(alone, together)| (alone - together).abs() < 1e-3));
        }
    }
}

#[test]
fn the_variants_share_one_tokenizer() {
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
fn every_vocabulary_entry_encodes_to_itself() {
    let tokenizer = Tokenizer::from_file(directory(VARIANTS[0]).join("tokenizer.json")).unwrap();
    for (token, id) in tokenizer.get_vocab(true) {
        if !token.starts_with("##") {
            let encoding = tokenizer.encode(token.as_str(), false).unwrap();
            assert_eq!(encoding.get_ids(), [id], "{token}");
        }
    }
}
