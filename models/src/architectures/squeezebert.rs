//! `SqueezeBERT` (Iandola et al. 2020): BERT whose layers are convolutions over one token, in groups.

use super::encoder::BlockNames;
use super::text_form::{HeadForm, TextForm};
use super::weight_layout::{LinearForm, LinearForms};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    projections: &["attention.query", "attention.key", "attention.value"],
    output: "post_attention.conv1d",
    attention_norm: "post_attention.layernorm",
    up: &["intermediate.conv1d"],
    down: "output.conv1d",
    feed_forward_norm: "output.layernorm",
    ..BlockNames::BERT
};

/// Describes a `SqueezeBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let head = HeadForm::first("transformer.pooler.dense", Activation::Tanh, "classifier");
    let mut form = TextForm::like_bert(config, "transformer", head)?;
    let (width, between) = (form.encoder.width, form.encoder.intermediate_size);
    if config
        .optional_size("embedding_size")?
        .is_some_and(|size| size != width)
    {
        return Err(config.invalid_value("embedding_size", "it must be hidden_size"));
    }
    let groups = |key: &str, default: usize, sides: [usize; 2]| {
        let groups = config.optional_size(key)?.unwrap_or(default);
        if sides.iter().any(|side| !side.is_multiple_of(groups)) {
            let reason = "it must divide the inputs and outputs of its layer";
            return Err(config.invalid_value(key, reason));
        }
        Ok(LinearForm::Convolution(groups))
    };
    form.encoder.forms = LinearForms {
        projections: [
            groups("q_groups", 4, [width, width])?,
            groups("k_groups", 4, [width, width])?,
            groups("v_groups", 4, [width, width])?,
        ],
        output: groups("post_attention_groups", 1, [width, width])?,
        up: groups("intermediate_groups", 4, [width, between])?,
        down: groups("output_groups", 4, [between, width])?,
    };
    form.names = NAMES;
    form.blocks = form.encoder.numbered("encoder.layers");
    Ok(form)
}
