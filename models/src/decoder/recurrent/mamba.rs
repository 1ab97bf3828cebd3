//! Mamba 1 mixer, also in hybrids with attention.

use super::weights::{self as mixer, Gates, RecurrentWeights};
use crate::checkpoint::{Config, LoadError, Weights};
use crate::decoder::config_values::activation;
use crate::decoder::linear_weights::LinearWeights;
use crate::ops::Activation;
use crate::ops::recurrent::{OutputGate, Recurrence, Scan, Selective};

/// Sizes of a Mamba 1 mixer.
#[derive(Debug, Clone)]
pub(in crate::decoder) struct Mamba {
    /// Number of channels.
    pub(in crate::decoder) channels: usize,
    /// Size of an input or output vector.
    pub(in crate::decoder) state_size: usize,
    /// Number of elements that the steps are projected from.
    pub(in crate::decoder) rank: usize,
    /// Kernel size of the convolution, tokens.
    pub(in crate::decoder) kernel: usize,
    /// Activation of the convolution.
    pub(in crate::decoder) activation: Activation,
    /// Whether the projections have biases.
    pub(in crate::decoder) bias: bool,
    /// Whether the convolution has a bias.
    pub(in crate::decoder) convolution_bias: bool,
    /// Norms of the step inputs, and of input and output vectors.
    pub(in crate::decoder) norms: StepNorms,
}

/// Norms of the selection projection of a Mamba 1 mixer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::decoder) enum StepNorms {
    /// No norms.
    No,
    /// Without weights, with this epsilon (Falcon Mamba).
    Plain(f32),
    /// With weights and this epsilon (Jamba).
    Scaled(f32),
}

/// Names of the size keys in `config.json`.
#[derive(Debug, Clone, Copy)]
pub(in crate::decoder) struct MambaKeys {
    pub(in crate::decoder) state_size: &'static str,
    pub(in crate::decoder) rank: &'static str,
    pub(in crate::decoder) kernel: &'static str,
    pub(in crate::decoder) expand: &'static str,
    pub(in crate::decoder) bias: &'static str,
    pub(in crate::decoder) convolution_bias: &'static str,
}

impl MambaKeys {
    /// Keys of Mamba.
    pub(in crate::decoder) const MAMBA: Self = Self {
        state_size: "state_size",
        rank: "time_step_rank",
        kernel: "conv_kernel",
        expand: "expand",
        bias: "use_bias",
        convolution_bias: "use_conv_bias",
    };
    /// Keys of hybrids with attention.
    pub(in crate::decoder) const HYBRID: Self = Self {
        state_size: "mamba_d_state",
        rank: "mamba_dt_rank",
        kernel: "mamba_d_conv",
        expand: "mamba_expand",
        bias: "mamba_proj_bias",
        convolution_bias: "mamba_conv_bias",
    };
}

impl Mamba {
    pub(in crate::decoder) fn read(
        config: &Config,
        keys: MambaKeys,
        norms: StepNorms,
    ) -> Result<Self, LoadError> {
        let width = config.size("hidden_size")?;
        let rank = match config.optional::<String>(keys.rank) {
            Ok(Some(auto)) if auto == "auto" => width.div_ceil(16),
            _ => config.size(keys.rank)?,
        };
        Ok(Self {
            channels: mixer::expanded(config, keys.expand, width)?,
            state_size: config.size(keys.state_size)?,
            rank,
            kernel: config.size(keys.kernel)?,
            activation: activation(config, "hidden_act", "silu")?,
            bias: config.optional(keys.bias)?.unwrap_or(false),
            convolution_bias: config.optional(keys.convolution_bias)?.unwrap_or(true),
            norms,
        })
    }

    pub(super) fn take(
        &self,
        weights: &mut Weights,
        name: &str,
        width: usize,
    ) -> Result<RecurrentWeights, LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let (channels, rank, state) = (self.channels, self.rank, self.state_size);
        let mut linear = |part: &str, inputs, outputs, bias| {
            LinearWeights::take(weights, &at(part), inputs, outputs, bias)
        };
        let input = linear("in_proj", width, 2 * channels, self.bias)?;
        let output = linear("out_proj", channels, width, self.bias)?;
        let selection = linear("x_proj", channels, rank + 2 * state, false)?;
        let steps = linear("dt_proj", rank, channels, true)?;
        let sizes = [channels, self.kernel];
        let activation = Some(self.activation);
        let convolution =
            mixer::convolution(weights, &at("conv1d"), sizes, self.convolution_bias, activation)?;
        let (norms, epsilon) = match self.norms {
            StepNorms::No => (None, 0.0),
            StepNorms::Plain(epsilon) => (Some([rank, state, state].map(|size| vec![1.0; size])), epsilon),
            StepNorms::Scaled(epsilon) => {
                let mut norm = |part: &str, size| weights.take(&at(part), &[size]);
                let norms = [
                    norm("dt_layernorm.weight", rank)?,
                    norm("b_layernorm.weight", state)?,
                    norm("c_layernorm.weight", state)?,
                ];
                (Some(norms), epsilon)
            }
        };
        let space = Selective {
            channels,
            state_size: state,
            rank,
            norms,
            epsilon,
            rates: mixer::rates(weights, &at("A_log"), &[channels, state])?,
            skip: weights.take(&at("D"), &[channels])?,
        };
        Ok(RecurrentWeights {
            input,
            gates: Gates::Selected { selection, steps },
            recurrence: Recurrence {
                convolution,
                scan: Scan::Selective(space, OutputGate::default()),
            },
            output,
        })
    }
}
