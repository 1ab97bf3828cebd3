//! Grouped convolutions (Xie et al. 2017).

use crate::architectures::layers::Layers;
use crate::checkpoint::transposed;
use crate::ops::{Convolution, Ops, Span};

/// A grouped convolution.
pub(super) struct GroupedConvolution<O: Ops> {
    /// Convolution over images with the channels of one group.
    convolution: Convolution,
    /// One linear layer per group; outputs are concatenated.
    groups: Vec<O::Linear>,
    /// Number of outputs per group.
    outputs: usize,
}

impl<O: Ops> GroupedConvolution<O> {
    /// Uploads a weight `[total outputs, channels per group, kernel, kernel]` with a bias.
    pub(super) fn new(
        layers: &mut Layers<'_, O>,
        convolution: Convolution,
        (mut weight, bias): (Vec<f32>, Vec<f32>),
        groups: usize,
    ) -> Self {
        let (inputs, outputs) = (convolution.window(), bias.len() / groups.max(1));
        let pixels = convolution.kernel * convolution.kernel;
        // The file orders windows by channel.
        for output in weight.chunks_mut(inputs.max(1)) {
            output.copy_from_slice(&transposed(output, pixels));
        }
        let weights = weight.chunks((inputs * outputs).max(1));
        let groups = weights.zip(bias.chunks(outputs.max(1))).map(|(weight, bias)| {
            layers.upload_folded(transposed(weight, inputs), bias.to_vec(), inputs, outputs)
        });
        Self {
            convolution,
            groups: groups.collect(),
            outputs,
        }
    }

    /// Computes the convolutions of all groups.
    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let Convolution {
            height,
            width,
            channels,
            ..
        } = self.convolution;
        let (count, pixels) = (self.groups.len(), images * height * width);
        let whole = Span {
            matrix: x,
            from: 0,
            count: pixels,
        };
        // One row per pixel and group.
        let rows = ops.with_width(ops.gather(&[whole], count * channels), channels);
        let results = self.groups.iter().enumerate().map(|(group, linear)| {
            let own: Vec<usize> = (0..pixels).map(|pixel| pixel * count + group).collect();
            ops.convolve(&ops.select(&rows, &own), &self.convolution, linear)
        });
        let results: Vec<O::Matrix> = results.collect();
        let [down, across] = self.convolution.result();
        let each = images * down * across;
        let spans = results.iter().map(|matrix| Span {
            matrix,
            from: 0,
            count: each,
        });
        let spans: Vec<Span<'_, O::Matrix>> = spans.collect();
        let places = (0..each).flat_map(|pixel| (0..count).map(move |group| group * each + pixel));
        let places: Vec<usize> = places.collect();
        let together = ops.select(&ops.gather(&spans, self.outputs), &places);
        ops.with_width(together, count * self.outputs)
    }
}
