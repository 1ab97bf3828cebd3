//! Text encoders of CLIP (Radford et al. 2021), `SigLIP` (Zhai et al. 2023), Chinese CLIP (Yang et al. 2022) and
//! `MetaCLIP` 2 (Chuang et al. 2025), and what they share with the image encoders, which are described in
//! [`crate::architectures::vit::config`].

use serde_json::Value;

use crate::architectures::encoder::position_bias::PositionBias;
use crate::architectures::encoder::{BlockNames, EncoderConfig};
use crate::architectures::text::last_token::TextEnd;
use crate::architectures::text_encoder::config::{ProjectionConfig, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};

/// Tensor names in a block.
pub(in crate::architectures) const NAMES: BlockNames = BlockNames {
    projections: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.out_proj",
    attention_norm: "layer_norm1",
    up: &["mlp.fc1"],
    down: "mlp.fc2",
    feed_forward_norm: "layer_norm2",
    ..BlockNames::BERT
};

/// Value of `eos_token_id` in old files, for which the token with the largest id ends a text.
const OLD_END: i64 = 2;

/// Returns the configuration of one encoder: the object of `key`, or of `{key}_dict`, which replaces it in old files;
/// else the configuration itself, which is then that of the encoder alone. `defaults` are the values of missing keys.
///
/// # Errors
/// [`LoadError::BadKey`] if the value is not an object.
pub(in crate::architectures) fn section(
    config: &Config,
    key: &str,
    defaults: &[(&str, Value)],
) -> Result<Config, LoadError> {
    let old = format!("{key}_dict");
    let stated = |key: &str| config.keys().get(key).is_some_and(|value| !value.is_null());
    if stated(&old) {
        return config.section(&old, defaults);
    }
    if stated(key) {
        return config.section(key, defaults);
    }
    let mut own = config.clone();
    for (key, value) in defaults.iter().filter(|(key, _)| !stated(key)) {
        own.set(key, value.clone());
    }
    Ok(own)
}

/// Describes `CLIPTextModel`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::architectures) fn text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let mut text = causal_text(config)?;
    if text.vector.end == TextEnd::First(OLD_END) {
        text.vector.end = TextEnd::Largest;
    }
    Ok(text)
}

/// Describes a text encoder with causal attention whose texts end with `eos_token_id`.
fn causal_text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let defaults = [
        ("vocab_size", 49408.into()),
        ("hidden_size", 512.into()),
        ("intermediate_size", 2048.into()),
        ("num_hidden_layers", 12.into()),
        ("num_attention_heads", 8.into()),
        ("max_position_embeddings", 77.into()),
        ("hidden_act", "quick_gelu".into()),
        ("layer_norm_eps", 1e-5.into()),
        ("eos_token_id", 49407.into()),
    ];
    let own = section(config, "text_config", &defaults)?;
    let end = own.required::<i64>("eos_token_id")?;
    let mut text = around(own)?;
    text.vector.end = TextEnd::First(end);
    text.position_bias = Some(PositionBias::Earlier {
        max_distance: text.embeddings.limits.context,
    });
    Ok(text)
}

/// Describes `CLIPTextModelWithProjection`, and the text encoder of `CLIPModel`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::architectures) fn projected_text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    projected(text(config)?, config)
}

/// Describes the text encoder of `MetaClip2Model`, which always states `eos_token_id`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::architectures) fn meta_text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    projected(causal_text(config)?, config)
}

/// Describes the text encoder of `ChineseCLIPModel`: BERT with a projection of the first token.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::architectures) fn chinese_text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let defaults = [
        ("vocab_size", 30522.into()),
        ("hidden_size", 768.into()),
        ("intermediate_size", 3072.into()),
        ("num_hidden_layers", 12.into()),
        ("num_attention_heads", 12.into()),
        ("max_position_embeddings", 512.into()),
        ("hidden_act", "gelu".into()),
        ("layer_norm_eps", 1e-12.into()),
        ("type_vocab_size", 2.into()),
    ];
    let own = section(config, "text_config", &defaults)?;
    let mut text = TextEncoderConfig::like_bert(&own, "text_model", TextHeadConfig::TOKENS)?;
    text.buffers = &["embeddings.position_ids"];
    projected(text, config)
}

/// Adds the text projection.
fn projected(mut text: TextEncoderConfig, config: &Config) -> Result<TextEncoderConfig, LoadError> {
    text.vector.projection = Some(ProjectionConfig {
        name: "text_projection",
        width: config.optional_size("projection_dim")?.unwrap_or(512),
        bias: false,
    });
    Ok(text)
}

/// Describes `SiglipTextModel`, and the text encoder of `SiglipModel`.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(in crate::architectures) fn siglip_text(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let defaults = [
        ("vocab_size", 32000.into()),
        ("hidden_size", 768.into()),
        ("intermediate_size", 3072.into()),
        ("num_hidden_layers", 12.into()),
        ("num_attention_heads", 12.into()),
        ("max_position_embeddings", 64.into()),
        ("hidden_act", "gelu_pytorch_tanh".into()),
        ("layer_norm_eps", 1e-6.into()),
        ("pad_token_id", 1.into()),
    ];
    let own = section(config, "text_config", &defaults)?;
    let pad = own.required("pad_token_id")?;
    let width = own.optional_size("projection_size")?;
    let mut text = around(own)?;
    text.vector.end = TextEnd::Padded(pad);
    text.vector.projection = Some(ProjectionConfig {
        name: "text_model.head",
        width: width.unwrap_or(text.encoder.width),
        bias: true,
    });
    Ok(text)
}

/// Describes what the text encoders of CLIP and `SigLIP` share.
fn around(mut config: Config) -> Result<TextEncoderConfig, LoadError> {
    config.set("type_vocab_size", 0.into());
    let mut encoder = EncoderConfig::read(&config)?;
    encoder.norms_first = true;
    let mut text = TextEncoderConfig::around(&config, "text_model", encoder, TextHeadConfig::TOKENS)?;
    text.blocks = text.encoder.numbered("encoder.layers");
    text.names = NAMES;
    text.embeddings.words = "embeddings.token_embedding";
    text.embeddings.positions = Some(("embeddings.position_embedding", text.embeddings.limits.context));
    text.embeddings.types = "";
    text.embeddings.norm = None;
    text.final_norm = Some("final_layer_norm");
    text.buffers = &["embeddings.position_ids"];
    Ok(text)
}
