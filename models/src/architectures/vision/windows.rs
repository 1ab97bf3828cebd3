//! Windowed attention on images, and index maps of pixels (Liu et al. 2021, "Swin Transformer", section 3.2).

use crate::ops::{EncoderAttention, Ops, PairScores};

/// Score added to pixel pairs of a window that are not adjacent in the image.
const APART: f32 = -100.0;

/// Index map: a new order of the pixel rows of an image.
pub(super) struct Places {
    /// Source rows; `usize::MAX` is a pixel outside the image.
    rows: Vec<usize>,
    /// Number of rows of an image.
    count: usize,
}

impl Places {
    /// Creates the map that groups the pixels of each 2x2 square, column by column.
    pub(super) fn squares([height, width]: [usize; 2]) -> Self {
        let corners =
            (0..height.div_ceil(2)).flat_map(|y| (0..width.div_ceil(2)).map(move |x| (2 * y, 2 * x)));
        let pixels = corners.flat_map(|(y, x)| [(y, x), (y + 1, x), (y, x + 1), (y + 1, x + 1)]);
        let rows = pixels.map(|(y, x)| {
            if y < height && x < width {
                y * width + x
            } else {
                usize::MAX
            }
        });
        Self {
            rows: rows.collect(),
            count: height * width,
        }
    }

    /// Creates the map that pads an image with zeros: above, left, below, right.
    pub(super) fn padded([height, width]: [usize; 2], [above, left, below, right]: [usize; 4]) -> Self {
        let rows = (0..above + height + below).flat_map(|y| {
            (0..left + width + right).map(move |x| {
                let inside = |place: usize, before: usize, length: usize| {
                    place.checked_sub(before).filter(|place| *place < length)
                };
                let pixel = inside(y, above, height).zip(inside(x, left, width));
                pixel.map_or(usize::MAX, |(y, x)| y * width + x)
            })
        });
        Self {
            rows: rows.collect(),
            count: height * width,
        }
    }

    /// Creates the map that lists the pixels of a rectangle of `[down, across]` around each pixel, row by row.
    pub(super) fn neighbours([height, width]: [usize; 2], [down, across]: [usize; 2]) -> Self {
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (y, x)));
        let window = (0..down).flat_map(|row| (0..across).map(move |column| (row, column)));
        let rows = pixels.flat_map(|(y, x)| {
            window.clone().map(move |(row, column)| {
                let inside = |place: usize, offset: usize, size: usize, length: usize| {
                    (place + offset)
                        .checked_sub(size / 2)
                        .filter(|place| *place < length)
                };
                let pixel = inside(y, row, down, height).zip(inside(x, column, across, width));
                pixel.map_or(usize::MAX, |(y, x)| y * width + x)
            })
        });
        Self {
            rows: rows.collect(),
            count: height * width,
        }
    }

    /// Creates the map that transposes an image of `rows` and `columns`.
    pub(super) fn exchanged(rows: usize, columns: usize) -> Self {
        let places = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
        Self {
            rows: places.collect(),
            count: rows * columns,
        }
    }

    /// Returns the map for several images.
    pub(super) fn of_images(&self, images: usize) -> Vec<usize> {
        let rows = (0..images).flat_map(|image| {
            let first = image * self.count;
            self.rows.iter().map(move |row| row.saturating_add(first))
        });
        rows.collect()
    }
}

/// Partition of an image into windows.
pub(super) struct Windows {
    /// Map from an image to its consecutive windows.
    places: Places,
    /// Map from the windows to the image.
    back: Places,
    /// Kind of each window.
    kinds: Vec<usize>,
    /// For each kind, the region of the image that each pixel of a window belongs to.
    regions: Vec<Vec<usize>>,
    /// Number of pixels of a window.
    pixels: usize,
}

