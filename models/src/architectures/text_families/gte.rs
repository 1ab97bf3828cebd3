//! GTE (Zhang et al. 2024, "mGTE"): BERT with rotary positions and gated feed-forwards. Published files have classes
//! named `New...` or `Gte...`, with the same tensors.

use crate::architectures::encoder::{BlockNames, EncoderConfig, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{Embeddings, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::ops::{Activation, Rotary};

const NAMES: BlockNames = BlockNames {
    projections: &["attention.qkv_proj"],
    split_biases: None,
    output: "attention.o_proj",
    attention_norm: "attn_ln",
    up: &["mlp.up_gate_proj"],
    down: "mlp.down_proj",
    inner_norm: None,
    feed_forward_norm: "mlp_ln",
    scales: None,
    output_norms: None,
    head_norms: None,
};

/// Describes a model with the `model_type` `gte`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("gte.pooler.dense", Activation::Tanh, "classifier");
    described(config, "gte", 160_000.0, head)
}

/// Describes a model with the `model_type` `new`, the class of the published code.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn published(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("new.pooler.dense", Activation::Tanh, "classifier");
    described(config, "new", 10_000.0, head)
}

fn described(
    config: &Config,
    base: &'static str,
    theta: f64,
    classifier: TextHeadConfig,
) -> Result<TextEncoderConfig, LoadError> {
    for (key, value) in [("logn_attention_scale", false), ("pack_qkv", true)] {
        if config.optional::<bool>(key)?.is_some_and(|found| found != value) {
            return Err(config.invalid_value(key, format!("only {value} is supported")));
        }
    }
    for (key, value) in [
        ("position_embedding_type", "rope"),
        ("layer_norm_type", "layer_norm"),
    ] {
        if config
            .optional::<String>(key)?
            .is_some_and(|found| found != value)
        {
            return Err(config.invalid_value(key, format!("only {value} is supported")));
        }
    }
    let mut encoder = EncoderConfig::sized(
        config,
        [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "hidden_act",
        ],
    )?;
    encoder.epsilon = epsilon(config, "layer_norm_eps")?;
    (encoder.gated, encoder.values_first, encoder.up_bias) = (true, true, false);
    let positions = positions(config, encoder.width / encoder.heads, theta)?;
    let mut blocks = encoder.numbered("encoder.layer");
    for block in &mut blocks {
        block.rotary = Some(positions.clone());
    }
    let embeddings = Embeddings {
        types: "embeddings.token_type_embeddings",
        norm: Some("embeddings.LayerNorm"),
        ..Embeddings::new(
            "embeddings.word_embeddings",
            encoder.width,
            TokenLimits {
                vocabulary: config.size("vocab_size")?,
                types: config.optional("type_vocab_size")?.unwrap_or(0),
                context: config.size("max_position_embeddings")?,
            },
        )
    };
    Ok(TextEncoderConfig {
        buffers: &["inv_freq"],
        ..TextEncoderConfig::new(base, blocks, encoder, NAMES, embeddings, classifier)
    })
}

/// Reads the rotary positions. The type `ntk` of the published files multiplies the base by a factor, and divides all
/// frequencies by a power of it.
fn positions(config: &Config, head_dim: usize, theta: f64) -> Result<Rotary, LoadError> {
    const KEY: &str = "rope_scaling";
    let read = |config: &Config| {
        let keys = RotaryKeys {
            theta,
            ..RotaryKeys::default()
        };
        Ok::<_, LoadError>(rotary(config, head_dim, keys)?.rotary)
    };
    let scaling = config.section(KEY, &[])?;
    let kind = scaling.optional::<String>(scaling.present_key(["type", "rope_type"]))?;
    if kind.as_deref() != Some("ntk") {
        return read(config);
    }
    if scaling.optional::<f64>("mixed_b")?.is_some() {
        return Err(config.invalid_value(KEY, "`mixed_b` is not supported"));
    }
    let factor = scaling.required::<f64>("factor")?;
    if !(factor >= 1.0 && factor.is_finite()) {
        return Err(config.invalid_value(KEY, "`factor` must be at least 1"));
    }
    let base = config.optional::<f64>("rope_theta")?.unwrap_or(theta);
    let mut grown = config.clone();
    grown.set(KEY, serde_json::Value::Null);
    grown.set("rope_theta", (base * factor).into());
    let mut positions = read(&grown)?;
    let divisor = factor.powf(2.0 / head_dim as f64) as f32;
    for frequency in &mut positions.frequencies {
        *frequency /= divisor;
    }
    Ok(positions)
}
