//! Mamba 2 mixer, also in hybrids with attention.

use super::weights::{self as mixer, Gates, RecurrentWeights};
use crate::checkpoint::{Config, LoadError, Weights};
use crate::decoder::config_values::activation;
use crate::decoder::linear_weights::LinearWeights;
use crate::ops::Activation;
use crate::ops::recurrent::{OutputGate, Recurrence, Scan, StateSpace};

/// Sizes of a Mamba 2 mixer.
#[derive(Debug, Clone)]
pub(in crate::decoder) struct Mamba2 {
    /// Number of heads.
    pub(in crate::decoder) heads: usize,
    /// Size of a head.
    pub(in crate::decoder) head_dim: usize,
    /// Number of input and of output vectors.
    pub(in crate::decoder) groups: usize,
    /// Size of an input or output vector.
    pub(in crate::decoder) state_size: usize,
    /// Kernel size of the convolution, tokens.
    pub(in crate::decoder) kernel: usize,
    /// Activation of the convolution.
    pub(in crate::decoder) activation: Activation,
    /// Whether the input projection has a bias.
    pub(in crate::decoder) bias: bool,
    /// Whether the output projection has a bias.
    pub(in crate::decoder) output_bias: bool,
    /// Whether the convolution has a bias.
    pub(in crate::decoder) convolution_bias: bool,
    /// Minimum and maximum step.
    pub(in crate::decoder) step_limits: [f32; 2],
    /// Norm of the result, in as many groups as there are input vectors.
    pub(in crate::decoder) norm: ResultNorm,
    /// Epsilon of the norm.
    pub(in crate::decoder) epsilon: f32,
    /// Factors of the projected gates, values, input vectors, output vectors and steps (Falcon H1).
    pub(in crate::decoder) factors: [f32; 5],
}

/// Norm of a mixer's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decoder) enum ResultNorm {
    /// No norm.
    No,
    /// Before the gates.
    BeforeGates,
    /// After the gates.
    AfterGates,
}

/// Names of the size keys in `config.json`.
#[derive(Debug, Clone, Copy)]
pub(in crate::decoder) struct Mamba2Keys {
    pub(in crate::decoder) heads: &'static str,
    pub(in crate::decoder) head_dim: &'static str,
    pub(in crate::decoder) groups: &'static str,
    pub(in crate::decoder) state_size: &'static str,
    pub(in crate::decoder) kernel: &'static str,
    pub(in crate::decoder) bias: &'static str,
    pub(in crate::decoder) convolution_bias: &'static str,
    pub(in crate::decoder) activation: &'static str,
}

impl Mamba2Keys {
    /// Keys of hybrids with attention.
    pub(in crate::decoder) const HYBRID: Self = Self {
        heads: "mamba_n_heads",
        head_dim: "mamba_d_head",
        groups: "mamba_n_groups",
        state_size: "mamba_d_state",
        kernel: "mamba_d_conv",
        bias: "mamba_proj_bias",
        convolution_bias: "mamba_conv_bias",
        activation: "hidden_act",
    };
}

impl Mamba2 {
    /// Reads the sizes; `inner` is the total width of all heads, in case the configuration does not state it as heads
    /// times size.
    pub(in crate::decoder) fn read(
        config: &Config,
        keys: Mamba2Keys,
        inner: usize,
        epsilon: f32,
    ) -> Result<Self, LoadError> {
        let (heads, groups) = (config.size(keys.heads)?, config.size(keys.groups)?);
        let head_dim = match config.optional::<String>(keys.head_dim) {
            Ok(Some(auto)) if auto == "auto" => inner / heads,
            _ => config.size(keys.head_dim)?,
        };
        if heads * head_dim != inner {
            let reason = format!("heads of size {head_dim} must make up {inner}");
            return Err(config.invalid_value(keys.heads, reason));
        }
        if !heads.is_multiple_of(groups) {
            return Err(config.invalid_value(keys.groups, format!("it must divide {heads} heads")));
        }
        let bias = config.optional(keys.bias)?.unwrap_or(false);
        Ok(Self {
            heads,
            head_dim,
            groups,
            state_size: config.size(keys.state_size)?,
            kernel: config.size(keys.kernel)?,
            activation: activation(config, keys.activation, "silu")?,
            bias,
            output_bias: bias,
            convolution_bias: config.optional(keys.convolution_bias)?.unwrap_or(true),
            step_limits: step_limits(config)?,
            norm: ResultNorm::AfterGates,
            epsilon,
            factors: [1.0; 5],
        })
    }

    pub(super) fn take(
        &self,
        weights: &mut Weights,
        name: &str,
        width: usize,
    ) -> Result<RecurrentWeights, LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let (inner, vectors) = (self.heads * self.head_dim, self.groups * self.state_size);
        let channels = inner + 2 * vectors;
        let all = LinearWeights::take(
            weights,
            &at("in_proj"),
            width,
            inner + channels + self.heads,
            self.bias,
        )?;
        let sizes = [inner, inner, vectors, vectors, self.heads];
        let factors = sizes.iter().zip(self.factors);
        let factors = factors.flat_map(|(size, factor)| std::iter::repeat_n(factor, *size));
        let factors: Vec<f32> = factors.collect();
        let all = all.scaled(1.0, |output| factors.get(output).copied().unwrap_or(1.0));
        let (gates, rest) = all.split(inner);
        let (input, steps) = rest.split(channels);
        let activation = Some(self.activation);
        let [channels, kernel] = [channels, self.kernel];
        let convolution = mixer::convolution(
            weights,
            &at("conv1d"),
            [channels, kernel],
            self.convolution_bias,
            activation,
        )?;
        let space = StateSpace {
            heads: self.heads,
            head_dim: self.head_dim,
            groups: self.groups,
            state_size: self.state_size,
            rates: mixer::rates(weights, &at("A_log"), &[self.heads])?,
            step_bias: weights.take(&at("dt_bias"), &[self.heads])?,
            step_limits: self.step_limits,
            skip: weights.take(&at("D"), &[self.heads])?,
        };
        let gate = OutputGate {
            gamma: match self.norm {
                ResultNorm::No => Vec::new(),
                _ => weights.take(&at("norm.weight"), &[inner])?,
            },
            group: inner / self.groups,
            epsilon: self.epsilon,
            gates_first: self.norm == ResultNorm::AfterGates,
        };
        Ok(RecurrentWeights {
            input: input.concat_outputs(&gates),
            gates: Gates::OfInput(steps),
            recurrence: Recurrence {
                convolution,
                scan: Scan::StateSpace(space, gate),
            },
            output: LinearWeights::take(weights, &at("out_proj"), inner, width, self.output_bias)?,
        })
    }
}

/// Reads `time_step_limit`. A limit that is not a number means infinity, which files write in several ways.
fn step_limits(config: &Config) -> Result<[f32; 2], LoadError> {
    let key = "time_step_limit";
    let Some(limits) = config.optional::<[serde_json::Value; 2]>(key)? else {
        return Ok([0.0, f32::INFINITY]);
    };
    let [least, most] = limits.map(|limit| limit.as_f64().map(|limit| limit as f32));
    let limits = [least.unwrap_or(0.0), most.unwrap_or(f32::INFINITY)];
    let [least, most] = limits;
    if least <= most {
        Ok(limits)
    } else {
        Err(config.invalid_value(key, "the first limit must not exceed the second"))
    }
}
