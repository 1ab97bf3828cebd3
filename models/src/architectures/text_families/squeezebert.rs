//! `SqueezeBERT` (Iandola et al. 2020): BERT whose linear layers are grouped convolutions over one token.

use crate::architectures::encoder::BlockNames;
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::architectures::weight_layout::{WeightLayout, WeightLayouts};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.query", "attention.key", "attention.value"],
    output: "post_attention.conv1d",
    attention_norm: "post_attention.layernorm",
    up: &["intermediate.conv1d"],
    down: "output.conv1d",
    feed_forward_norm: "output.layernorm",
    ..BlockNames::BERT
};

/// Describes a `SqueezeBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("transformer.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(config, "transformer", head)?;
    let (width, between) = (text.encoder.width, text.encoder.intermediate_size);
    if config
        .optional_size("embedding_size")?
        .is_some_and(|size| size != width)
    {
        return Err(config.invalid_value("embedding_size", "it must be hidden_size"));
    }
    let groups = |key: &str, default: usize, sides: [usize; 2]| {
        let groups = config.optional_size(key)?.unwrap_or(default);
        if sides.iter().any(|side| !side.is_multiple_of(groups)) {
            let reason = "it must divide the inputs and outputs of its layer";
            return Err(config.invalid_value(key, reason));
        }
        Ok(WeightLayout::Convolution(groups))
    };
    text.encoder.weight_layouts = WeightLayouts {
        projections: [
            groups("q_groups", 4, [width, width])?,
            groups("k_groups", 4, [width, width])?,
            groups("v_groups", 4, [width, width])?,
        ],
        output: groups("post_attention_groups", 1, [width, width])?,
        up: groups("intermediate_groups", 4, [width, between])?,
        down: groups("output_groups", 4, [between, width])?,
    };
    text.names = NAMES;
    text.blocks = text.encoder.numbered("encoder.layers");
    Ok(text)
}
