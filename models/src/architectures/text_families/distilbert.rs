//! DistilBERT (Sanh et al. 2019): BERT without token types, with different tensor names.

use crate::architectures::encoder::{BlockNames, EncoderConfig};
use crate::architectures::text::TokenLimits;
use crate::architectures::text_encoder::config::{Embeddings, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: &["ffn.lin1"],
    down: "ffn.lin2",
    inner_norm: None,
    feed_forward_norm: "output_layer_norm",
    scales: None,
    output_norms: None,
    head_norms: None,
    split_biases: None,
};

/// Describes a DistilBERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let encoder = EncoderConfig::sized(config, ["dim", "n_layers", "n_heads", "hidden_dim", "activation"])?;
    let context = config.size("max_position_embeddings")?;
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
    Ok(TextEncoderConfig::new(
        "distilbert",
        encoder.numbered("transformer.layer"),
        encoder,
        NAMES,
        embeddings,
        TextHeadConfig::first("pre_classifier", Activation::Relu, "classifier"),
    ))
}
