//! Whole checkpoints: those of the fixtures, their configuration or the header of their weights edited.

use bytes::Bytes;
use kaskade_models::{Checkpoint, DeviceChoice, Generation, LoadOptions, device, load_checkpoint};
use serde_json::Value;

use crate::edit::edit;
use crate::script::Script;

macro_rules! fixture {
    ($name:literal) => {
        (
            include_str!(concat!("../../../models/fixtures/", $name, "/config.json")),
            include_bytes!(concat!("../../../models/fixtures/", $name, "/model.safetensors")),
        )
    };
}

const FIXTURES: [(&str, &[u8]); 15] = [
    fixture!("mlp"),
    fixture!("cnn"),
    fixture!("vit"),
    fixture!("bert-classification"),
    fixture!("bert-question-answering"),
    fixture!("gpt2"),
    fixture!("gptj"),
    fixture!("llama2"),
    fixture!("opt"),
    fixture!("gpt-oss-mxfp4"),
    fixture!("deepseek-v3-fp8"),
    fixture!("llama-compressed"),
    fixture!("qwen2-gptq"),
    fixture!("mistral-awq"),
    fixture!("llama-nf4"),
];

/// An edited checkpoint: refused with a reason, or loaded.
pub fn checkpoint(input: &[u8]) {
    let mut script = Script::new(input);
    let (config, weights) = *script.one_of(&FIXTURES);
    let mut config: Value = serde_json::from_str(config).expect("a fixture is JSON");
    let (mut header, data) = split(weights);
    match script.below(4) {
        0 => edit(&mut header, &mut script),
        _ => edit(&mut config, &mut script),
    }
    let checkpoint = Checkpoint::from_bytes(
        "edited",
        config.to_string().as_bytes(),
        joined(&header, data),
        None,
    );
    let Ok(checkpoint) = checkpoint else {
        return;
    };
    let device = device::open(DeviceChoice::Cpu).expect("there is a processor");
    let options = LoadOptions {
        generation: Generation {
            cache_bytes: 1 << 20,
            ..Generation::default()
        },
        ..LoadOptions::default()
    };
    if let Err(error) = load_checkpoint(checkpoint, &device, &options) {
        assert!(!error.to_string().is_empty());
    }
}

/// The header of a safetensors file, and its data.
fn split(file: &'static [u8]) -> (Value, &'static [u8]) {
    let (length, rest) = file.split_first_chunk().expect("a fixture has a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (
        serde_json::from_slice(header).expect("a fixture has a header"),
        data,
    )
}

fn joined(header: &Value, data: &[u8]) -> Bytes {
    let header = header.to_string();
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), data].concat().into()
}
