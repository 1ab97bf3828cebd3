//! Small random checkpoints saved by transformers, with their expected results:
//! `models/fixtures/make_generative_fixtures.py`, those with recurrent layers: `make_recurrent_fixtures.py`, and quantised ones:
//! `make_quantised_fixtures.py`.

use std::path::PathBuf;

use serde::Deserialize;

use super::Engine;
use crate::checkpoint::Checkpoint;
use crate::ops::Ops;

/// At least one per architecture; several where it has variants.
pub(crate) const DECODERS: &[&str] = &[
    "gpt2",
    "opt",
    "llama",
    "llama2",
    "llama-yarn",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen3",
    "phi3",
    "phi3-longrope",
    "gpt-neox",
    "gemma2",
    "gemma3",
    "gptj",
    "gemma",
    "granite",
    "olmo",
    "olmo2",
    "olmo3",
    "stablelm",
    "starcoder2",
    "phi",
    "smollm3",
    "cohere",
    "cohere2",
    "falcon",
    "falcon-new",
    "modernbert-decoder",
    "gpt-neo",
    "bloom",
    "mpt",
    "mixtral",
    "qwen2-moe",
    "qwen3-moe",
    "olmoe",
    "falcon-rw",
    "opt-350m",
    "cohere-norms",
    "olmo-clipped",
    "glm4",
    "glm4-moe-lite",
    "codegen",
    "openai-gpt",
    "xglm",
    "vaultgemma",
    "nemotron",
    "hunyuan",
    "hunyuan-moe",
    "minimax-m2",
    "dots1",
    "nanochat",
    "cwm",
    "apertus",
    "ministral3",
    "gpt-bigcode",
    "granite-moe",
    "gpt-oss",
    "ernie-moe",
    "phimoe",
    "deepseek-v2",
    "deepseek-v3",
    "solar-open",
    "youtu",
    "minicpm3",
    "jais2",
    "hyperclovax",
    "granite-moe-shared",
    "granite-swa",
    "granite-moe-swa",
    "flex-olmo",
    "mellum",
    "exaone-moe",
    "afmoe",
    "biogpt",
    "t5",
    "t5-v1_1",
    "umt5",
    "t5gemma",
    "led",
    "bart",
    "mbart",
    "pegasus",
    "marian",
    "m2m-100",
    "blenderbot",
    "gpt-oss-mxfp4",
    "deepseek-v3-fp8",
    "llama-compressed",
    "qwen2-gptq",
    "gpt2-gptq",
    "mistral-awq",
    "llama-nf4",
    "phi3-int8",
    "bitnet",
    "gemma3n",
    "hy-v3",
    "mistral4",
    "lfm3",
    "mllama",
    "qwen2-5-omni",
    "gemma3-vision",
    "mistral3",
    "qwen2-5-vl",
    "qwen3-vl-moe",
    "smolvlm",
    "llama4",
    "gemma4",
    "gemma4-small",
    "gemma4-moe",
    "lfm2",
    "lfm2-moe",
    "qwen3-next",
    "qwen3-5",
    "granite-hybrid",
    "falcon-h1",
    "nemotron-h",
    "mamba",
    "mamba2",
    "jamba",
    "bamba",
    "qwen3-5-moe",
];

/// A prompt and the results of transformers.
#[derive(Debug, Deserialize)]
pub(super) struct Case {
    pub(super) prompt: Vec<u32>,
    /// The answer whose logits are given, for encoder-decoders.
    pub(super) answer: Option<Vec<u32>>,
    /// Logits of the last token.
    pub(super) last_logits: Vec<f32>,
    /// For every token, the logit of every seventh token of the vocabulary.
    pub(super) sampled_logits: Vec<Vec<f32>>,
    /// Tokens of greedy search; the same with padding on the left and on the right.
    pub(super) tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
}

pub(crate) fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(name)
}

pub(super) fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&folder(name)).unwrap()
}

/// Scores a case: for encoder-decoders the answer and the token after it.
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
