//! Separable self-attention (Mehta and Rastegari 2022): one score per pixel weights the keys of a sequence, and the
//! values are multiplied by the weighted sum.

use super::windows::Windows;
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{Activation, AttentionSpans, Heads, Ops, ScoreRules, Span};

/// Separable self-attention over the sequences of an image.
pub(super) struct SeparableAttention<O: Ops> {
    windows: Windows,
    width: usize,
    /// Layer from a pixel to `[score, 0, ... | key]`, whose product with `query` is the score.
    keys: O::Linear,
    /// One in the first column, zero in the others.
    query: O::Matrix,
    values: O::Linear,
    output: O::Linear,
}

impl<O: Ops> SeparableAttention<O> {
    /// Takes the fused layer of score, keys and values, and the output layer; both are 1x1 convolutions.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn take(
        layers: &mut Layers<'_, O>,
        [projections, output]: [String; 2],
        width: usize,
        windows: Windows,
    ) -> Result<Self, LoadError> {
        let rows = 2 * width + 1;
        let mut weight = layers
            .weights
            .take(&format!("{projections}.weight"), &[rows, width, 1, 1])?;
        let mut bias = layers.weights.take(&format!("{projections}.bias"), &[rows])?;
        let of_values = (weight.split_off((width + 1) * width), bias.split_off(width + 1));
        let zeros = width - 1;
        weight.splice(width..width, std::iter::repeat_n(0.0, zeros * width));
        bias.splice(1..1, std::iter::repeat_n(0.0, zeros));
        let mut query = vec![0.0; width];
        if let Some(first) = query.first_mut() {
            *first = 1.0;
        }
        let query = layers.ops.upload(query, width);
        let keys = layers.upload(transposed(&weight, width), bias, width, 2 * width);
        let (weight, bias) = of_values;
        let values = layers.upload(transposed(&weight, width), bias, width, width);
        let weight = layers
            .weights
            .take(&format!("{output}.weight"), &[width, width, 1, 1])?;
        let bias = layers.weights.take(&format!("{output}.bias"), &[width])?;
        Ok(Self {
            windows,
            width,
            keys,
            query,
            values,
            output: layers.upload(transposed(&weight, width), bias, width, width),
        })
    }

    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let (pixels, sequences) = (self.windows.pixels(), self.windows.count() * images);
        let x = self.windows.split(ops, x, images);
        let keys = ops.multiply(&x, &self.keys);
        let query = Span {
            matrix: &self.query,
            from: 0,
            count: 1,
        };
        let queries = ops.gather(&vec![query; sequences], self.width);
        let requests = (0..sequences).map(|sequence| AttentionSpans {
            queries: 1,
            cached: vec![Span {
                matrix: &keys,
                from: sequence * pixels,
                count: pixels,
            }],
            new_kv: None,
        });
        let heads = Heads {
            queries: 1,
            keys: 1,
            head_dim: self.width,
            scale: 1.0,
        };
        let requests: Vec<_> = requests.collect();
        let sums = ops.attend(&queries, &requests, &heads, ScoreRules::default());
        let mut values = ops.activate(ops.multiply(&x, &self.values), Activation::Relu, false);
        ops.scale_images(&mut values, pixels, &sums);
        ops.multiply(&self.windows.join(ops, &values, images), &self.output)
    }
}
