//! I-BERT (Kim et al. 2021) in floating point: `RoBERTa`. Integer arithmetic (`quant_mode`) is not used.

use super::roberta;
use crate::architectures::encoder::activation;
use crate::architectures::text_encoder::config::TextEncoderConfig;
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

/// Name suffixes of tensors that only integer arithmetic needs.
const INTEGERS: &[&str] = &[
    ".weight_integer",
    ".bias_integer",
    ".weight_scaling_factor",
    ".fc_scaling_factor",
    ".act_scaling_factor",
    ".x_min",
    ".x_max",
    ".LayerNorm.shift",
];

/// Describes an I-BERT model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    if config.optional("quant_mode")?.unwrap_or(false) {
        return Err(config.invalid_value("quant_mode", "integers are not supported"));
    }
    if activation(config, "hidden_act")? != Activation::Gelu {
        return Err(config.invalid_value("hidden_act", "only gelu is supported"));
    }
    let mut text = roberta::with_base(config, "ibert")?;
    text.buffers = INTEGERS;
    Ok(text)
}
