//! `ConvBERT` (Jiang et al. 2020): BERT in which half of the heads are dynamic convolutions.

use crate::architectures::encoder::{Mixing, activation};
use crate::architectures::text_encoder::config::{TextEncoderConfig, TextHeadConfig};
use crate::architectures::weight_layout::WeightLayout;
use crate::checkpoint::{Config, LoadError};

/// Maximum kernel size of a convolution, tokens.
const MAX_KERNEL: usize = 63;

/// Describes a `ConvBERT` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let act = activation(config, "hidden_act")?;
    let head = TextHeadConfig::first("classifier.dense", act, "classifier.out_proj");
    let mut text = TextEncoderConfig::like_bert(config, "convbert", head)?;
    text.embed_narrower(config)?;
    let (width, between) = (text.encoder.width, text.encoder.intermediate_size);
    let ratio = config.optional_size("head_ratio")?.unwrap_or(2);
    let heads = (text.encoder.heads / ratio).max(1);
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
    let encoder = &mut text.encoder;
    (encoder.heads, encoder.key_value_heads) = (heads, heads);
    encoder.attention_width = heads * head_dim;
    encoder.mixing = Mixing::Convolutions { kernel };
    if groups > 1 {
        (encoder.weight_layouts.up, encoder.weight_layouts.down) =
            (WeightLayout::Groups(groups), WeightLayout::Groups(groups));
    }
    Ok(text)
}
