//! ESM-1b and ESM-2 (Lin et al. 2023): protein encoders with pre-norm, whose tokens are amino acids.

use crate::architectures::encoder::{BlockNames, EncoderConfig, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    Embeddings, MaskDropout, TextEncoderConfig, TextHeadConfig, rotation,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    attention_norm: "attention.LayerNorm",
    feed_forward_norm: "LayerNorm",
    ..BlockNames::BERT
};

/// Fraction of unmasked tokens in training: all but 80 % of the 15 % to predict.
const SHOWN: f32 = 1.0 - 0.15 * 0.8;

/// Tensors that no task here uses; the positions belong to rotary models.
const UNUSED: &[&str] = &[
    "contact_head.regression.weight",
    "contact_head.regression.bias",
    "embeddings.position_ids",
    "rotary_embeddings.inv_freq",
    "embeddings.position_embeddings.weight",
];

/// Describes an ESM model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let flag = |key: &str| Ok::<bool, LoadError>(config.optional(key)?.unwrap_or(false));
    for key in ["is_folding_model", "is_decoder"] {
        if flag(key)? {
            return Err(config.invalid_value(key, "only encoders of sequences are supported"));
        }
    }
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
    ];
    let mut encoder = EncoderConfig::sized_with(config, keys, Activation::Gelu)?;
    encoder.epsilon = epsilon(config, "layer_norm_eps")?;
    encoder.norms_first = true;
    let mut dropout = None;
    if flag("token_dropout")? {
        dropout = Some(MaskDropout {
            mask: config.required("mask_token_id")?,
            shown: SHOWN,
        });
    }
    let context = config.size("max_position_embeddings")?;
    let embeddings = Embeddings {
        dropout,
        norm: flag("emb_layer_norm_before")?.then_some("embeddings.layer_norm"),
        ..Embeddings::new(
            "embeddings.word_embeddings",
            encoder.width,
            TokenLimits {
                vocabulary: config.size("vocab_size")?,
                types: 0,
                context,
            },
        )
    };
    let mut text = TextEncoderConfig {
        final_norm: Some("encoder.emb_layer_norm_after"),
        buffers: UNUSED,
        ..TextEncoderConfig::new(
            "esm",
            encoder.numbered("encoder.layer"),
            encoder,
            NAMES,
            embeddings,
            TextHeadConfig::first("classifier.dense", Activation::Tanh, "classifier.out_proj"),
        )
    };
    match config.optional::<String>("position_embedding_type")?.as_deref() {
        Some("rotary") => {
            let theta = config.optional::<f64>("rope_theta")?.unwrap_or(10_000.0);
            let head_dim = text.encoder.width / text.encoder.heads;
            let rotary = rotation(theta, head_dim).ok_or_else(|| {
                config.invalid_value("rope_theta", "it must be positive, and the size of a head even")
            })?;
            for block in &mut text.blocks {
                block.rotary = Some(rotary.clone());
            }
        }
        Some("absolute") | None => {
            text.buffers = UNUSED.split_last().map_or(UNUSED, |(_, others)| others);
            text.embeddings.positions = Some(("embeddings.position_embeddings", context));
            text.count_after_padding(config)?;
        }
        Some(_) => {
            return Err(config.invalid_value("position_embedding_type", "it must be rotary or absolute"));
        }
    }
    Ok(text)
}
