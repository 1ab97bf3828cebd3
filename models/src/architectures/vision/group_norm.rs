//! Norms of groups of channels (Wu and He 2018).

use crate::ops::Ops;

/// Norm of groups of channels of an image, without factors and shifts.
pub(super) struct GroupNorm<O: Ops> {
    /// As wide as the values of a group, without factors and shifts.
    pub(super) norm: O::Norm,
    /// Pixels of an image.
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
        // The mean of one row is the row: a copy.
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
