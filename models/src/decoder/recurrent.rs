//! Recurrent mixers: their weights, and one file per kind that reads them.

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

/// Layout of a family's recurrent mixers.
#[derive(Debug, Clone)]
pub(super) struct RecurrentLayout {
    /// Whether each layer has a mixer.
    pub(super) layers: Vec<bool>,
    /// Whether these layers also have attention.
    pub(super) beside_attention: bool,
    /// Module of the mixer.
    pub(super) module: &'static str,
    /// Kind and sizes of the mixer.
    pub(super) mixer: MixerConfig,
}

/// Kind of a recurrent mixer, with its sizes.
#[derive(Debug, Clone)]
pub(super) enum MixerConfig {
    /// Gated short convolution (LFM2).
    ShortConvolution {
        /// Kernel size, tokens.
        kernel: usize,
        /// Whether its linear layers have biases.
        bias: bool,
    },
    /// Gated `DeltaNet` (Qwen 3.5).
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
    /// Same as [`Weights::take`].
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
