//! `EuroBERT` (Boizard et al. 2025): a multilingual encoder of Llama layers with bidirectional attention.

use crate::architectures::encoder::{BlockNames, EncoderConfig, activation, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    DenseConfig, Embeddings, TextEncoderConfig, TextHeadConfig, rotation,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::{Activation, Rotary};
use crate::tasks::embedding::Pooling;

/// Tensor names in a block.
pub(super) const NAMES: BlockNames = BlockNames {
    projections: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    split_biases: None,
    output: "self_attn.o_proj",
    attention_norm: "input_layernorm",
    up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    inner_norm: None,
    feed_forward_norm: "post_attention_layernorm",
    scales: None,
    output_norms: None,
    head_norms: None,
};

/// Describes an `EuroBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = of_layers(config, activation(config, "hidden_act")?)?;
    let rotary = rotary(config, text.encoder.attention_width / text.encoder.heads)?;
    for block in &mut text.blocks {
        block.rotary = Some(rotary.clone());
    }
    let (pooling, late) = match config.optional::<String>("classifier_pooling")?.as_deref() {
        None | Some("late") => (Pooling::Mean, true),
        Some("mean") => (Pooling::Mean, false),
        Some("bos") => (Pooling::First, false),
        Some(_) => return Err(config.invalid_value("classifier_pooling", "it must be late, mean or bos")),
    };
    text.classifier = TextHeadConfig {
        pooling,
        late,
        dense: Some(DenseConfig::plain("dense", Activation::Gelu)),
        block: None,
        output: "classifier",
    };
    Ok(text)
}

/// Describes an encoder of Llama layers, without positions.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn of_layers(config: &Config, activation: Activation) -> Result<TextEncoderConfig, LoadError> {
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    ];
    let flag = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
    let mut encoder = EncoderConfig::sized_with(config, keys, activation)?;
    encoder.epsilon = epsilon(config, "rms_norm_eps")?;
    (encoder.gated, encoder.norms_first, encoder.rms) = (true, true, true);
    (encoder.projection_bias, encoder.output_bias) = (flag("attention_bias")?, flag("attention_bias")?);
    encoder.feed_forward_bias = flag("mlp_bias")?;
    let shared = config
        .optional_size("num_key_value_heads")?
        .unwrap_or(encoder.heads);
    if shared > encoder.heads || !encoder.heads.is_multiple_of(shared) {
        return Err(config.invalid_value("num_key_value_heads", "it must divide num_attention_heads"));
    }
    encoder.key_value_heads = shared;
    let head_dim = config
        .optional_size("head_dim")?
        .unwrap_or(encoder.width / encoder.heads);
    encoder.attention_width = head_dim.saturating_mul(encoder.heads);
    let blocks = encoder.numbered("layers");
    let embeddings = Embeddings::new(
        "embed_tokens",
        encoder.width,
        TokenLimits {
            vocabulary: config.size("vocab_size")?,
            types: 0,
            context: config.size("max_position_embeddings")?,
        },
    );
    Ok(TextEncoderConfig {
        final_norm: Some("norm"),
        ..TextEncoderConfig::new(
            "model",
            blocks,
            encoder,
            NAMES,
            embeddings,
            TextHeadConfig::TOKENS,
        )
    })
}

fn rotary(config: &Config, head_dim: usize) -> Result<Rotary, LoadError> {
    let (key, old) = ("rope_parameters", "rope_scaling");
    let parameters = config.section(config.present_key([key, old]), &[])?;
    if let Some(kind) = parameters.optional::<String>("rope_type")?
        && kind != "default"
    {
        return Err(config.invalid_value(key, "only the type default is supported"));
    }
    let theta = match parameters.optional::<f64>("rope_theta")? {
        Some(theta) => theta,
        None => config.optional::<f64>("rope_theta")?.unwrap_or(10_000.0),
    };
    rotation(theta, head_dim).ok_or_else(|| {
        config.invalid_value(key, "`rope_theta` must be positive, and the size of a head even")
    })
}
