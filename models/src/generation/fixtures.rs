//! Small random checkpoints that transformers saved, with what it generates: `models/fixtures/make_generative_fixtures.py`.

use std::path::PathBuf;

use serde::Deserialize;

use super::Engine;
use crate::checkpoint::Checkpoint;
use crate::ops::Ops;

/// Those of all families.
pub(super) const DECODERS: [&str; 7] = ["gpt2", "opt", "llama", "llama2", "gptj", "t5", "t5-v1_1"];

/// A prompt and what transformers makes of it.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) prompt: Vec<u32>,
    /// Of an encoder-decoder, the answer whose logits are given.
    pub(super) answer: Option<Vec<u32>>,
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

/// The logits of a case by an engine: of an encoder-decoder those of the answer and of the token behind it.
pub(super) fn score<M: Ops>(engine: &mut Engine<M>, case: &Case) -> Vec<Vec<f32>> {
    match &case.answer {
        Some(answer) => engine.score_answer(&case.prompt, answer).unwrap(),
        None => engine.score(&case.prompt).unwrap(),
    }
}

pub(super) fn cases(name: &str) -> Vec<Case> {
    let json = std::fs::read(folder(name).join("expected.json")).unwrap();
    serde_json::from_slice::<Expected>(&json).unwrap().cases
}
