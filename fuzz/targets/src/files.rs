//! Files that people and programs write: an app's TOML, safetensors, GGUF, `config.json`, IDX files.

use bytes::Bytes;
use kaskade::config::App;
use kaskade_models::checkpoint::{Checkpoint, Config, Weights};
use kaskade_models::generation::{architecture, read_decoder};
use kaskade_models::idx::{Idx, LabelledImages};

/// An app's TOML: refused with a line and a reason, or written and read again as the same. An error names what is wrong.
pub fn app(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match App::parse(text) {
        Ok(app) => {
            let written = toml::to_string(&app).expect("what was read can be written");
            assert_eq!(App::parse(&written).as_ref(), Ok(&app), "a round changed it");
            assert!(app.problems().iter().all(|problem| !problem.is_empty()));
        }
        Err((line, reason)) => {
            let lines = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
            assert!(
                (1..=lines).contains(&line) && !reason.is_empty(),
                "{line}: {reason}"
            );
        }
    }
}

/// A file of safetensors or PyTorch: refused, or every tensor of it can be taken or is refused.
pub fn weights(input: &[u8]) {
    let Ok(mut weights) = Weights::from_bytes("file", Bytes::copy_from_slice(input)) else {
        return;
    };
    for (name, shape) in weights.shapes() {
        if let Ok(values) = weights.take(&name, &shape) {
            assert_eq!(values.len(), shape.iter().product::<usize>(), "{name}");
        }
    }
    let _ = weights.finish(&[]);
}

/// A GGUF file: refused with a reason, or a language model is read from it, or refused.
pub fn gguf(input: &[u8]) {
    let read = Checkpoint::from_gguf("model.gguf", Bytes::copy_from_slice(input)).and_then(read_decoder);
    if let Err(error) = read {
        assert!(!error.to_string().is_empty());
    }
}

/// A `config.json`: refused, or asked for what the families ask.
pub fn hf_config(input: &[u8]) {
    let config = match Config::parse("config.json", input) {
        Ok(config) => config,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let _ = (architecture(&config), config.size("hidden_size"));
    let _ = config.optional::<f64>("layer_norm_eps");
    if let Ok(labels) = config.labels() {
        assert!(!labels.is_empty(), "a classifier of no classes");
    }
}

/// An IDX file, as one of images and as one of labels.
pub fn idx(input: &[u8]) {
    if let Ok(idx) = Idx::parse("images", input) {
        assert_eq!(idx.data.len(), idx.shape.iter().product::<usize>());
    }
    if let Ok(images) = LabelledImages::parse(("images", input), ("labels", input)) {
        assert_eq!(images.iter().count(), images.len());
    }
}
