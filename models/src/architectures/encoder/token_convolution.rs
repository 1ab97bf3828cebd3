//! Convolution over the tokens of a text, whose result is added to that of a block (He et al. 2021, "`DeBERTa`",
//! section A.1).

use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{Activation, Ops};

/// Configuration of a token convolution.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::architectures) struct ConvolutionConfig {
    /// Prefix of the tensors.
    pub name: String,
    /// Kernel size, tokens; odd.
    pub kernel: usize,
    /// Number of groups of elements, which divides the width; an output reads only its own group.
    pub groups: usize,
    /// Activation of the result.
    pub activation: Activation,
}

/// A token convolution on a device.
pub(in crate::architectures) struct TokenConvolution<O: Ops> {
    /// Linear layer over the concatenated tokens of a window.
    layer: O::Linear,
    /// Norm after the residual addition.
    norm: O::Norm,
    kernel: usize,
    /// Size of the concatenated tokens of a window.
    inputs: usize,
    activation: Activation,
}

impl<O: Ops> TokenConvolution<O> {
    /// Takes `{name}.conv` and the norm `{name}.LayerNorm`.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        config: &ConvolutionConfig,
        width: usize,
        epsilon: f64,
    ) -> Result<Self, LoadError> {
        let (name, kernel) = (&config.name, config.kernel);
        let own = width / config.groups.max(1);
        let shape = [width, own, kernel];
        let stored = layers.weights.take(&format!("{name}.conv.weight"), &shape)?;
        let bias = layers.weights.take(&format!("{name}.conv.bias"), &[width])?;
        let inputs = kernel * width;
        // Weights for elements of other groups are zero.
        let mut weight = vec![0.0; width * inputs];
        let rows = weight
            .chunks_mut(inputs.max(1))
            .zip(stored.chunks((own * kernel).max(1)));
        for (output, (row, stored)) in rows.enumerate() {
            let first = output / own.max(1) * own;
            let by_token = transposed(stored, kernel);
            for (token, values) in by_token.chunks(own.max(1)).enumerate() {
                let from = token * width + first;
                if let Some(slots) = row.get_mut(from..from + own) {
                    slots.copy_from_slice(values);
                }
            }
        }
        let weight = transposed(&weight, inputs);
        Ok(Self {
            layer: layers.upload(weight, bias, inputs, width),
            norm: layers.layer_norm(&format!("{name}.LayerNorm"), width, epsilon)?,
            kernel,
            inputs,
            activation: config.activation,
        })
    }

    /// Adds the convolution of `x`, the input of a block, to its `result`, and normalises the sum. Hidden tokens count
    /// as zeros, like positions beyond the ends.
    pub(in crate::architectures) fn add_to(
        &self,
        ops: &O,
        x: &O::Matrix,
        result: &O::Matrix,
        sequences: &[&[bool]],
    ) -> O::Matrix {
        let tokens: usize = sequences.iter().map(|mask| mask.len()).sum();
        let mut rows = Vec::with_capacity(tokens * self.kernel);
        let mut first = 0;
        for mask in sequences {
            for token in 0..mask.len() {
                rows.extend((0..self.kernel).map(|place| {
                    let neighbour = (token + place).checked_sub(self.kernel / 2);
                    let visible = neighbour.filter(|neighbour| mask.get(*neighbour) == Some(&true));
                    visible.map_or(usize::MAX, |neighbour| first + neighbour)
                }));
            }
            first += mask.len();
        }
        let windows = ops.with_width(ops.select(x, &rows), self.inputs);
        let mut sum = ops.activate(ops.multiply(&windows, &self.layer), self.activation, false);
        ops.add(&mut sum, result);
        ops.normalise(&sum, &self.norm)
    }
}
