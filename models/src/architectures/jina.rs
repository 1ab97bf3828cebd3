//! Jina Embeddings v3 (Sturua et al. 2024): XLM-RoBERTa with rotary positions instead of a table, without the adapters of tasks.

use super::encoder::BlockNames;
use super::text_form::{HeadForm, TextForm};
use crate::checkpoint::{Config, LoadError};
use crate::decoder::rotary::{RotaryKeys, rotary};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["mixer.Wqkv"],
    head_biases: None,
    output: "mixer.out_proj",
    attention_norm: "norm1",
    up: &["mlp.fc1"],
    down: "mlp.fc2",
    feed_forward_norm: "norm2",
    scales: None,
};

/// Describes a Jina Embeddings v3 model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("classifier.dense", Activation::Tanh, "classifier.out_proj");
    let mut form = TextForm::like_bert(config, "roberta", head)?;
    let keys = RotaryKeys {
        theta: 20_000.0,
        ..RotaryKeys::default()
    };
    let positions = rotary(config, form.encoder.width / form.encoder.heads, keys)?.rotary;
    form.names = NAMES;
    form.blocks = form.encoder.numbered("encoder.layers");
    for block in &mut form.blocks {
        block.rotary = Some(positions.clone());
    }
    form.embeddings.positions = None;
    form.embeddings.norm = Some("emb_ln");
    Ok(form)
}
