//! PIL's `Image.resize` on 8-bit pixels, with its integer arithmetic (`libImaging/Resample.c`): one pass per axis,
//! horizontal first; coefficients are rounded to 22 fractional bits, and each pass to a byte.

use serde::Deserialize;

use super::Pixels;

/// Fractional bits of a coefficient.
const PRECISION: u32 = 32 - 8 - 2;

/// Resampling filter; numbered as in PIL's `Image.Resampling`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u8")]
pub(super) enum Filter {
    Nearest,
    Lanczos,
    Bilinear,
    Bicubic,
    Box,
    Hamming,
}

impl TryFrom<u8> for Filter {
    type Error = String;

    fn try_from(number: u8) -> Result<Self, String> {
        Ok(match number {
            0 => Self::Nearest,
            1 => Self::Lanczos,
            2 => Self::Bilinear,
            3 => Self::Bicubic,
            4 => Self::Box,
            5 => Self::Hamming,
            _ => return Err("it must be one of PIL's filters, 0 to 5".to_owned()),
        })
    }
}

impl Filter {
    /// Returns the filter's radius, in pixels of the smaller image.
    fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        let sinc = |x: f64| {
            if x == 0.0 {
                1.0
            } else {
                (x * std::f64::consts::PI).sin() / (x * std::f64::consts::PI)
            }
        };
        let distance = x.abs();
        match self {
            Self::Nearest | Self::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
            Self::Bilinear => (1.0 - distance).max(0.0),
            Self::Hamming if distance == 0.0 => 1.0,
            Self::Hamming if distance >= 1.0 => 0.0,
            Self::Hamming => sinc(distance) * (0.54 + 0.46 * (distance * std::f64::consts::PI).cos()),
            // Cubic convolution of Keys (1981) with a = -0.5.
            Self::Bicubic if distance < 1.0 => ((1.5 * distance) - 2.5) * distance * distance + 1.0,
            Self::Bicubic if distance < 2.0 => (((distance - 5.0) * distance + 8.0) * distance - 4.0) * -0.5,
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }

    /// Returns for each new pixel along an axis the index of its first source pixel, and the coefficients of its
    /// source pixels.
    fn coefficients(self, old: usize, new: usize) -> Vec<(usize, Vec<i32>)> {
        let scale = old as f64 / new as f64;
        let stretch = scale.max(1.0);
        let support = self.support() * stretch;
        let of_pixel = |pixel: usize| {
            let centre = (pixel as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(old);
            let weights = (first..end).map(|at| self.weight((at as f64 - centre + 0.5) * (1.0 / stretch)));
            let weights: Vec<f64> = weights.collect();
            let sum: f64 = weights.iter().sum();
            let fixed = |weight: f64| {
                let share = if sum == 0.0 { weight } else { weight / sum };
                let scaled = share * f64::from(1 << PRECISION);
                if share < 0.0 {
                    (scaled - 0.5) as i32
                } else {
                    (scaled + 0.5) as i32
                }
            };
            (first, weights.into_iter().map(fixed).collect())
        };
        (0..new).map(of_pixel).collect()
    }
}

/// Resizes an image.
pub(super) fn resize(pixels: Pixels, width: usize, height: usize, filter: Filter) -> Pixels {
    if (pixels.width, pixels.height) == (width, height) {
        return pixels;
    }
    if filter == Filter::Nearest {
        return nearest(&pixels, width, height);
    }
    let wide = if pixels.width == width {
        pixels
    } else {
        horizontally(&pixels, &filter.coefficients(pixels.width, width))
    };
    if wide.height == height {
        return wide;
    }
    vertically(&wide, &filter.coefficients(wide.height, height))
}

fn horizontally(pixels: &Pixels, coefficients: &[(usize, Vec<i32>)]) -> Pixels {
    let channels = pixels.channels;
    let mut data = Vec::with_capacity(pixels.height * coefficients.len() * channels);
    for row in pixels.data.chunks_exact(pixels.width * channels) {
        for (first, weights) in coefficients {
            let window = row.get(first * channels..).unwrap_or_default();
            for channel in 0..channels {
                let values = window.iter().skip(channel).step_by(channels);
                data.push(weighted(values, weights));
            }
        }
    }
    Pixels {
        width: coefficients.len(),
        data,
        ..*pixels
    }
}

fn vertically(pixels: &Pixels, coefficients: &[(usize, Vec<i32>)]) -> Pixels {
    let stride = pixels.width * pixels.channels;
    let mut data = Vec::with_capacity(coefficients.len() * stride);
    let mut sums = vec![0_i32; stride];
    for (first, weights) in coefficients {
        sums.fill(1 << (PRECISION - 1));
        let rows = pixels.data.chunks_exact(stride).skip(*first);
        for (row, weight) in rows.zip(weights) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum = sum.wrapping_add(i32::from(*value).wrapping_mul(*weight));
            }
        }
        data.extend(sums.iter().map(|sum| clipped(*sum)));
    }
    Pixels {
        height: coefficients.len(),
        data,
        ..*pixels
    }
}

fn weighted<'a>(values: impl Iterator<Item = &'a u8>, weights: &[i32]) -> u8 {
    let sum = values
        .zip(weights)
        .fold(1_i32 << (PRECISION - 1), |sum, (value, weight)| {
            sum.wrapping_add(i32::from(*value).wrapping_mul(*weight))
        });
    clipped(sum)
}

fn clipped(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

fn nearest(pixels: &Pixels, width: usize, height: usize) -> Pixels {
    let at = |index: usize, old: usize, new: usize| {
        let place = ((index as f64 + 0.5) * (old as f64 / new as f64)) as usize;
        place.min(old - 1)
    };
    let channels = pixels.channels;
    let mut data = Vec::with_capacity(width * height * channels);
    for y in 0..height {
        let row = at(y, pixels.height, height) * pixels.width;
        for x in 0..width {
            let from = (row + at(x, pixels.width, width)) * channels;
            data.extend_from_slice(pixels.data.get(from..from + channels).unwrap_or_default());
        }
    }
    Pixels {
        width,
        height,
        data,
        ..*pixels
    }
}
