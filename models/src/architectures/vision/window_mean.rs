//! Average pooling over windows.

use super::builder::{Builder, Window};
use super::steps::{Change, Layer};
use crate::checkpoint::LoadError;
use crate::ops::Ops;

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds the token mixer of `PoolFormer` (Yu et al. 2022, "`MetaFormer`", section 3.1): the mean of the pixels in a
    /// square around each pixel, minus the pixel. Pixels outside the image do not count; `side` is odd.
    ///
    /// # Errors
    /// None: the branches have no weights.
    pub(super) fn mean_around(&mut self, side: usize) -> Result<(), LoadError> {
        let channels = self.channels();
        self.add(
            |builder| {
                builder.pool_mean(Window::centred(side, 1));
                Ok(())
            },
            |builder| {
                // Copies by taking the mean of one pixel.
                builder.push(Layer::Mean(1));
                let factors = builder.layers().ops.norm(vec![-1.0; channels], None, 0.0);
                builder.change(Change::Scale(factors));
                Ok(())
            },
        )
    }

    /// Adds average pooling; pixels outside the image do not count.
    pub(super) fn pool_mean(&mut self, window: Window) {
        let convolution = self.convolution(window);
        let ([height, width], channels) = (self.size(), self.channels());
        let [down, across] = convolution.result();
        let [above, left, ..] = window.border;
        let covered = |place: usize, before: usize, length: usize| {
            let end = place * window.stride + window.kernel;
            end.saturating_sub(before).min(length) - (place * window.stride).saturating_sub(before)
        };
        let mut ones = vec![1.0; convolution.window()];
        // Appends the bias.
        ones.resize(ones.len() + channels, 0.0);
        let pixels = (0..down).flat_map(|row| (0..across).map(move |column| (row, column)));
        let counts = pixels.map(|(row, column)| covered(row, above, height) * covered(column, left, width));
        let shares: Vec<f32> = counts
            .flat_map(|count| vec![1.0 / count as f32; channels])
            .collect();
        let ops = self.layers().ops;
        let (ones, shares) = (ops.upload(ones, channels), ops.upload(shares, channels));
        self.shape = [down, across, channels];
        self.push(Layer::ConvolveChannels(convolution, ones));
        self.change(Change::TimesRows(shares, [down * across, channels]));
    }
}
