//! The gated `DeltaNet` of Qwen3-Next, Qwen 3.5 and `OLMo` Hybrid.

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
    /// Storage layout of the projections.
    pub(in crate::decoder) tensors: DeltaNetTensors,
    /// Factor of beta, the fraction to replace.
    pub(in crate::decoder) beta_scale: f32,
}

/// Storage layout of a gated `DeltaNet`'s projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::decoder) enum DeltaNetTensors {
    /// Two fused layers, grouped by key head (Qwen3-Next).
    ByKeyHead,
    /// Queries, keys and values in one layer, gates in three (Qwen 3.5).
    Fused,
    /// One layer each, with the names of an attention, and a norm with torch's epsilon (`OLMo` Hybrid).
    Separate,
}

/// Epsilon of the output norm of [`DeltaNetTensors::Separate`].
const EPSILON: f32 = 1e-5;

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
        let separate = self.tensors == DeltaNetTensors::Separate;
        let (input, gates) = if separate {
            let parts = [
                ("q_proj", keys),
                ("k_proj", keys),
                ("v_proj", values),
                ("g_proj", values),
            ];
            let parts = parts.map(|(part, outputs)| linear(part, width, outputs));
            let input = LinearWeights::concatenated(parts.into_iter().collect::<Result<_, _>>()?);
            let gates = linear("b_proj", width, self.value_heads)?;
            (
                input,
                gates.concat_outputs(&linear("a_proj", width, self.value_heads)?),
            )
        } else if self.tensors == DeltaNetTensors::ByKeyHead {
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
        let [output, norm] = if separate {
            ["o_proj", "o_norm.weight"]
        } else {
            ["out_proj", "norm.weight"]
        };
        let output = linear(output, values, width)?;
        let channels = [2 * keys + values, self.kernel];
        let activation = Some(self.activation);
        let convolution = if separate {
            let stored = self.convolutions(weights, name)?;
            mixer::convolution_of(&stored, Vec::new(), channels, activation)
        } else {
            mixer::convolution(weights, &at("conv1d"), channels, false, activation)?
        };
        let rule = DeltaRule {
            key_heads: self.key_heads,
            value_heads: self.value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            rates: mixer::rates(weights, &at("A_log"), &[self.value_heads])?,
            step_bias: weights.take(&at("dt_bias"), &[self.value_heads])?,
            beta_scale: self.beta_scale,
        };
        let gate = OutputGate {
            gamma: weights.take(&at(norm), &[self.value_dim])?,
            group: self.value_dim,
            epsilon: if separate { EPSILON } else { model_config.epsilon },
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

    /// Takes the convolutions of queries, keys and values; transformers divides their channels evenly when it saves
    /// them.
    fn convolutions(&self, weights: &mut Weights, name: &str) -> Result<Vec<f32>, LoadError> {
        let (keys, values) = (self.key_heads * self.key_dim, self.value_heads * self.value_dim);
        let names = ["q", "k", "v"].map(|part| format!("{name}.{part}_conv1d.weight"));
        let [queries, ..] = &names;
        let mut sizes = [keys, keys, values];
        if !weights.has_shape(queries, &[keys, 1, self.kernel]) {
            let all = 2 * keys + values;
            let even = all.div_ceil(3);
            sizes = [even, even, all.saturating_sub(2 * even)];
        }
        let parts = names.iter().zip(sizes);
        let parts = parts.map(|(name, size)| weights.take(name, &[size, 1, self.kernel]));
        Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
    }
}
