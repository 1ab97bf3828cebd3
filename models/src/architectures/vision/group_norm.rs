//! Group norm (Wu and He 2018).

use crate::ops::Ops;

/// Group norm of an image, without weights.
pub(super) struct GroupNorm<O: Ops> {
    /// Norm as wide as the values of a group, without weights.
    pub(super) norm: O::Norm,
    /// Number of pixels of an image.
    pub(super) pixels: usize,
    pub(super) channels: usize,
    pub(super) groups: usize,
}

impl<O: Ops> GroupNorm<O> {
    /// Normalises every group of channels of every image.
    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let Self {
            pixels,
            channels,
            groups,
            ..
        } = *self;
        let each = channels / groups.max(1);
        // Copies by taking the mean of one row.
        let parts = ops.with_width(ops.mean(x, 1), each);
        let places = |outer: usize, inner: usize| {
            let rows = (0..images).flat_map(move |image| {
                let first = image * outer * inner;
                (0..outer).flat_map(move |one| (0..inner).map(move |other| first + other * outer + one))
            });
            rows.collect::<Vec<usize>>()
        };
        let by_group = ops.select(&parts, &places(groups, pixels));
        let by_group = ops.normalise(&ops.with_width(by_group, pixels * each), &self.norm);
        let by_pixel = ops.select(&ops.with_width(by_group, each), &places(pixels, groups));
        ops.with_width(by_pixel, channels)
    }
}
