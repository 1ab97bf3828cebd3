//! `FNet` (Lee-Thorp et al. 2021): BERT with Fourier transforms instead of attention.

use crate::architectures::encoder::{BlockNames, EncoderConfig, Mixing, epsilon};
use crate::architectures::text_encoder::config::{Projection, TextEncoderConfig, TextHeadConfig};
use crate::checkpoint::{Config, LoadError};
use crate::ops::Activation;

const NAMES: BlockNames = BlockNames {
    attention_norm: "fourier.output.LayerNorm",
    ..BlockNames::BERT
};

/// Describes an `FNet` model.
///
/// # Errors
/// [`LoadError`], naming the key.
pub(super) fn read(config: &Config) -> Result<TextEncoderConfig, LoadError> {
    let head = TextHeadConfig::first("fnet.pooler.dense", Activation::Tanh, "classifier");
    if config
        .optional::<bool>("use_tpu_fourier_optimizations")?
        .unwrap_or(false)
    {
        let reason = "transforms of a fixed length are not supported";
        return Err(config.invalid_value("use_tpu_fourier_optimizations", reason));
    }
    // There are no heads.
    let keys = [
        "hidden_size",
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "hidden_act",
    ];
    let mut encoder = EncoderConfig::sized(config, keys)?;
    encoder.epsilon = epsilon(config, "layer_norm_eps")?;
    encoder.mixing = Mixing::Fourier;
    let mut text = TextEncoderConfig::around(config, "fnet", encoder, head)?;
    text.names = NAMES;
    text.embeddings.projection = Some(Projection::AfterNorm("embeddings.projection"));
    Ok(text)
}
