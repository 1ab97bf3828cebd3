//! Steps of `DenseNet`: concatenation of channels, batch norms without a preceding convolution, and convolutions
//! without a bias.

use super::builder::{BatchNorm, Builder, Window, by_pixel};
use super::steps::Layer;
use crate::checkpoint::LoadError;
use crate::ops::Ops;

impl<O: Ops> Builder<'_, '_, O> {
    /// Concatenates the channels of the last result with those that a branch computes from it.
    ///
    /// # Errors
    /// Errors of the branch.
    pub(super) fn append(
        &mut self,
        branch: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let (shape, before) = (self.shape, std::mem::take(&mut self.steps));
        branch(self)?;
        let steps = std::mem::replace(&mut self.steps, before);
        let ([height, width, channels], added) = (shape, self.channels());
        self.push(Layer::Append(steps, [height * width, channels, added]));
        self.shape = [height, width, channels + added];
        Ok(())
    }

    /// Adds a batch norm as a depthwise 1x1 convolution.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise_batch(&mut self, norm: BatchNorm<'_>) -> Result<(), LoadError> {
        let channels = self.channels();
        let weights = &mut *self.layers().weights;
        let mut part = |part: &str| weights.take(&format!("{}.{part}", norm.name), &[channels]);
        let (gamma, beta) = (part("weight")?, part("bias")?);
        let (mean, variance) = (part("running_mean")?, part("running_var")?);
        let factors = gamma.iter().zip(&variance);
        let factors =
            factors.map(|(gamma, variance)| f64::from(*gamma) / (f64::from(*variance) + norm.epsilon).sqrt());
        let factors: Vec<f64> = factors.collect();
        let shifts = factors.iter().zip(beta.iter().zip(&mean));
        let shifts = shifts.map(|(factor, (beta, mean))| f64::from(*beta) - f64::from(*mean) * factor);
        let rows: Vec<f32> = factors
            .iter()
            .copied()
            .chain(shifts)
            .map(|value| value as f32)
            .collect();
        let convolution = self.convolution(Window::patches(1));
        let rows = self.layers().ops.upload(rows, channels);
        self.push(Layer::ConvolveChannels(convolution, rows));
        Ok(())
    }

    /// Adds a convolution without a bias.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve_unbiased(
        &mut self,
        name: &str,
        outputs: usize,
        window: Window,
    ) -> Result<(), LoadError> {
        let shape = [outputs, self.channels(), window.kernel, window.kernel];
        let weight = self.layers().weights.take(&format!("{name}.weight"), &shape)?;
        let (weight, inputs) = by_pixel(weight, outputs, window.kernel);
        let linear = self.layers().upload(weight, Vec::new(), inputs, outputs);
        self.convolve_by(linear, outputs, window);
        Ok(())
    }
}
