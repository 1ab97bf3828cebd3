//! Megatron-BERT (Shoeybi et al. 2019): BERT whose norms come before attention and feed-forward layer, and once after the blocks.

use super::encoder::BlockNames;
use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    attention_norm: "attention.ln",
    feed_forward_norm: "ln",
    ..BlockNames::BERT
};

/// Describes a Megatron-BERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("bert.pooler.dense", Activation::Tanh, "classifier");
    let mut form = TextForm::like_bert(config, "bert", head)?;
    form.names = NAMES;
    form.encoder.norms_first = true;
    form.embeddings.norm = None;
    form.final_norm = Some("encoder.ln");
    Ok(form)
}
