//! Per-channel image operations on the CPU: depthwise convolutions, pooling, and response normalisation.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::Convolution;
use super::gemm::is_small;
use super::rows::Rows;

/// How the pixels of a window are combined.
#[derive(Clone, Copy)]
enum Reduction<'a> {
    /// Weighted sum: one row of weights per pixel, then a row for the bias.
    Weighted(&'a [f32]),
    Largest,
}

/// Computes a depthwise convolution.
pub(super) fn depthwise_convolve(images: &Rows, convolution: &Convolution, weights: &Rows) -> Rows {
    reduce(images, convolution, Reduction::Weighted(&weights.values))
}

/// Computes max pooling.
pub(super) fn max_pool(images: &Rows, convolution: &Convolution) -> Rows {
    reduce(images, convolution, Reduction::Largest)
}

fn reduce(images: &Rows, convolution: &Convolution, reduction: Reduction<'_>) -> Rows {
    let Convolution {
        height,
        width,
        channels,
        kernel,
        ..
    } = *convolution;
    let image = (height * width * channels).max(1);
    let [down, across] = convolution.result();
    let mut out = vec![0.0; images.values.len() / image * down * across * channels];
    let line = (across * channels).max(1);
    let arch = Arch::new();
    let compute = |(index, out): (usize, &mut [f32])| {
        let (place, row) = (index / down.max(1), index % down.max(1));
        arch.dispatch(Line {
            image: images
                .values
                .get(place * image..(place + 1) * image)
                .unwrap_or_default(),
            convolution,
            row,
            reduction,
            out,
        });
    };
    if is_small(out.len().saturating_mul(kernel * kernel)) {
        out.chunks_mut(line).enumerate().for_each(compute);
    } else {
        out.par_chunks_mut(line).enumerate().for_each(compute);
    }
    Rows {
        values: out,
        width: channels,
    }
}

/// A row of pixels of a result.
struct Line<'a> {
    image: &'a [f32],
    convolution: &'a Convolution,
    row: usize,
    reduction: Reduction<'a>,
    out: &'a mut [f32],
}

/// Channels that are computed together: four AVX-512 vectors.
const BLOCK: usize = 64;

impl WithSimd for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Convolution {
            height,
            width,
            channels,
            kernel,
            stride,
            border: [above, before, ..],
        } = *self.convolution;
        // Part of the window that is inside the image, per axis: first index in the window, first index in the image,
        // count.
        let inside = |at: usize, border: usize, side: usize| {
            let corner = at * stride;
            let first = border.saturating_sub(corner);
            let from = (corner + first).saturating_sub(border);
            let last = (side + border).saturating_sub(corner).min(kernel);
            (first, from, last.saturating_sub(first))
        };
        let (first_line, top, lines) = inside(self.row, above, height);
        for (column, pixel) in self.out.chunks_exact_mut(channels.max(1)).enumerate() {
            let (first_pixel, left, pixels) = inside(column, before, width);
            for (block, out) in pixel.chunks_mut(BLOCK).enumerate() {
                let from = block * BLOCK;
                let mut sums = [0.0_f32; BLOCK];
                let sums = sums.get_mut(..out.len()).unwrap_or_default();
                match self.reduction {
                    Reduction::Weighted(weights) => {
                        let bias = kernel * kernel * channels + from;
                        sums.copy_from_slice(weights.get(bias..bias + out.len()).unwrap_or_default());
                    }
                    Reduction::Largest => sums.fill(f32::NEG_INFINITY),
                }
                for line in 0..lines {
                    let start = ((top + line) * width + left) * channels + from;
                    let place = ((first_line + line) * kernel + first_pixel) * channels + from;
                    for pixel in 0..pixels {
                        let values = self.image.get(start + pixel * channels..).unwrap_or_default();
                        match self.reduction {
                            Reduction::Weighted(weights) => {
                                let weights = weights.get(place + pixel * channels..).unwrap_or_default();
                                for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
                                    *sum = value.mul_add(*weight, *sum);
                                }
                            }
                            Reduction::Largest => {
                                for (sum, value) in sums.iter_mut().zip(values) {
                                    // Propagates NaN, which `f32::max` would drop.
                                    let larger = *value > *sum || value.is_nan();
                                    *sum = if larger { *value } else { *sum };
                                }
                            }
                        }
                    }
                }
                out.copy_from_slice(sums);
            }
        }
    }
}

/// Returns the mean of every `count` rows.
pub(super) fn mean(rows: &Rows, count: usize) -> Rows {
    let width = rows.width;
    let mut out = Vec::with_capacity(rows.values.len() / count.max(1));
    for group in rows.values.chunks((count * width).max(1)) {
        let mut sums = vec![0.0_f32; width];
        for row in group.chunks(width.max(1)) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
        out.extend(sums.into_iter().map(|sum| sum / count as f32));
    }
    Rows { values: out, width }
}

/// Multiplies the `count` rows of every image by the image's row of `factors`, in place.
pub(super) fn scale_images(rows: &mut Rows, count: usize, factors: &Rows) {
    let width = rows.width.max(1);
    let image = |(rows, factors): (&mut [f32], &[f32])| {
        for row in rows.chunks_mut(width) {
            for (value, factor) in row.iter_mut().zip(factors) {
                *value *= factor;
            }
        }
    };
    let images = (count * width).max(1);
    let factors = &factors.values;
    if is_small(rows.values.len()) {
        let rows = rows.values.chunks_mut(images);
        rows.zip(factors.chunks(width)).for_each(image);
    } else {
        let rows = rows.values.par_chunks_mut(images);
        rows.zip(factors.par_chunks(width)).for_each(image);
    }
}

/// Adds the global response normalisation of images of `count` pixels, in place.
pub(super) fn global_response_norm(rows: &mut Rows, count: usize, gamma: &[f32], beta: &[f32], epsilon: f32) {
    let width = rows.width.max(1);
    let image = |rows: &mut [f32]| {
        let mut lengths = vec![0.0_f32; width];
        for row in rows.chunks(width) {
            for (length, value) in lengths.iter_mut().zip(row) {
                *length += value * value;
            }
        }
        for length in &mut lengths {
            *length = length.sqrt();
        }
        let mean = lengths.iter().sum::<f32>() / width as f32 + epsilon;
        for (length, gamma) in lengths.iter_mut().zip(gamma) {
            *length = *length / mean * gamma + 1.0;
        }
        for row in rows.chunks_mut(width) {
            for ((value, factor), beta) in row.iter_mut().zip(&lengths).zip(beta) {
                *value = *value * factor + beta;
            }
        }
    };
    let images = (count * width).max(1);
    if is_small(rows.values.len()) {
        rows.values.chunks_mut(images).for_each(image);
    } else {
        rows.values.par_chunks_mut(images).for_each(image);
    }
}
