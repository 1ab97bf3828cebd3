//! `MobileBERT` (Sun et al. 2020): BERT with blocks that are narrower than the vectors between them ([`super::bottleneck`]).

use super::bottleneck::BottleneckForm;
use super::text_form::{DenseForm, HeadForm, Projection, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Describes a `MobileBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
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
    let pooler = DenseForm::plain("mobilebert.pooler.dense", Activation::Tanh);
    let head = HeadForm {
        dense: config
            .optional("classifier_activation")?
            .unwrap_or(true)
            .then_some(pooler),
        ..HeadForm::TOKENS
    };
    let own = config.with_defaults(&[("hidden_act", "relu".into())]);
    let mut form = TextForm::like_bert(&own, "mobilebert", head)?;
    let (inner, heads) = (config.size("intra_bottleneck_size")?, form.encoder.heads);
    if !inner.is_multiple_of(heads) {
        let reason = format!("it must divide intra_bottleneck_size = {inner}");
        return Err(config.invalid_value("num_attention_heads", reason));
    }
    form.bottleneck = Some(BottleneckForm {
        width: form.encoder.width,
        inner,
        heads,
        intermediate_size: form.encoder.intermediate_size,
        feed_forwards: config.optional_size("num_feedforward_networks")?.unwrap_or(4),
        activation: form.encoder.activation,
    });
    form.embeddings.width = config.size("embedding_size")?;
    form.embeddings.projection = Some(Projection::Trigrams("embeddings.embedding_transformation"));
    Ok(form)
}
