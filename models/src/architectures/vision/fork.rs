//! Steps of `Inception`: parallel branches whose channels are concatenated, and convolutions with rectangular windows.

use super::builder::{BatchNorm, Builder, Window};
use super::steps::Layer;
use super::windows::Places;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::Ops;

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds `count` branches of the same input, which `branch` adds by their index, and concatenates their channels.
    /// All results must have the same height and width.
    ///
    /// # Errors
    /// Errors of the branches.
    pub(super) fn fork(
        &mut self,
        count: usize,
        mut branch: impl FnMut(&mut Self, usize) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let (shape, before) = (self.shape, std::mem::take(&mut self.steps));
        let mut branches = Vec::with_capacity(count);
        for index in 0..count {
            self.shape = shape;
            branch(self, index)?;
            branches.push((std::mem::take(&mut self.steps), self.channels()));
        }
        self.steps = before;
        let [height, width] = self.size();
        self.shape = [height, width, branches.iter().map(|(_, channels)| channels).sum()];
        self.push(Layer::Fork(branches, height * width));
        Ok(())
    }

    /// Adds a convolution with a batch norm, whose window is a rectangle of this height and width, centred on each
    /// pixel.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve_rectangle(
        &mut self,
        name: &str,
        norm: BatchNorm<'_>,
        outputs: usize,
        sides: [usize; 2],
    ) -> Result<(), LoadError> {
        let ([height, width, channels], [down, across]) = (self.shape, sides);
        let (mut weight, bias) = self.weight(name, Some(norm), &[outputs, channels, down, across])?;
        let inputs = channels * down * across;
        // Files store the weights channel by channel.
        for output in weight.chunks_mut(inputs.max(1)) {
            output.copy_from_slice(&transposed(output, down * across));
        }
        let weight = transposed(&weight, inputs);
        let linear = self.layers().upload_folded(weight, bias, inputs, outputs);
        self.push(Layer::Merge(
            Places::neighbours([height, width], sides),
            [channels, inputs],
        ));
        self.push(Layer::Multiply(linear));
        self.shape = [height, width, outputs];
        Ok(())
    }

    /// Adds average pooling; pixels outside the image count as zeros.
    pub(super) fn pool_mean_padded(&mut self, window: Window) {
        let (convolution, channels) = (self.convolution(window), self.channels());
        let count = window.kernel * window.kernel;
        let mut shares = vec![1.0 / count as f32; count * channels];
        // Appends the bias.
        shares.resize((count + 1) * channels, 0.0);
        let shares = self.layers().ops.upload(shares, channels);
        let [height, width] = convolution.result();
        self.shape = [height, width, channels];
        self.push(Layer::ConvolveChannels(convolution, shares));
    }
}
