//! `ConvBERT` (Jiang et al. 2020): BERT, half of whose heads are convolutions with weights that depend on the tokens.

use super::encoder::{Mixing, activation};
use super::text_form::{HeadForm, TextForm};
use super::weight_layout::LinearForm;
use crate::checkpoint::{Config, LoadError};

/// Limit of the tokens that a convolution covers.
const MAX_KERNEL: usize = 63;

/// Describes a `ConvBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn form(config: &Config) -> Result<TextForm, LoadError> {
    let act = activation(config, "hidden_act")?;
    let head = HeadForm::first("classifier.dense", act, "classifier.out_proj");
    let mut form = TextForm::like_bert(config, "convbert", head)?;
    form.embed_narrower(config)?;
    let (width, between) = (form.encoder.width, form.encoder.intermediate_size);
    let ratio = config.optional_size("head_ratio")?.unwrap_or(2);
    let heads = (form.encoder.heads / ratio).max(1);
    let head_dim = width / heads / 2;
    if 2 * head_dim * heads != width {
        let reason = "hidden_size must be a multiple of twice the heads that are left";
        return Err(config.invalid_value("head_ratio", reason));
    }
    let kernel = config.optional_size("conv_kernel_size")?.unwrap_or(9);
    if kernel.is_multiple_of(2) || kernel > MAX_KERNEL {
        let reason = format!("it must be odd, and at most {MAX_KERNEL}");
        return Err(config.invalid_value("conv_kernel_size", reason));
    }
    let groups = config.optional_size("num_groups")?.unwrap_or(1);
    if !width.is_multiple_of(groups) || !between.is_multiple_of(groups) {
        return Err(config.invalid_value("num_groups", "it must divide hidden_size and intermediate_size"));
    }
    let encoder = &mut form.encoder;
    (encoder.heads, encoder.key_value_heads) = (heads, heads);
    encoder.attention_width = heads * head_dim;
    encoder.mixing = Mixing::Convolutions { kernel };
    if groups > 1 {
        (encoder.forms.up, encoder.forms.down) = (LinearForm::Groups(groups), LinearForm::Groups(groups));
    }
    Ok(form)
}
