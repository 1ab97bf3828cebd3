//! Patches of an image, and interpolation of position embeddings.

use serde::Deserialize;

use crate::checkpoint::{Config, LoadError};

/// Division of an image into patches; all sizes in pixels, height first.
#[derive(Debug, Clone, Copy)]
pub(in crate::architectures) struct Patches {
    /// Number of channels.
    pub channels: usize,
    /// Image size.
    pub image: [usize; 2],
    /// Patch size.
    pub patch: [usize; 2],
}

/// One size for both directions, or height and width.
#[derive(Deserialize)]
#[serde(untagged)]
enum SideLengths {
    Square(usize),
    Rectangle([usize; 2]),
}

/// Reads height and width, which may be stated as one number.
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

    /// Returns the number of patches vertically and horizontally. Pixels that fill no whole patch are ignored, as in a
    /// strided convolution.
    pub(in crate::architectures) fn grid(&self) -> [usize; 2] {
        let ([height, width], [patch_height, patch_width]) = (self.image, self.patch);
        [height / patch_height, width / patch_width]
    }

    /// Returns the number of patches.
    pub(in crate::architectures) fn count(&self) -> usize {
        let [down, across] = self.grid();
        down.saturating_mul(across)
    }

    /// Returns the number of values per patch.
    pub(in crate::architectures) fn pixels(&self) -> usize {
        let [height, width] = self.patch;
        self.channels.saturating_mul(height).saturating_mul(width)
    }

    /// Appends the patches of an image, row by row; each patch is ordered by channel, then row, then pixel.
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

/// Resizes position embeddings `[from, width]` on a grid to another grid, `[to, width]`, row by row, with torch's
/// bicubic interpolation without aligned corners.
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

/// Returns, for each new position along an axis, the four old positions with their weights.
fn weights(from: usize, to: usize) -> Vec<[(usize, f32); 4]> {
    /// Parameter of torch's cubic kernel.
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
