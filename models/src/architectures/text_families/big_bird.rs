//! `BigBird` (Zaheer et al. 2020) for texts short enough that transformers uses full attention: BERT with a longer
//! context.
//!
//! For longer texts, transformers draws the attended blocks at random, differently in every process.

use crate::architectures::encoder::activation;
use crate::architectures::text_encoder::config::{HeadBlock, Segments, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};

/// Describes a `BigBird` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let act = activation(config, "hidden_act")?;
    let head = TextHeadConfig::first("classifier.dense", act, "classifier.out_proj");
    let mut text = TextEncoderConfig::like_bert(config, "bert", head)?;
    text.segments = Segments::Asked(config.optional("sep_token_id")?.unwrap_or(66));
    text.spans = TextHeadConfig {
        block: Some(HeadBlock {
            up: "qa_classifier.intermediate.dense",
            down: "qa_classifier.output.dense",
            norm: "qa_classifier.output.LayerNorm",
        }),
        output: "qa_classifier.qa_outputs",
        ..TextHeadConfig::SPANS
    };
    text.encoder.projection_bias = config.optional("use_bias")?.unwrap_or(true);
    if config.optional("rescale_embeddings")?.unwrap_or(false) {
        text.embeddings.scale = (text.encoder.width as f32).sqrt();
    }
    // Belongs to the base model, which no task here uses.
    text.buffers = &["pooler.weight", "pooler.bias"];
    let limits = &mut text.embeddings.limits;
    match config.optional::<String>("attention_type")?.as_deref() {
        Some("original_full") => {}
        Some("block_sparse") | None => {
            let blocks = config.optional_size("num_random_blocks")?.unwrap_or(3);
            let block = config.optional_size("block_size")?.unwrap_or(64);
            // Two global blocks, three neighbours, and the random blocks in both directions.
            let full = blocks.saturating_mul(2).saturating_add(5).saturating_mul(block);
            limits.context = limits.context.min(full);
        }
        Some(_) => {
            return Err(config.invalid_value("attention_type", "it must be original_full or block_sparse"));
        }
    }
    Ok(text)
}
