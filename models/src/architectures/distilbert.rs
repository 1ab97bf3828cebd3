//! DistilBERT (Sanh et al. 2019): BERT without token types, and with names of its own.

use super::encoder::{BlockNames, EncoderConfig};
use super::text::TokenLimits;
use super::text_form::{Embeddings, HeadForm, PositionScheme, Segments, TextForm, VectorForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: &["ffn.lin1"],
    down: "ffn.lin2",
    feed_forward_norm: "output_layer_norm",
    scales: None,
    output_norms: None,
    head_norms: None,
    head_biases: None,
};

/// Describes a DistilBERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let encoder = EncoderConfig::sized(config, ["dim", "n_layers", "n_heads", "hidden_dim", "activation"])?;
    let context = config.size("max_position_embeddings")?;
    Ok(TextForm {
        base: "distilbert",
        blocks: encoder.numbered("transformer.layer"),
        names: NAMES,
        bottleneck: None,
        embeddings: Embeddings {
            limits: TokenLimits {
                vocabulary: config.size("vocab_size")?,
                types: 0,
                context,
            },
            width: encoder.width,
            words: "embeddings.word_embeddings",
            positions: Some(("embeddings.position_embeddings", context)),
            scheme: PositionScheme::FromZero,
            types: "",
            constant: None,
            scale: 1.0,
            dropout: None,
            norm: Some("embeddings.LayerNorm"),
            projection: None,
        },
        encoder,
        final_norm: None,
        buffers: &[],
        position_bias: None,
        distances: None,
        segments: Segments::Ignored,
        classifier: HeadForm::first("pre_classifier", Activation::Relu, "classifier"),
        spans: HeadForm::SPANS,
        tokens: HeadForm::TOKENS,
        vector: VectorForm::default(),
    })
}
