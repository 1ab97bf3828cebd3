//! Tests of the output `usage` of a text encoder, a classifier based on a language model, and an embedding model.

use std::path::{Path, PathBuf};

use crate::architectures::registry::{LoadOptions, load};
use crate::device::Device;
use crate::runtime::model::{Inputs, Outputs};
use crate::runtime::tensor::Tensor;
use crate::runtime::usage::tokens_of;
use crate::test_support::chained;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Answers requests with a model, or with its two partitions in a chain.
fn answers(name: &str, partitions: u32, requests: &[Inputs]) -> Vec<Outputs> {
    let load = |partition| {
        let options = LoadOptions {
            partition,
            ..LoadOptions::default()
        };
        load(&folder(name), &Device::Cpu, &options)
    };
    chained(load, partitions, requests).unwrap()
}

fn text(name: &str, text: &str) -> Tensor {
    Tensor::from_texts(name, &[text]).unwrap()
}

#[test]
fn every_task_counts_the_tokens_that_its_mask_shows() {
    let ids = Tensor::from_i64("input_ids", &[5], &[7, 8, 9, 10, 11]).unwrap();
    let mask = Tensor::from_i64("attention_mask", &[5], &[1, 1, 1, 0, 0]).unwrap();
    for name in [
        "bert-classification",
        "bert-question-answering",
        "bert-token-classification",
        "sentence-transformer",
        "llama-classification",
        "llama-token-classification",
        "qwen3-embedding",
    ] {
        let requests = [vec![ids.clone()], vec![ids.clone(), mask.clone()]];
        for partitions in [1, 2] {
            let counted: Vec<_> = answers(name, partitions, &requests)
                .iter()
                .map(tokens_of)
                .collect();
            assert_eq!(counted, [Some([5, 0]), Some([3, 0])], "{name} in {partitions}");
        }
    }
}

#[test]
fn the_tokens_of_texts_are_those_that_go_through_the_model() {
    let tokenizer = std::fs::read(folder("bert-question-answering").join("tokenizer.json")).unwrap();
    let tokenizer = tokenizers::Tokenizer::from_bytes(tokenizer).unwrap();
    let tokens = |texts: (&str, &str)| tokenizer.encode(texts, true).unwrap().len() as u64;
    let long = "the sea is deep ".repeat(40);
    let requests = ["the sea is deep", &long]
        .map(|context| vec![text("text", "is the sea deep"), text("text_pair", context)]);
    let counted = answers("bert-question-answering", 1, &requests);
    let short = tokens(("is the sea deep", "the sea is deep"));
    assert_eq!(tokens_of(&counted[0]), Some([short, 0]));
    // Windows share tokens and repeat the question, and all of them are computed.
    assert!(
        tokens_of(&counted[1]).unwrap()[0] > tokens(("is the sea deep", &long)),
        "{counted:?}"
    );

    let cut = answers("bert-classification", 1, &[vec![text("text", &long)]]);
    let config = std::fs::read(folder("bert-classification").join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let context = config["max_position_embeddings"].as_u64().unwrap();
    assert_eq!(
        tokens_of(&cut[0]),
        Some([context, 0]),
        "what is cut off is not read"
    );
}
