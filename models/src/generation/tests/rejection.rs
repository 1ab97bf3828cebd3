//! Tests that invalid checkpoints are rejected with an error that names the key, the tensor or the file.

use crate::decoder::registry;
use crate::generation::fixtures;

/// A fixture, one of its files, the text to replace, its replacement, and a part of the expected error.
type Wrong = [&'static str; 5];

const GPT2: [&str; 2] = ["gpt2", "config.json"];
const LLAMA: [&str; 2] = ["llama", "config.json"];
const INDEX: [&str; 2] = ["llama", "model.safetensors.index.json"];

const fn wrong(
    [name, file]: [&'static str; 2],
    from: &'static str,
    to: &'static str,
    error: &'static str,
) -> Wrong {
    [name, file, from, to, error]
}

const T5: [&str; 2] = ["t5", "config.json"];

const WRONG: [Wrong; 30] = [
    wrong(GPT2, "GPT2LMHeadModel", "Gpt9", "GPT2Model"),
    // Same `model_type`, but another head.
    wrong(
        LLAMA,
        "LlamaForCausalLM",
        "LlamaForQuestionAnswering",
        "names the architecture `LlamaForQuestionAnswering`",
    ),
    wrong(
        LLAMA,
        "LlamaForCausalLM",
        "LlamaForSequenceClassification",
        "`LlamaForSequenceClassification`, which is a classifier, not a language model",
    ),
    wrong(
        LLAMA,
        "LlamaForCausalLM",
        "LlamaForTokenClassification",
        "`LlamaForTokenClassification`, which is a token classifier, not",
    ),
    wrong(
        T5,
        "\"num_layers\": 2",
        "\"num_layers\": 3",
        "no tensor `encoder.block.2.",
    ),
    wrong(T5, "decoder_layers\": 3", "decoder_layers\": 2", "does not use"),
    wrong(
        T5,
        "\"d_kv\": 10",
        "\"d_kv\": 8",
        "has shape [30, 24]; the configuration needs [24, 24]",
    ),
    wrong(
        T5,
        "act_fn\": \"relu\"",
        "act_fn\": \"tanh\"",
        "also with the prefix gated-",
    ),
    wrong(
        T5,
        "is_gated_act\": false",
        "is_gated_act\": true",
        "DenseReluDense.wi_0.weight`",
    ),
    wrong(
        T5,
        "num_buckets\": 12",
        "num_buckets\": 11",
        "even and at least 4",
    ),
    wrong(T5, "max_distance\": 30", "max_distance\": 6", "it must be over 6"),
    wrong(
        T5,
        "start_token_id\": 1",
        "start_token_id\": 96",
        "below the vocabulary size of 96",
    ),
    wrong(GPT2, "GPT2LMHeadModel", "Gpt9", "of similar names are"),
    wrong(
        GPT2,
        "GPT2LMHeadModel",
        "BertForSequenceClassification",
        "`BertForSequenceClassification`, which is a classifier, not a language model",
    ),
    wrong(
        GPT2,
        "\"n_embd\": 24",
        "\"n_embd\": 48",
        "has shape [96, 24]; the configuration needs [96, 48]",
    ),
    wrong(GPT2, "\"n_layer\": 2", "\"n_layer\": 1", "does not use"),
    wrong(
        GPT2,
        "\"n_layer\": 2",
        "\"n_layer\": 3",
        "has no tensor `transformer.h.2.",
    ),
    wrong(
        ["opt", "config.json"],
        "enable_bias\": true",
        "enable_bias\": false",
        "layers without biases",
    ),
    wrong(
        ["apertus", "config.json"],
        "\"xielu\"",
        "\"gelu\"",
        "xielu is supported",
    ),
    wrong(
        ["deepseek-v2", "config.json"],
        "group_limited_greedy",
        "noaux",
        "greedy and group_limited_greedy are supported",
    ),
    wrong(
        ["deepseek-v2", "config.json"],
        "\"n_group\": 3",
        "\"n_group\": 4",
        "must form groups of at least 1",
    ),
    wrong(
        ["phimoe", "config.json"],
        "per_tok\": 2",
        "per_tok\": 1",
        "2 experts per token are supported",
    ),
    wrong(
        ["gpt-oss", "config.json"],
        "limit\": 1.5",
        "limit\": 0.0",
        "it must be positive",
    ),
    wrong(
        ["olmo-clipped", "config.json"],
        "\"clip_qkv\": 0.9",
        "\"clip_qkv\": -0.9",
        "it must be positive",
    ),
    wrong(
        ["gpt-bigcode", "config.json"],
        "attention\": false",
        "attention\": true",
        "cross-attention is not supported",
    ),
    wrong(LLAMA, "\"llama3\"", "\"wave\"", "yarn and longrope are supported"),
    wrong(LLAMA, "value_heads\": 2", "value_heads\": 3", "must divide"),
    wrong(INDEX, "model-00001", "model-00002", "does not list"),
    wrong(
        INDEX,
        "model-00001",
        "../model-00001",
        "not a file of its directory",
    ),
    wrong(INDEX, "\"lm_head.weight\"", "\"other.weight\"", "does not list"),
];

pub(super) fn copied(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(fixtures::folder(name)).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

fn rejection(dir: &tempfile::TempDir) -> crate::LoadError {
    crate::Checkpoint::open(dir.path())
        .and_then(registry::read_decoder)
        .unwrap_err()
}

pub(super) fn replace(dir: &tempfile::TempDir, file: &str, from: &str, to: &str) {
    let path = dir.path().join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

#[test]
fn invalid_checkpoints_are_rejected_by_name() {
    for [name, file, from, to, expected] in WRONG {
        let dir = copied(name);
        replace(&dir, file, from, to);
        let error = rejection(&dir).to_string();
        assert!(error.contains(expected), "{name} {to}: {error}");
    }
}

#[test]
fn missing_and_truncated_shards_are_named() {
    let shard = "model-00002-of-00003.safetensors";
    let dir = copied("llama");
    let path = dir.path().join(shard);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
    assert!(matches!(rejection(&dir), crate::LoadError::BadWeights { file, .. } if file.ends_with(shard)));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(rejection(&dir), crate::LoadError::MissingShard { path } if path.ends_with(shard)));
}
