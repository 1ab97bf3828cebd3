//! Patches of an image, and the positions of their vectors.

use serde::Deserialize;

use crate::checkpoint::{Config, LoadError};

/// How an image is split into patches; all sizes in pixels, height first.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct Patches {
    /// Number of channels.
    pub channels: usize,
    /// The image.
    pub image: [usize; 2],
    /// A patch.
    pub patch: [usize; 2],
}

/// One size for both directions, or height and width.
#[derive(Deserialize)]
#[serde(untagged)]
enum SideLengths {
    Square(usize),
    Rectangle([usize; 2]),
}

/// Reads a height and a width, which may be one number.
///
/// # Errors
/// [`LoadError::MissingKey`], or [`LoadError::BadKey`] unless both are at least 1.
pub(in crate::architectures) fn side_lengths(config: &Config, key: &str) -> Result<[usize; 2], LoadError> {
    let side_lengths = match config.required(key)? {
        SideLengths::Square(side) => [side, side],
        SideLengths::Rectangle(sides) => sides,
    };
    if side_lengths.contains(&0) {
        return Err(config.invalid_value(key, "it must be at least 1"));
    }
    Ok(side_lengths)
}

impl Patches {
    /// Reads `image_size`, `patch_size` and `num_channels`.
    ///
    /// # Errors
    /// [`LoadError`], naming the key.
    pub(in crate::architectures) fn read(config: &Config) -> Result<Self, LoadError> {
        let image = side_lengths(config, "image_size")?;
        let patch = side_lengths(config, "patch_size")?;
        if image.iter().zip(patch).any(|(image, patch)| patch > *image) {
            return Err(config.invalid_value("patch_size", format!("it must fit image_size = {image:?}")));
        }
        Ok(Self {
            channels: config.size("num_channels")?,
            image,
            patch,
        })
    }

    /// Number of patches vertically and horizontally. Pixels that fill no whole patch are ignored, as by a strided
    /// convolution.
    pub(in crate::architectures) fn grid(&self) -> [usize; 2] {
        let ([height, width], [patch_height, patch_width]) = (self.image, self.patch);
        [height / patch_height, width / patch_width]
    }

    /// Number of patches.
    pub(in crate::architectures) fn count(&self) -> usize {
        let [down, across] = self.grid();
        down.saturating_mul(across)
    }

    /// Number of values of a patch.
    pub(in crate::architectures) fn pixels(&self) -> usize {
        let [height, width] = self.patch;
        self.channels.saturating_mul(height).saturating_mul(width)
    }

    /// Appends the patches of an image, row by row, each as channels of rows of pixels.
    pub(in crate::architectures) fn cut(&self, image: &[f32], into: &mut Vec<f32>) {
        let ([height, width], [patch_height, patch_width]) = (self.image, self.patch);
        let [down, across] = self.grid();
        for top in (0..down).map(|row| row * patch_height) {
            for left in (0..across).map(|column| column * patch_width) {
                for channel in image.chunks_exact(height * width) {
                    for line in channel.chunks_exact(width).skip(top).take(patch_height) {
                        into.extend(line.iter().skip(left).take(patch_width));
                    }
                }
            }
        }
    }
}

/// Returns the vectors `[to, width]` of positions on a grid from those on another grid `[from, width]`, row by row, by bicubic
/// interpolation as torch computes it without aligned corners.
pub(in crate::architectures) fn interpolated(
    positions: &[f32],
    width: usize,
    from: [usize; 2],
    to: [usize; 2],
) -> Vec<f32> {
    let [rows, columns] = [0, 1].map(|side| {
        let side = |grid: [usize; 2]| grid.get(side).copied().unwrap_or_default();
        weights(side(from), side(to))
    });
    let across = from.get(1).copied().unwrap_or_default();
    let mut out = Vec::with_capacity(rows.len() * columns.len() * width);
    for row in &rows {
        for column in &columns {
            let start = out.len();
            out.resize(start + width, 0.0);
            let target = out.get_mut(start..).unwrap_or_default();
            for (line, down) in row {
                for (place, right) in column {
                    let from = (line * across + place) * width;
                    let source = positions.get(from..from + width).unwrap_or_default();
                    for (slot, value) in target.iter_mut().zip(source) {
                        *slot += down * right * value;
                    }
                }
            }
        }
    }
    out
}

/// Returns for every place of the new side the four places of the old one that it is computed from, with their weights.
fn weights(from: usize, to: usize) -> Vec<[(usize, f32); 4]> {
    /// Parameter of the cubic kernel in torch.
    const SHARPNESS: f64 = -0.75;
    let kernel = |distance: f64| {
        let x = distance.abs();
        if x <= 1.0 {
            ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1.0
        } else {
            ((SHARPNESS * x - 5.0 * SHARPNESS) * x + 8.0 * SHARPNESS) * x - 4.0 * SHARPNESS
        }
    };
    let ratio = from as f64 / to.max(1) as f64;
    let last = from.saturating_sub(1) as f64;
    let places = (0..to).map(|place| {
        let source = (place as f64 + 0.5) * ratio - 0.5;
        let first = source.floor();
        [-1.0, 0.0, 1.0, 2.0].map(|step| {
            let at = (first + step).clamp(0.0, last);
            (at as usize, kernel(source - (first + step)) as f32)
        })
    });
    places.collect()
}
