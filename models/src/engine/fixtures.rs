//! Small random checkpoints that transformers saved, with what it generates: `models/fixtures/make_generative_fixtures.py`.

use std::path::PathBuf;

use serde::Deserialize;

use crate::checkpoint::Checkpoint;

/// Those of the decoders.
pub(super) const DECODERS: [&str; 5] = ["gpt2", "opt", "llama", "llama2", "gptj"];

/// A prompt and what transformers makes of it.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) prompt: Vec<u32>,
    /// The logits of the last token.
    pub(super) last_logits: Vec<f32>,
    /// Of every token, the logit of every seventh token of the vocabulary.
    pub(super) sampled_logits: Vec<Vec<f32>>,
    /// What greedy search goes on with, the same with padding on the left and on the right.
    pub(super) tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

pub(super) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

pub(super) fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&folder(name)).unwrap()
}

pub(super) fn cases(name: &str) -> Vec<Case> {
    let json = std::fs::read(folder(name).join("expected.json")).unwrap();
    serde_json::from_slice::<Expected>(&json).unwrap().cases
}
