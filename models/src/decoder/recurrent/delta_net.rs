//! The gated `DeltaNet` of Qwen3-Next and Qwen 3.5.

use super::weights::{self as mixer, Gates, RecurrentWeights};
use crate::checkpoint::{LoadError, Weights};
use crate::decoder::linear_weights::LinearWeights;
use crate::decoder::weights::ModelConfig;
use crate::ops::Activation;
use crate::ops::recurrent::{DeltaRule, OutputGate, Recurrence, Scan};

/// Sizes of a gated `DeltaNet`.
#[derive(Debug, Clone, Copy)]
pub(in crate::decoder) struct DeltaNet {
    /// Query and key heads.
    pub(in crate::decoder) key_heads: usize,
    /// Value heads, a multiple of `key_heads`.
    pub(in crate::decoder) value_heads: usize,
    /// Size of a query or key head.
    pub(in crate::decoder) key_dim: usize,
    /// Size of a value head.
    pub(in crate::decoder) value_dim: usize,
    /// Kernel size of the convolution, tokens.
    pub(in crate::decoder) kernel: usize,
    /// Activation of the convolution.
    pub(in crate::decoder) activation: Activation,
    /// Whether two fused layers hold the projections grouped by key head (Qwen3-Next), instead of four layers.
    pub(in crate::decoder) by_key_head: bool,
}

impl DeltaNet {
    pub(super) fn take(
        &self,
        weights: &mut Weights,
        name: &str,
        model_config: &ModelConfig,
    ) -> Result<RecurrentWeights, LoadError> {
        let at = |part: &str| format!("{name}.{part}");
        let width = model_config.width;
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let mut linear =
            |part: &str, inputs, outputs| LinearWeights::take(weights, &at(part), inputs, outputs, false);
        let (input, gates) = if self.by_key_head {
            let input = linear("in_proj_qkvz", width, 2 * keys + 2 * values)?;
            let gates = linear("in_proj_ba", width, 2 * self.value_heads)?;
            let each = self.value_heads / self.key_heads.max(1);
            let sizes = [
                self.key_dim,
                self.key_dim,
                each * self.value_dim,
                each * self.value_dim,
            ];
            (input.by_parts(&sizes), gates.by_parts(&[each, each]))
        } else {
            let input = linear("in_proj_qkv", width, 2 * keys + values)?;
            let input = input.concat_outputs(&linear("in_proj_z", width, values)?);
            let gates = linear("in_proj_b", width, self.value_heads)?;
            (
                input,
                gates.concat_outputs(&linear("in_proj_a", width, self.value_heads)?),
            )
        };
        let output = linear("out_proj", values, width)?;
        let channels = [2 * keys + values, self.kernel];
        let activation = Some(self.activation);
        let convolution = mixer::convolution(weights, &at("conv1d"), channels, false, activation)?;
        let rule = DeltaRule {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            rates: mixer::rates(weights, &at("A_log"), &[self.value_heads])?,
            step_bias: weights.take(&at("dt_bias"), &[self.value_heads])?,
        };
        let gate = OutputGate {
            gamma: weights.take(&at("norm.weight"), &[self.value_dim])?,
            group: self.value_dim,
            epsilon: model_config.epsilon,
            gates_first: false,
        };
        Ok(RecurrentWeights {
            input,
            gates: Gates::OfInput(gates),
            recurrence: Recurrence {
                convolution,
                scan: Scan::DeltaRule(rule, gate),
            },
            output,
        })
    }
}
