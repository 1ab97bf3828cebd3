//! Weights of the recurrent mixers of layers, and one file per kind that reads them.

#[cfg(test)]
mod random;
mod short_convolution;

use super::linear_weights::LinearWeights;
use super::weights::ModelConfig;
use crate::checkpoint::{LoadError, Weights};
use crate::ops::Activation;
use crate::ops::recurrent::{CausalConvolution, Recurrence};
use crate::precision::WeightType;

/// Weights of a recurrent mixer.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentWeights {
    /// Projection of the layer's input to what the recurrence reads.
    pub input: LinearWeights,
    /// Projection of the layer's input to the gates of the recurrence, if it has any; always f32.
    pub gates: Option<LinearWeights>,
    /// What is computed over the tokens.
    pub recurrence: Recurrence,
    /// Output projection.
    pub output: LinearWeights,
}

impl RecurrentWeights {
    /// Number of weights.
    pub(super) fn elements(&self) -> usize {
        let linears = [&self.input, &self.output].into_iter().chain(&self.gates);
        linears.map(LinearWeights::elements).sum::<usize>() + self.recurrence.parameters()
    }

    /// Memory if the linear layers have weights of this type, bytes.
    pub(super) fn bytes(&self, kind: WeightType) -> usize {
        let exact = self.gates.iter().map(|gates| gates.bytes(WeightType::F32));
        self.input.bytes(kind)
            + self.output.bytes(kind)
            + exact.sum::<usize>()
            + size_of::<f32>() * self.recurrence.parameters()
    }

    /// Encodes the weights of the linear layers in a type.
    pub(super) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            input: self.input.stored_as(kind),
            output: self.output.stored_as(kind),
            ..self
        }
    }
}

/// The recurrent mixers of a family.
#[derive(Debug, Clone)]
pub(super) struct RecurrentLayout {
    /// Which layers have one.
    pub(super) layers: Vec<bool>,
    /// Its module.
    pub(super) module: &'static str,
    /// What it computes.
    pub(super) form: RecurrentForm,
}

/// Kinds of recurrent mixers, with their sizes.
#[derive(Debug, Clone)]
pub(super) enum RecurrentForm {
    /// A gated convolution (LFM2).
    ShortConvolution {
        /// Tokens that a token sees.
        kernel: usize,
        /// Whether its layers have biases.
        bias: bool,
    },
}

impl RecurrentForm {
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
        }
    }
}

/// Takes the convolution `name`, whose weight torch stores as `[channels, 1, tokens]`.
fn convolution(
    weights: &mut Weights,
    name: &str,
    [channels, kernel]: [usize; 2],
    bias: bool,
    activation: Option<Activation>,
) -> Result<CausalConvolution, LoadError> {
    let stored = weights.take(&format!("{name}.weight"), &[channels, 1, kernel])?;
    let by_token = (0..kernel).flat_map(|token| stored.iter().skip(token).step_by(kernel.max(1)));
    Ok(CausalConvolution {
        channels,
        weights: by_token.copied().collect(),
        bias: if bias {
            weights.take(&format!("{name}.bias"), &[channels])?
        } else {
            Vec::new()
        },
        activation,
    })
}
