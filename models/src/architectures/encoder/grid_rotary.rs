//! Rotary embeddings of patches by row and column, as in `DINOv3` (Siméoni et al. 2025).

use std::f64::consts::TAU;

use crate::ops::{Ops, Rotary};

/// Rotary embedding of queries and keys by the position of a patch in its image. Tokens before the patches are not
/// rotated.
#[derive(Debug, PartialEq)]
pub(in crate::architectures) struct GridRotary {
    /// By row and by column: the rotation, and the positions of an image's tokens.
    rotations: [(Rotary, Vec<usize>); 2],
}

impl GridRotary {
    /// Creates the rotation for images of `[height, width]` patches after `first` other tokens; `None` if `theta` is
    /// not positive or the head size is not a multiple of 4.
    ///
    /// The angle of a patch is that of its centre, from -1 to 1 times a full turn. Scores depend only on differences
    /// of angles, so all positions are shifted by half an image and counted in half patches: they are then integers
    /// from zero.
    pub(in crate::architectures) fn new(
        theta: f64,
        head_dim: usize,
        [height, width]: [usize; 2],
        first: usize,
    ) -> Option<Self> {
        if !(theta.is_finite() && theta > 0.0 && head_dim.is_multiple_of(4)) {
            return None;
        }
        let quarter = head_dim / 4;
        let frequencies = |side: usize, own: usize| -> Vec<f32> {
            let frequency = |place: usize| {
                let period = theta.powf((place % quarter) as f64 / quarter as f64);
                if place / quarter == own {
                    (TAU / (period * side as f64)) as f32
                } else {
                    0.0
                }
            };
            (0..2 * quarter).map(frequency).collect()
        };
        let rotation = |side: usize, own: usize, place: &dyn Fn(usize) -> usize| {
            let rotary = Rotary {
                frequencies: frequencies(side, own),
                neighbours: false,
                scale: 1.0,
            };
            let before = std::iter::repeat_n(side.saturating_sub(1), first);
            let patches = (0..height * width).map(|patch| 2 * place(patch));
            (rotary, before.chain(patches).collect())
        };
        Some(Self {
            rotations: [
                rotation(height, 0, &|patch| patch / width),
                rotation(width, 1, &|patch| patch % width),
            ],
        })
    }

    /// Rotates the first `heads` heads of the tokens of images.
    pub(in crate::architectures) fn rotate<O: Ops>(
        &self,
        ops: &O,
        rows: &mut O::Matrix,
        heads: usize,
        images: usize,
    ) {
        for (rotary, positions) in &self.rotations {
            let positions = positions.repeat(images);
            ops.rotate(rows, heads, 2 * rotary.frequencies.len(), rotary, &positions);
        }
    }
}
