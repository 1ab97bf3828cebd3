//! Longformer (Beltagy et al. 2020): RoBERTa with an attention window. Global attention, with separate projections, is
//! that of the first token in a sequence classifier, and of the question in question answering.

use crate::architectures::text_encoder::config::{Segments, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Window sizes: one number for all blocks, or one per block.
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
