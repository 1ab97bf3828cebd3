//! Modulation of pixels by their surroundings (`FocalNet`, Yang et al. 2022).

use crate::ops::{Activation, Convolution, Ops};

/// Modulation of pixels by their surroundings.
pub(super) struct Modulation<O: Ops> {
    /// Projections to the modulated values and to the surroundings.
    pub(super) input: [O::Linear; 2],
    /// Projection to the gate of each level, and of the whole image.
    pub(super) gates: Vec<O::Linear>,
    /// Repeats a gate for every channel.
    pub(super) spread: O::Linear,
    /// Depthwise convolution of each level.
    pub(super) windows: Vec<(Convolution, O::Matrix)>,
    /// Factor of the sum, if there is one.
    pub(super) share: Option<O::Norm>,
    pub(super) context: O::Linear,
    pub(super) norm: Option<O::Norm>,
    /// Pixels of an image.
    pub(super) pixels: usize,
}

impl<O: Ops> Modulation<O> {
    pub(super) fn run(&self, ops: &O, x: &O::Matrix) -> O::Matrix {
        let [values, mut around] = self.input.each_ref().map(|linear| ops.multiply(x, linear));
        let gates = self
            .gates
            .iter()
            .map(|gate| ops.multiply(&ops.multiply(x, gate), &self.spread));
        let mut sum = None;
        for ((convolution, weights), mut gate) in self.windows.iter().zip(gates) {
            around = ops.activate(
                ops.depthwise_convolve(&around, convolution, weights),
                Activation::Gelu,
                false,
            );
            ops.times(&mut gate, &around);
            sum = Some(added(ops, sum, gate));
        }
        let whole = ops.activate(ops.mean(&around, self.pixels), Activation::Gelu, false);
        if let Some(mut gate) = self
            .gates
            .last()
            .map(|gate| ops.multiply(&ops.multiply(x, gate), &self.spread))
        {
            ops.scale_images(&mut gate, self.pixels, &whole);
            sum = Some(added(ops, sum, gate));
        }
        let mut sum = sum.unwrap_or(around);
        if let Some(share) = &self.share {
            ops.scale(&mut sum, share);
        }
        let mut modulated = ops.multiply(&sum, &self.context);
        ops.times(&mut modulated, &values);
        match &self.norm {
            Some(norm) => ops.normalise(&modulated, norm),
            None => modulated,
        }
    }
}

/// Adds a matrix to a sum.
fn added<O: Ops>(ops: &O, sum: Option<O::Matrix>, other: O::Matrix) -> O::Matrix {
    match sum {
        None => other,
        Some(mut sum) => {
            ops.add(&mut sum, &other);
            sum
        }
    }
}
