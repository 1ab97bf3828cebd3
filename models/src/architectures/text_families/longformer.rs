//! Longformer (Beltagy et al. 2020): RoBERTa whose tokens attend to their neighbours and, in a sequence classifier, to the first
//! token, in question answering to those of the question, which attend to all by layers of their own.

use crate::architectures::text_encoder::config::{Segments, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// One number for all blocks, or one for each.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Windows {
    All(usize),
    Each(Vec<usize>),
}

/// Describes a Longformer model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    const WINDOW: &str = "attention_window";
    let head = TextHeadConfig::first("classifier.dense", Activation::Tanh, "classifier.out_proj");
    let mut text = TextEncoderConfig::like_bert(config, "longformer", head)?;
    text.count_after_padding(config)?;
    text.segments = Segments::Question(config.optional("sep_token_id")?.unwrap_or(2));
    let windows = match config.optional::<Windows>(WINDOW)?.unwrap_or(Windows::All(512)) {
        Windows::All(window) => vec![window; text.blocks.len()],
        Windows::Each(windows) => windows,
    };
    if windows.len() != text.blocks.len() || windows.iter().any(|window| *window == 0 || window % 2 == 1) {
        let reason = "it must be a positive even number, or one for each block";
        return Err(config.invalid_value(WINDOW, reason));
    }
    for (block, window) in text.blocks.iter_mut().zip(windows) {
        block.window = Some(window / 2);
        block.global = Some([
            "attention.self.query_global",
            "attention.self.key_global",
            "attention.self.value_global",
        ]);
    }
    Ok(text)
}
