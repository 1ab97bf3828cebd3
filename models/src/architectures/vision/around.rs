//! Means of the pixels around a pixel (Yu et al. 2022, "`MetaFormer`", section 3.1).

use super::builder::Builder;
use super::steps::{Change, Layer};
use crate::checkpoint::LoadError;
use crate::ops::{Convolution, Ops};

impl<O: Ops> Builder<'_, '_, O> {
    /// Adds the difference between the mean of the pixels in a square around a pixel and the pixel itself. Pixels beyond the image
    /// do not count; `side` is odd.
    ///
    /// # Errors
    /// None: those of branches without weights.
    pub(super) fn mean_around(&mut self, side: usize) -> Result<(), LoadError> {
        let channels = self.channels();
        self.add(
            |builder| {
                builder.sum_around(side);
                Ok(())
            },
            |builder| {
                // The mean of one pixel is the pixel.
                builder.push(Layer::Mean(1));
                let factors = builder.layers().ops.norm(vec![-1.0; channels], None, 0.0);
                builder.change(Change::Scale(factors));
                Ok(())
            },
        )
    }

    fn sum_around(&mut self, side: usize) {
        let ([height, width], channels) = (self.size(), self.channels());
        let convolution = Convolution::centred([height, width, channels], side, 1);
        let mut ones = vec![1.0; side * side * channels];
        // The bias.
        ones.resize(ones.len() + channels, 0.0);
        let covered = |place: usize, length: usize| {
            let last = (place + side / 2).min(length.saturating_sub(1));
            last + 1 - place.saturating_sub(side / 2)
        };
        let pixels = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        let shares = pixels.map(|(row, column)| 1.0 / (covered(row, height) * covered(column, width)) as f32);
        let shares: Vec<f32> = shares.flat_map(|share| vec![share; channels]).collect();
        let ops = self.layers().ops;
        let (ones, shares) = (ops.upload(ones, channels), ops.upload(shares, channels));
        self.push(Layer::ConvolveChannels(convolution, ones));
        self.change(Change::TimesRows(shares, [height * width, channels]));
    }
}
