//! Class tokens before the pixels of an image, and side branches.

use super::builder::Builder;
use super::steps::{Layer, Step};
use crate::checkpoint::LoadError;
use crate::ops::Ops;

impl<O: Ops> Builder<'_, '_, O> {
    /// Prepends the token `{name}`, `[1, 1, channels]`, to the pixels of every image, which then has one more row.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(super) fn prepend(&mut self, name: &str) -> Result<(), LoadError> {
        let ([height, width], channels) = (self.size(), self.channels());
        let token = self.layers().weights.take(name, &[1, 1, channels])?;
        let token = self.layers().ops.upload(token, channels);
        self.push(Layer::Prepend(token, [height * width, channels]));
        self.shape = [1, height * width + 1, channels];
        Ok(())
    }

    /// Keeps only the first row of every image.
    pub(super) fn keep_first(&mut self) {
        let ([height, width], channels) = (self.size(), self.channels());
        self.push(Layer::First([height * width, channels]));
        self.shape = [1, 1, channels];
    }

    /// Returns steps for images of this shape without adding them to the network, and their number of output pixels.
    ///
    /// # Errors
    /// Errors of the steps.
    pub(super) fn beside(
        &mut self,
        shape: [usize; 3],
        steps: impl FnOnce(&mut Self) -> Result<(), LoadError>,
    ) -> Result<(Vec<Step<O>>, usize), LoadError> {
        let before = std::mem::replace(&mut self.shape, shape);
        let others = std::mem::take(&mut self.steps);
        steps(self)?;
        let steps = std::mem::replace(&mut self.steps, others);
        let [height, width] = self.size();
        self.shape = before;
        Ok((steps, height * width))
    }
}
