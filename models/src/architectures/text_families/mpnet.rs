//! MPNet (Song et al. 2020): BERT with RoBERTa's positions and T5's position bias, without token types.

use crate::architectures::encoder::{BlockNames, EncoderConfig};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{
    Embeddings, PositionBias, TextEncoderConfig, TextHeadConfig,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    attention_norm: "attention.LayerNorm",
    ..BlockNames::BERT
};

/// Describes an MPNet model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let own = config.with_defaults(&[("hidden_act", "gelu".into()), ("layer_norm_eps", 1e-12.into())]);
    let encoder = EncoderConfig::read(&own)?;
    let context = config.size("max_position_embeddings")?;
    let buckets = config
        .optional_size("relative_attention_num_buckets")?
        .unwrap_or(32);
    if buckets < 4 || buckets % 2 == 1 || buckets > 256 {
        return Err(config.invalid_value(
            "relative_attention_num_buckets",
            "it must be even and from 4 to 256",
        ));
    }
    let embeddings = Embeddings {
        positions: Some(("embeddings.position_embeddings", context)),
        norm: Some("embeddings.LayerNorm"),
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
        position_bias: Some(PositionBias::Buckets {
            name: "encoder.relative_attention_bias",
            buckets,
            max_distance: 128,
        }),
        ..TextEncoderConfig::new(
            "mpnet",
            encoder.numbered("encoder.layer"),
            encoder,
            NAMES,
            embeddings,
            TextHeadConfig::first("classifier.dense", Activation::Tanh, "classifier.out_proj"),
        )
    };
    text.count_after_padding(config)?;
    Ok(text)
}
