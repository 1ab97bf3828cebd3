//! Jina Embeddings v2 (Günther et al. 2023): BERT with `ALiBi` instead of position embeddings, and gated
//! feed-forwards. Version 3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions, and with task adapters in
//! published files.

use crate::architectures::encoder::BlockNames;
use crate::architectures::text_encoder::config::{PositionBias, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::decoder::alibi::bloom_slopes;
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["mixer.Wqkv"],
    split_biases: None,
    output: "mixer.out_proj",
    attention_norm: "norm1",
    up: &["mlp.fc1"],
    down: "mlp.fc2",
    inner_norm: None,
    feed_forward_norm: "norm2",
    scales: None,
    output_norms: None,
    head_norms: None,
};

const GATED_NAMES: BlockNames = BlockNames {
    up: &["mlp.gated_layers"],
    down: "mlp.wo",
    feed_forward_norm: "mlp.layernorm",
    ..BlockNames::BERT
};
/// Maximum distance with its own bias, tokens.
const MAX_DISTANCE: usize = 1 << 16;
/// Key of the position embedding type.
const POSITIONS: &str = "position_embedding_type";

/// Returns whether a BERT configuration has `ALiBi`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn is_biased(config: &Config) -> Result<bool, LoadError> {
    Ok(config.optional::<String>(POSITIONS)?.as_deref() == Some("alibi"))
}

/// Describes a Jina Embeddings v2 model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn biased(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    const GATE: &str = "feed_forward_type";
    if !is_biased(config)? {
        return Err(config.invalid_value(POSITIONS, "only alibi is supported"));
    }
    let activation = match config.required::<String>(GATE)?.as_str() {
        "geglu" => Activation::Gelu,
        "reglu" => Activation::Relu,
        _ => return Err(config.invalid_value(GATE, "geglu and reglu are supported")),
    };
    let mut without = config.clone();
    without.set(POSITIONS, serde_json::Value::Null);
    let head = TextHeadConfig::first("bert.pooler.dense", Activation::Tanh, "classifier");
    let mut text = TextEncoderConfig::like_bert(&without, "bert", head)?;
    text.names = GATED_NAMES;
    text.encoder.activation = activation;
    (text.encoder.gated, text.encoder.up_bias) = (true, false);
    text.embeddings.positions = None;
    text.position_bias = Some(PositionBias::Slopes {
        slopes: bloom_slopes(text.encoder.heads),
        // Beyond this distance, the probability is zero at any slope, so a longer table has no effect.
        max_distance: text.embeddings.limits.context.min(MAX_DISTANCE),
    });
    Ok(text)
}

/// Returns whether a RoBERTa configuration has rotary positions.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn is_rotary(config: &Config) -> Result<bool, LoadError> {
    Ok(config.optional::<String>(POSITIONS)?.as_deref() == Some("rotary"))
}

/// Returns whether a RoBERTa configuration belongs to Jina's flash attention code, whose tensors have other names.
pub(super) fn is_flash(config: &Config) -> bool {
    config.keys().contains_key("use_flash_attn")
}

/// Describes a model of Jina's flash attention code with a position table, such as Jina Reranker v2.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn absolute(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = with_flash_names(config)?;
    text.count_after_padding(config)?;
    Ok(text)
}

/// Describes a RoBERTa with the tensor names of Jina's flash attention code.
fn with_flash_names(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("classifier.dense", Activation::Tanh, "classifier.out_proj");
    let own = config.with_defaults(&[("layer_norm_eps", 1e-5.into()), ("type_vocab_size", 1.into())]);
    let mut text = TextEncoderConfig::like_bert(&own, "roberta", head)?;
    text.names = NAMES;
    text.blocks = text.encoder.numbered("encoder.layers");
    text.embeddings.norm = Some("emb_ln");
    Ok(text)
}

/// Describes a Jina Embeddings v3 model with the configuration of its published code.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn published(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let key = "truncate_dim";
    if config.optional_size(key)?.is_some() {
        return Err(config.invalid_value(key, "vectors are not cut off"));
    }
    let base = config.optional::<f64>("rotary_emb_base")?.unwrap_or(10_000.0);
    let mut config = config.clone();
    config.set(POSITIONS, serde_json::Value::Null);
    config.set("rope_theta", base.into());
    read(&config)
}

/// Describes a Jina Embeddings v3 model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = with_flash_names(config)?;
    let keys = RotaryKeys {
        theta: 20_000.0,
        ..RotaryKeys::default()
    };
    let positions = rotary(config, text.encoder.width / text.encoder.heads, keys)?.rotary;
    for block in &mut text.blocks {
        block.rotary = Some(positions.clone());
    }
    text.embeddings.positions = None;
    Ok(text)
}
