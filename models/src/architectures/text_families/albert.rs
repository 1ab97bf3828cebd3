//! ALBERT (Lan et al. 2020): BERT with weights shared by all blocks, and narrower embeddings.

use crate::architectures::encoder::{BlockConfig, BlockNames, MAX_LAYERS};
use crate::architectures::text_encoder::config::{Projection, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.query", "attention.key", "attention.value"],
    output: "attention.dense",
    attention_norm: "attention.LayerNorm",
    up: &["ffn"],
    down: "ffn_output",
    inner_norm: None,
    feed_forward_norm: "full_layer_layer_norm",
    scales: None,
    output_norms: None,
    head_norms: None,
    split_biases: None,
};

/// Describes an ALBERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = TextEncoderConfig::like_bert(
        &config.with_defaults(&[("hidden_act", "gelu_new".into())]),
        "albert",
        TextHeadConfig::first("albert.pooler", Activation::Tanh, "classifier"),
    )?;
    text.names = NAMES;
    text.embeddings.width = config.size("embedding_size")?;
    text.embeddings.projection = Some(Projection::AfterNorm("encoder.embedding_hidden_mapping_in"));
    let (layers, groups) = (
        text.encoder.blocks,
        config.optional_size("num_hidden_groups")?.unwrap_or(1),
    );
    if groups > layers {
        return Err(config.invalid_value("num_hidden_groups", format!("it must be at most {layers}")));
    }
    let inner = config.optional_size("inner_group_num")?.unwrap_or(1);
    if layers.saturating_mul(inner) > MAX_LAYERS {
        let reason = format!("it must be at most {MAX_LAYERS} divided by num_hidden_layers = {layers}");
        return Err(config.invalid_value("inner_group_num", reason));
    }
    let places = (0..layers).flat_map(|layer| (0..inner).map(move |part| (layer * groups / layers, part)));
    let blocks = places.map(|(group, part)| BlockConfig {
        prefix: format!("encoder.albert_layer_groups.{group}.albert_layers.{part}"),
        ..BlockConfig::default()
    });
    text.blocks = blocks.collect();
    Ok(text)
}
