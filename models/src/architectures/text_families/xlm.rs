//! XLM (Conneau and Lample 2019) and `FlauBERT` (Le et al. 2020): BERT without token types, whose tensors are grouped by
//! kind before they are numbered by layer. Embeddings of languages are not added, as in transformers without `langs`.

use crate::architectures::encoder::{BlockNames, EncoderConfig, epsilon};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{Embeddings, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attentions.q_lin", "attentions.k_lin", "attentions.v_lin"],
    output: "attentions.out_lin",
    attention_norm: "layer_norm1",
    up: &["ffns.lin1"],
    down: "ffns.lin2",
    feed_forward_norm: "layer_norm2",
    ..BlockNames::BERT
};

/// Describes an XLM or `FlauBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let flag = |key: &str, absent: bool| Ok::<_, LoadError>(config.optional(key)?.unwrap_or(absent));
    if flag("causal", false)? || !flag("is_encoder", true)? {
        return Err(config.invalid_value("causal", "only encoders without a causal mask are supported"));
    }
    let width = config.size("emb_dim")?;
    let activation = if flag("gelu_activation", true)? {
        Activation::Gelu
    } else {
        Activation::Relu
    };
    let inner = "hidden_dim";
    let sized = config.with_defaults(&[(inner, (4 * width).into()), ("layer_norm_eps", 1e-12.into())]);
    let mut encoder =
        EncoderConfig::sized_with(&sized, ["emb_dim", "n_layers", "n_heads", inner], activation)?;
    encoder.epsilon = epsilon(&sized, "layer_norm_eps")?;
    encoder.norms_first = flag("pre_norm", false)?;
    let context = config.size("max_position_embeddings")?;
    let limits = TokenLimits {
        vocabulary: config.size(config.present_key(["vocab_size", "n_words"]))?,
        types: 0,
        context,
    };
    let embeddings = Embeddings {
        positions: Some(("position_embeddings", context)),
        norm: Some("layer_norm_emb"),
        ..Embeddings::new("embeddings", width, limits)
    };
    Ok(TextEncoderConfig {
        renamed: Some(by_layer),
        buffers: &["position_ids", "lang_embeddings.weight"],
        ..TextEncoderConfig::new(
            "transformer",
            encoder.numbered("layer"),
            encoder,
            NAMES,
            embeddings,
            summary(config)?,
        )
    })
}

/// Moves the number of a layer before the kind of the tensor: `attentions.0.q_lin` becomes `layer.0.attentions.q_lin`.
fn by_layer(name: &str) -> String {
    let kinds = ["attentions", "layer_norm1", "ffns", "layer_norm2"];
    let (base, own) = match name.strip_prefix("transformer.") {
        Some(own) => ("transformer.", own),
        None => ("", name),
    };
    let mut parts = own.splitn(3, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(kind), Some(number), Some(rest)) if kinds.contains(&kind) => {
            format!("{base}layer.{number}.{kind}.{rest}")
        }
        _ => name.to_owned(),
    }
}

/// Reads the head of a sequence classifier.
fn summary(config: &Config) -> Result<TextHeadConfig, LoadError> {
    if config
        .optional::<String>("summary_type")?
        .is_some_and(|kind| kind != "first")
    {
        return Err(config.invalid_value("summary_type", "only `first` is supported"));
    }
    for key in ["summary_use_proj", "summary_proj_to_labels"] {
        if !config.optional(key)?.unwrap_or(true) {
            return Err(config.invalid_value(key, "a summary needs its projection to the labels"));
        }
    }
    if config
        .optional::<String>("summary_activation")?
        .is_some_and(|name| !name.is_empty())
    {
        return Err(config.invalid_value(
            "summary_activation",
            "activations of the logits are not supported",
        ));
    }
    Ok(TextHeadConfig {
        output: "sequence_summary.summary",
        ..TextHeadConfig::SPANS
    })
}
