//! The recurrent mixers of layers: their weights, and one file per kind that reads them.

pub(super) mod delta_net;
pub(super) mod mamba;
pub(super) mod mamba2;
#[cfg(test)]
mod random;
mod short_convolution;
mod weights;

use delta_net::DeltaNet;
use mamba::Mamba;
use mamba2::Mamba2;
pub(super) use weights::expanded;
pub(crate) use weights::{Gates, RecurrentWeights};

use super::weights::ModelConfig;
use crate::checkpoint::{LoadError, Weights};

/// The recurrent mixers of a family.
#[derive(Debug, Clone)]
pub(super) struct RecurrentLayout {
    /// Which layers have one.
    pub(super) layers: Vec<bool>,
    /// Whether these layers have an attention too.
    pub(super) beside_attention: bool,
    /// Its module.
    pub(super) module: &'static str,
    /// What it computes.
    pub(super) mixer: MixerConfig,
}

/// Kinds of recurrent mixers, with their sizes.
#[derive(Debug, Clone)]
pub(super) enum MixerConfig {
    /// A gated convolution (LFM2).
    ShortConvolution {
        /// Tokens that a token sees.
        kernel: usize,
        /// Whether its layers have biases.
        bias: bool,
    },
    /// A gated `DeltaNet` (Qwen 3.5).
    DeltaNet(DeltaNet),
    /// Mamba 1.
    Mamba(Mamba),
    /// Mamba 2.
    Mamba2(Mamba2),
}

impl MixerConfig {
    /// Takes the mixer of the module `name`.
    ///
    /// # Errors
    /// As [`Weights::take`].
    pub(super) fn take(
        &self,
        weights: &mut Weights,
        name: &str,
        model_config: &ModelConfig,
    ) -> Result<RecurrentWeights, LoadError> {
        let width = model_config.width;
        match self {
            Self::ShortConvolution { kernel, bias } => {
                short_convolution::take(weights, name, width, *kernel, *bias)
            }
            Self::DeltaNet(mixer) => mixer.take(weights, name, model_config),
            Self::Mamba(mixer) => mixer.take(weights, name, width),
            Self::Mamba2(mixer) => mixer.take(weights, name, width),
        }
    }
}
