//! Rotary embeddings of patches by row and column, as in `DINOv3` (Siméoni et al. 2025) and EVA-02 (Fang et al. 2023).

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
        let frequency = |place: usize, side: usize| {
            let period = theta.powf(place as f64 / quarter as f64);
            TAU / (period * side as f64)
        };
        let position =
            |side: usize, place: Option<usize>| place.map_or(side.saturating_sub(1), |place| 2 * place);
        Some(Self::of(
            [height, width],
            first,
            false,
            (quarter, frequency),
            position,
        ))
    }

    /// Creates the rotation of EVA-02 for images of `[height, width]` patches after `first` other tokens; `None` if
    /// the head size is not a multiple of 4.
    ///
    /// The angle of a patch is that of its row or column, scaled to an image of `reference` rows and columns. Other
    /// tokens are at the origin, and adjacent elements of a head form a pair.
    pub(in crate::architectures) fn by_index(
        head_dim: usize,
        [height, width]: [usize; 2],
        first: usize,
        reference: usize,
    ) -> Option<Self> {
        if !head_dim.is_multiple_of(4) {
            return None;
        }
        let quarter = head_dim / 4;
        let frequency = |place: usize, side: usize| {
            let period = 1e4_f64.powf(place as f64 / quarter as f64);
            reference as f64 / side as f64 / period
        };
        let position = |_: usize, place: Option<usize>| place.unwrap_or_default();
        Some(Self::of(
            [height, width],
            first,
            true,
            (quarter, frequency),
            position,
        ))
    }

    /// Creates the rotation from the frequencies of a side, of which there are `quarter`, and the position of a patch
    /// along a side, or of a token without a place.
    fn of(
        [height, width]: [usize; 2],
        first: usize,
        neighbours: bool,
        (quarter, frequency): (usize, impl Fn(usize, usize) -> f64),
        position: impl Fn(usize, Option<usize>) -> usize,
    ) -> Self {
        let rotation = |side: usize, own: usize, place: &dyn Fn(usize) -> usize| {
            let frequency = |pair: usize| {
                if pair / quarter.max(1) == own {
                    frequency(pair % quarter.max(1), side) as f32
                } else {
                    0.0
                }
            };
            let rotary = Rotary {
                frequencies: (0..2 * quarter).map(frequency).collect(),
                neighbours,
                scale: 1.0,
            };
            let before = std::iter::repeat_n(position(side, None), first);
            let patches = (0..height * width).map(|patch| position(side, Some(place(patch))));
            (rotary, before.chain(patches).collect())
        };
        Self {
            rotations: [
                rotation(height, 0, &|patch| patch / width),
                rotation(width, 1, &|patch| patch % width),
            ],
        }
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
