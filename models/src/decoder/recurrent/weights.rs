//! Weights of a recurrent mixer, and readers shared by all kinds of mixers.

use crate::checkpoint::{Config, LoadError, Weights};
use crate::decoder::linear_weights::LinearWeights;
use crate::ops::Activation;
use crate::ops::recurrent::{CausalConvolution, Recurrence};
use crate::precision::WeightType;

/// Weights of a recurrent mixer.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentWeights {
    /// Input projection of the recurrence.
    pub input: LinearWeights,
    /// Projections to the gates of the recurrence.
    pub gates: Gates,
    /// Recurrence over the tokens.
    pub recurrence: Recurrence,
    /// Output projection.
    pub output: LinearWeights,
}

/// Projections to the gates of a recurrence, which control its state; always f32.
#[derive(Debug, Clone, PartialEq)]
pub enum Gates {
    /// No gates.
    No,
    /// Projection from the layer's input.
    OfInput(LinearWeights),
    /// Projections from the convolved tokens: first to input vectors, output vectors and step inputs, then from these
    /// to the steps (Mamba 1).
    Selected {
        /// Projection to input vectors, output vectors and step inputs.
        selection: LinearWeights,
        /// Projection from step inputs to steps.
        steps: LinearWeights,
    },
}

impl Gates {
    fn linears(&self) -> impl Iterator<Item = &LinearWeights> {
        let linears = match self {
            Self::No => [None, None],
            Self::OfInput(gates) => [Some(gates), None],
            Self::Selected { selection, steps } => [Some(selection), Some(steps)],
        };
        linears.into_iter().flatten()
    }
}

impl RecurrentWeights {
    /// Returns the number of weights.
    pub(in crate::decoder) fn elements(&self) -> usize {
        let linears = [&self.input, &self.output]
            .into_iter()
            .chain(self.gates.linears());
        linears.map(LinearWeights::elements).sum::<usize>() + self.recurrence.parameters()
    }

    /// Returns the memory if the linear layers have weights of this type, bytes.
    pub(in crate::decoder) fn bytes(&self, kind: WeightType) -> usize {
        let exact = self.gates.linears().map(|gates| gates.bytes(WeightType::F32));
        self.input.bytes(kind)
            + self.output.bytes(kind)
            + exact.sum::<usize>()
            + size_of::<f32>() * self.recurrence.parameters()
    }

    /// Scales the results of the projections of the layer's input, without their biases.
    pub(in crate::decoder) fn with_input_scaled(self, factor: f32) -> Self {
        let scaled = |linear: LinearWeights| linear.scaled(factor, |_| 1.0);
        Self {
            input: scaled(self.input),
            gates: match self.gates {
                Gates::OfInput(gates) => Gates::OfInput(scaled(gates)),
                gates => gates,
            },
            ..self
        }
    }

    /// Encodes the weights of the linear layers as this type.
    pub(in crate::decoder) fn stored_as(self, kind: WeightType) -> Self {
        Self {
            input: self.input.stored_as(kind),
            output: self.output.stored_as(kind),
            ..self
        }
    }
}

/// Takes the convolution `name`, whose weight torch stores as `[channels, 1, tokens]`.
pub(super) fn convolution(
    weights: &mut Weights,
    name: &str,
    [channels, kernel]: [usize; 2],
    bias: bool,
    activation: Option<Activation>,
) -> Result<CausalConvolution, LoadError> {
    let stored = weights.take(&format!("{name}.weight"), &[channels, 1, kernel])?;
    let bias = if bias {
        weights.take(&format!("{name}.bias"), &[channels])?
    } else {
        Vec::new()
    };
    Ok(convolution_of(&stored, bias, [channels, kernel], activation))
}

/// Creates a convolution from a weight `[channels, 1, kernel]`.
pub(super) fn convolution_of(
    stored: &[f32],
    bias: Vec<f32>,
    [channels, kernel]: [usize; 2],
    activation: Option<Activation>,
) -> CausalConvolution {
    let by_token = (0..kernel).flat_map(|token| stored.iter().skip(token).step_by(kernel.max(1)));
    CausalConvolution {
        channels,
        weights: by_token.copied().collect(),
        bias,
        activation,
    }
}

/// Takes decay rates, which are stored as logarithms of their magnitudes.
pub(super) fn rates(weights: &mut Weights, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
    let logarithms = weights.take(name, shape)?;
    Ok(logarithms.into_iter().map(|logarithm| -logarithm.exp()).collect())
}

/// Returns the width times the factor of `key`, by default 2.
pub(in crate::decoder) fn expanded(config: &Config, key: &str, width: usize) -> Result<usize, LoadError> {
    let factor = config.optional::<f64>(key)?.unwrap_or(2.0);
    let inner = (factor * width as f64) as usize;
    if inner == 0 {
        return Err(config.invalid_value(key, "it must be positive"));
    }
    Ok(inner)
}
