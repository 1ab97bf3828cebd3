//! Convolutions with standardised weights (Qiao et al. 2019), group norms, and zero padding.

use super::builder::{Builder, Window, by_pixel};
use super::group_norm::GroupNorm;
use super::steps::{Change, Layer};
use super::windows::Places;
use crate::checkpoint::LoadError;
use crate::ops::Ops;

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds a convolution without a bias, with weights standardised per output.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn convolve_standardised(
        &mut self,
        name: &str,
        epsilon: f64,
        outputs: usize,
        window: Window,
    ) -> Result<(), LoadError> {
        let (channels, kernel) = (self.channels(), window.kernel);
        let name = format!("{name}.weight");
        let shape = [outputs, channels, kernel, kernel];
        let mut weight = self.layers().weights.take(&name, &shape)?;
        let inputs = (weight.len() / outputs.max(1)).max(1);
        for own in weight.chunks_mut(inputs) {
            let mean = own.iter().map(|value| f64::from(*value)).sum::<f64>() / inputs as f64;
            let squares = own.iter().map(|value| (f64::from(*value) - mean).powi(2));
            let deviation = (squares.sum::<f64>() / inputs as f64 + epsilon).sqrt();
            for value in own {
                *value = ((f64::from(*value) - mean) / deviation) as f32;
            }
        }
        let (weight, inputs) = by_pixel(weight, outputs, kernel);
        let linear = self.layers().upload_folded(weight, Vec::new(), inputs, outputs);
        self.convolve_by(linear, outputs, window);
        Ok(())
    }

    /// Adds a group norm, with a scale and a shift per channel; `groups` divides the channels.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn normalise_groups(
        &mut self,
        name: &str,
        groups: usize,
        epsilon: f64,
    ) -> Result<(), LoadError> {
        let ([height, width], channels) = (self.size(), self.channels());
        let pixels = height * width;
        let values = pixels * channels / groups.max(1);
        let layers = self.layers();
        let factors = layers.factors(&format!("{name}.weight"), channels)?;
        let shifts = layers.weights.take(&format!("{name}.bias"), &[channels])?;
        let shifts = layers.ops.upload(shifts.repeat(pixels), channels);
        let norm = layers
            .ops
            .norm(vec![1.0; values], Some(vec![0.0; values]), epsilon as f32);
        self.push(Layer::NormaliseGroups(Box::new(GroupNorm {
            norm,
            pixels,
            channels,
            groups,
        })));
        self.change(Change::Scale(factors));
        self.change(Change::AddRows(shifts, [pixels, channels]));
        Ok(())
    }

    /// Pads the images with zeros: above, left, below, right.
    pub(super) fn pad(&mut self, [above, left, below, right]: [usize; 4]) {
        let ([height, width], channels) = (self.size(), self.channels());
        self.push(Layer::Merge(
            Places::padded([height, width], [above, left, below, right]),
            [channels; 2],
        ));
        self.shape = [above + height + below, left + width + right, channels];
    }
}