impl Windows {
    /// Splits images of this height and width into square windows of size `side`, after a cyclic shift up and to the
    /// left by `shift` pixels.
    pub(super) fn new([height, width]: [usize; 2], side: usize, shift: usize) -> Self {
        let (down, across) = (height.div_ceil(side), width.div_ceil(side));
        let (padded_height, padded_width) = (down * side, across * side);
        let region = |at: usize, extent: usize| {
            if shift == 0 {
                return 0;
            }
            usize::from(at >= extent - side) + usize::from(at >= extent - shift)
        };
        let (mut rows, mut back) = (Vec::new(), vec![0; height * width]);
        let (mut kinds, mut known): (Vec<usize>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        for (top, left) in (0..down).flat_map(|y| (0..across).map(move |x| (y * side, x * side))) {
            let mut regions = Vec::with_capacity(side * side);
            let pixels = (top..top + side).flat_map(|y| (left..left + side).map(move |x| (y, x)));
            for (y, x) in pixels {
                regions.push(region(y, padded_height) * 3 + region(x, padded_width));
                let (y, x) = ((y + shift) % padded_height, (x + shift) % padded_width);
                let inside = y < height && x < width;
                if let Some(slot) = back.get_mut(y * width + x).filter(|_| inside) {
                    *slot = rows.len();
                }
                rows.push(if inside { y * width + x } else { usize::MAX });
            }
            let kind = known.iter().position(|other| *other == regions);
            kinds.push(kind.unwrap_or(known.len()));
            if kind.is_none() {
                known.push(regions);
            }
        }
        Self {
            back: Places {
                rows: back,
                count: rows.len(),
            },
            places: Places {
                rows,
                count: height * width,
            },
            kinds,
            regions: known,
            pixels: side * side,
        }
    }

    /// Splits images into one sequence per pixel of a patch, which holds the pixels at that position of all patches;
    /// `None` unless patches divide the image.
    pub(super) fn strided([height, width]: [usize; 2], side: usize) -> Option<Self> {
        if side == 0 || !height.is_multiple_of(side) || !width.is_multiple_of(side) {
            return None;
        }
        let (down, across) = (height / side, width / side);
        let (mut rows, mut back) = (Vec::new(), vec![0; height * width]);
        for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
            for patch in (0..down).flat_map(|row| (0..across).map(move |column| (row, column))) {
                let row = (patch.0 * side + y) * width + patch.1 * side + x;
                if let Some(slot) = back.get_mut(row) {
                    *slot = rows.len();
                }
                rows.push(row);
            }
        }
        let count = height * width;
        Some(Self {
            places: Places { rows, count },
            back: Places { rows: back, count },
            kinds: vec![0; side * side],
            regions: vec![vec![0; down * across]],
            pixels: down * across,
        })
    }

    /// Returns the number of pixels of a window.
    pub(super) fn pixels(&self) -> usize {
        self.pixels
    }

    /// Returns the number of windows of an image.
    pub(super) fn count(&self) -> usize {
        self.kinds.len()
    }

    /// Splits images into windows.
    pub(super) fn split<O: Ops>(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        ops.select(x, &self.places.of_images(images))
    }

    /// Joins windows to images.
    pub(super) fn join<O: Ops>(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        ops.select(x, &self.back.of_images(images))
    }

    /// Returns the pair scores ([`PairScores`]) of shifted windows, from those of a head, query and key without a
    /// shift.
    pub(super) fn scores(&self, heads: usize, score: impl Fn(usize, usize, usize) -> f32) -> Vec<f32> {
        let mut scores = Vec::with_capacity(self.regions.len() * heads * self.pixels * self.pixels);
        for regions in &self.regions {
            for head in 0..heads {
                for (query, one) in regions.iter().enumerate() {
                    let of_keys = regions.iter().enumerate();
                    scores.extend(of_keys.map(|(key, other)| {
                        score(head, query, key) + if one == other { 0.0 } else { APART }
                    }));
                }
            }
        }
        scores
    }
}

/// Attention inside each window.
pub(super) struct WindowAttention<O: Ops> {
    pub windows: Windows,
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Cosine attention: norm of every query and key head, and factors of the projections.
    pub cosine: Option<(O::Norm, O::Norm)>,
    /// Scores by kind of window ([`Windows::scores`]).
    pub scores: Option<O::Matrix>,
    pub projections: O::Linear,
    pub output: O::Linear,
}

impl<O: Ops> WindowAttention<O> {
    pub(super) fn run(&self, ops: &O, x: &O::Matrix, images: usize) -> O::Matrix {
        let Windows { kinds, pixels, .. } = &self.windows;
        let x = self.windows.split(ops, x, images);
        let mut projected = ops.multiply(&x, &self.projections);
        if let Some((norm, factors)) = &self.cosine {
            ops.normalise_heads(&mut projected, 2 * self.heads, norm);
            ops.scale(&mut projected, factors);
        }
        let (mask, kinds) = (vec![true; *pixels], kinds.repeat(images));
        let attention = EncoderAttention {
            scale: self.scale,
            pairs: self.scores.as_ref().map(|values| PairScores {
                values,
                kinds: &kinds,
                tokens: *pixels,
            }),
            ..EncoderAttention::plain(self.heads, 1)
        };
        let sequences = vec![mask.as_slice(); kinds.len()];
        let attended = ops.attend_sequences(&projected, &sequences, &attention);
        ops.multiply(&self.windows.join(ops, &attended, images), &self.output)
    }
}
