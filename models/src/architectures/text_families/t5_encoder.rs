//! Encoders of T5, mT5 (Raffel et al. 2020) and UMT5 (Chung et al. 2023) without a decoder: text embeddings
//! (sentence-t5, GTR) and token classifiers.

use crate::architectures::encoder::{BlockNames, EncoderConfig, Mixing, epsilon, layer_count};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    Embeddings, PositionBias, TextEncoderConfig, TextHeadConfig,
};
use crate::architectures::weight_layout::WeightLayouts;
use crate::checkpoint::{Config, LoadError};
use crate::decoder::families::t5::feed_forward;

const NAMES: BlockNames = BlockNames {
    projections: &[
        "layer.0.SelfAttention.q",
        "layer.0.SelfAttention.k",
        "layer.0.SelfAttention.v",
    ],
    split_biases: None,
    output: "layer.0.SelfAttention.o",
    attention_norm: "layer.0.layer_norm",
    up: &["layer.1.DenseReluDense.wi"],
    down: "layer.1.DenseReluDense.wo",
    inner_norm: None,
    feed_forward_norm: "layer.1.layer_norm",
    scales: None,
    output_norms: None,
    head_norms: None,
};

const GATED: BlockNames = BlockNames {
    up: &["layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1"],
    ..NAMES
};

/// Default maximum length of a text, tokens; relative positions have no limit.
const CONTEXT: usize = 512;

/// Describes an encoder.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let (activation, gated) = feed_forward(config)?;
    let (heads, buckets) = (config.size("num_heads")?, buckets(config)?);
    let encoder = EncoderConfig {
        width: config.size("d_model")?,
        blocks: layer_count(config, "num_layers")?,
        heads,
        key_value_heads: heads,
        attention_width: heads.saturating_mul(config.size("d_kv")?),
        // The scale is part of the trained weights.
        attention_scale: Some(1.0),
        intermediate_size: config.size("d_ff")?,
        activation,
        gated,
        epsilon: epsilon(config, "layer_norm_epsilon")?,
        norms_first: true,
        norm_bias: false,
        rms: true,
        norm_offset: 0.0,
        projection_bias: false,
        key_bias: false,
        output_bias: false,
        feed_forward_bias: false,
        up_bias: true,
        values_first: false,
        mixing: Mixing::Attention,
        weight_layouts: WeightLayouts::default(),
    };
    let embeddings = Embeddings::new(
        "shared",
        encoder.width,
        TokenLimits {
            vocabulary: config.size("vocab_size")?,
            types: 0,
            context: config.optional_size("n_positions")?.unwrap_or(CONTEXT),
        },
    );
    Ok(TextEncoderConfig {
        final_norm: Some("encoder.final_layer_norm"),
        buffers: &["encoder.embed_tokens.weight"],
        position_bias: Some(buckets),
        ..TextEncoderConfig::new(
            "transformer",
            encoder.numbered("encoder.block"),
            encoder,
            if gated { GATED } else { NAMES },
            embeddings,
            TextHeadConfig::TOKENS,
        )
    })
}

/// Describes a UMT5 encoder, whose blocks have their own position biases.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn umt5(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = read(config)?;
    if let Some(PositionBias::Buckets {
        buckets,
        max_distance,
        ..
    }) = text.position_bias.take()
    {
        for block in &mut text.blocks {
            block.position_bias = Some(PositionBias::Buckets {
                name: "layer.0.SelfAttention.relative_attention_bias",
                buckets,
                max_distance,
            });
        }
    }
    Ok(text)
}

fn buckets(config: &Config) -> Result<PositionBias, LoadError> {
    let (key, far_key) = (
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
    );
    let buckets = config.optional_size(key)?.unwrap_or(32);
    let max_distance = config.optional_size(far_key)?.unwrap_or(128);
    if buckets < 4 || buckets % 2 == 1 || buckets > 256 {
        return Err(config.invalid_value(key, "it must be even and from 4 to 256"));
    }
    if max_distance <= buckets / 2 || max_distance > 1 << 12 {
        return Err(config.invalid_value(far_key, format!("it must be from {} to 4096", buckets / 2 + 1)));
    }
    Ok(PositionBias::Buckets {
        name: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        buckets,
        max_distance,
    })
}
