//! `MobileBERT` (Sun et al. 2020): BERT with bottleneck blocks ([`crate::architectures::encoder::bottleneck`]).

use crate::architectures::encoder::bottleneck::BottleneckConfig;
use crate::architectures::text_encoder::config::{
    DenseConfig, Projection, TextEncoderConfig, TextHeadConfig,
};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a `MobileBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let norm = config.optional::<String>("normalization_type")?;
    if norm.is_some_and(|norm| norm != "no_norm") {
        return Err(config.invalid_value("normalization_type", "it must be no_norm"));
    }
    for (key, expected) in [
        ("trigram_input", true),
        ("use_bottleneck", true),
        ("key_query_shared_bottleneck", true),
        ("use_bottleneck_attention", false),
    ] {
        if config.optional(key)?.unwrap_or(expected) != expected {
            return Err(config.invalid_value(key, format!("it must be {expected}")));
        }
    }
    let pooler = DenseConfig::plain("mobilebert.pooler.dense", Activation::Tanh);
    let head = TextHeadConfig {
        dense: config
            .optional("classifier_activation")?
            .unwrap_or(true)
            .then_some(pooler),
        ..TextHeadConfig::TOKENS
    };
    let own = config.with_defaults(&[("hidden_act", "relu".into())]);
    let mut text = TextEncoderConfig::like_bert(&own, "mobilebert", head)?;
    let (inner, heads) = (config.size("intra_bottleneck_size")?, text.encoder.heads);
    if !inner.is_multiple_of(heads) {
        let reason = format!("it must divide intra_bottleneck_size = {inner}");
        return Err(config.invalid_value("num_attention_heads", reason));
    }
    text.bottleneck = Some(BottleneckConfig {
        width: text.encoder.width,
        inner,
        heads,
        intermediate_size: text.encoder.intermediate_size,
        feed_forwards: config.optional_size("num_feedforward_networks")?.unwrap_or(4),
        activation: text.encoder.activation,
    });
    text.embeddings.width = config.size("embedding_size")?;
    text.embeddings.projection = Some(Projection::Trigrams("embeddings.embedding_transformation"));
    Ok(text)
}
