//! Signs, drawn: outlines of a few shapes, each a little different every time.

use rand::Rng;

use crate::scenes::CROP;

/// What signs there are.
pub(crate) const NAMES: [&str; SIGNS] = ["square", "ring", "triangle", "plus", "cross", "bars"];
/// How many.
pub(crate) const SIGNS: usize = 6;

/// A sign, `[CROP, CROP]` row-major, intensities from 0 to 1.
pub(crate) fn draw(sign: usize, rng: &mut impl Rng) -> Vec<f32> {
    let middle = (CROP as f32 - 1.0) / 2.0;
    let (shift_x, shift_y) = (rng.random_range(-0.5..=0.5), rng.random_range(-0.5..=0.5));
    let radius = rng.random_range(2.6..=3.4);
    let half_width = rng.random_range(0.35..=0.7);
    let (sine, cosine) = rng.random_range(-0.25_f32..=0.25).sin_cos();
    let mut pixels = Vec::with_capacity(CROP * CROP);
    for row in 0..CROP {
        for column in 0..CROP {
            let (x, y) = (column as f32 - middle - shift_x, row as f32 - middle - shift_y);
            let turned = (cosine * x + sine * y, cosine * y - sine * x);
            let beyond = distance(sign, turned, radius) - half_width;
            pixels.push((1.0 - beyond / 0.6).clamp(0.0, 1.0));
        }
    }
    pixels
}

/// How far a point is from the lines of a sign of that radius, pixels.
fn distance(sign: usize, (x, y): (f32, f32), radius: f32) -> f32 {
    /// Distance from a segment of an axis: `across` it, and `along` it up to `end`.
    fn stroke(across: f32, along: f32, end: f32) -> f32 {
        across.abs().hypot((along.abs() - end).max(0.0))
    }
    let diagonal = std::f32::consts::FRAC_1_SQRT_2;
    match sign {
        0 => (x.abs().max(y.abs()) - 0.85 * radius).abs(),
        1 => (x.hypot(y) - radius).abs(),
        2 => {
            // The farthest of three sides, whose normals stand at 120 degrees.
            let sides = [y, -0.5 * y + 0.866 * x, -0.5 * y - 0.866 * x];
            let farthest = sides.into_iter().fold(f32::MIN, f32::max);
            (farthest - 0.6 * radius).abs()
        }
        3 => stroke(x, y, radius).min(stroke(y, x, radius)),
        4 => {
            let (u, v) = (diagonal * (x + y), diagonal * (x - y));
            stroke(u, v, radius).min(stroke(v, u, radius))
        }
        _ => stroke(y.abs() - 0.55 * radius, x, radius),
    }
}
