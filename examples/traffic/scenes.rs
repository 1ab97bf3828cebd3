//! Scenes, composed: digits that people wrote and signs that are drawn, scattered over a noisy image with scribbles between them.

use kaskade_models::architectures::grid_detector::GridDetectorConfig;
use kaskade_models::idx::LabelledImages;
use rand::Rng;
use rand::seq::IndexedRandom;

use crate::signs::{self, SIGNS};

/// Side of a cell, in which at most one object is, pixels.
pub(crate) const CELL: usize = 10;
/// Side of an object, pixels.
pub(crate) const CROP: usize = 8;
/// Cells down and across.
pub(crate) const CELLS: usize = 4;
/// Highest intensity, that of the digits' files.
pub(crate) const WHITE: f32 = 16.0;
/// What the objects are, and the names of the tasks that look closer.
pub(crate) const KINDS: [&str; 2] = ["digit", "sign"];
/// Digits.
pub(crate) const DIGITS: usize = 10;

/// Share of the cells with a digit, and with a sign.
const SHARES: [f64; 2] = [0.24, 0.12];
/// Share of the other cells with a scribble.
const SCRIBBLED: f64 = 0.85;
/// Intensity of the faintest objects, of 1.
pub(crate) const FAINT: f32 = 0.3;
/// Most that a pixel is changed by, of a full intensity of 1.
pub(crate) const NOISE: f32 = 0.22;

/// The grid of a scene, as a detector of that threshold sees it.
pub(crate) fn grid(threshold: f32) -> GridDetectorConfig {
    GridDetectorConfig {
        cell: [1, CELL, CELL],
        grid: [CELLS, CELLS],
        crop: CROP,
        kinds: KINDS.map(str::to_owned).to_vec(),
        threshold,
    }
}

/// An object in a cell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Object {
    /// Which of [`KINDS`].
    pub kind: usize,
    /// Which digit or sign.
    pub class: usize,
    /// Where it begins in its cell: down and across.
    pub place: [usize; 2],
}

impl Object {
    /// Its label in a file: 0 is nothing, digits come first, signs after them.
    pub(crate) fn label(&self) -> u8 {
        let before = if self.kind == 0 { 0 } else { DIGITS };
        u8::try_from(1 + before + self.class).unwrap_or(u8::MAX)
    }
}

/// What draws.
pub(crate) struct Artist<'a> {
    digits: Vec<(&'a [u8], u8)>,
}

impl<'a> Artist<'a> {
    /// One who copies these digits.
    pub(crate) fn new(digits: &'a LabelledImages) -> Self {
        Self {
            digits: digits.iter().collect(),
        }
    }

    /// A cell, `[CELL, CELL]` row-major, intensities from 0 to 1.
    pub(crate) fn cell(&self, rng: &mut impl Rng) -> (Vec<f32>, Option<Object>) {
        let mut cell = vec![0.0; CELL * CELL];
        let drawn: f64 = rng.random();
        let [digits, signs] = SHARES;
        let object = if drawn < digits + signs {
            let kind = usize::from(drawn >= digits);
            Some(self.object(kind, &mut cell, rng))
        } else {
            if rng.random_bool(SCRIBBLED) {
                self.scribble(&mut cell, rng);
            }
            None
        };
        for pixel in &mut cell {
            *pixel = (*pixel + rng.random_range(-NOISE..=NOISE)).clamp(0.0, 1.0);
        }
        (cell, object)
    }

    fn object(&self, kind: usize, cell: &mut [f32], rng: &mut impl Rng) -> Object {
        let place = [0; 2].map(|_: usize| rng.random_range(0..=CELL - CROP));
        let (pixels, class) = if kind == 0 {
            self.digit(rng)
        } else {
            let sign = rng.random_range(0..SIGNS);
            (signs::draw(sign, rng), sign)
        };
        let strength = rng.random_range(FAINT..=1.0);
        paste(&pixels, place.map(usize::cast_signed), strength, cell);
        Object { kind, class, place }
    }

    fn digit(&self, rng: &mut impl Rng) -> (Vec<f32>, usize) {
        let chosen = self.digits.choose(rng);
        let (pixels, digit) = chosen.copied().unwrap_or((&[], 0));
        (
            pixels.iter().map(|pixel| f32::from(*pixel) / WHITE).collect(),
            usize::from(digit),
        )
    }

    /// What is no object: a part of one that lies mostly outside, or a line.
    fn scribble(&self, cell: &mut [f32], rng: &mut impl Rng) {
        let strength = rng.random_range(FAINT..=1.0);
        if rng.random_bool(0.5) {
            let pixels = if rng.random_bool(0.5) {
                self.digit(rng).0
            } else {
                signs::draw(rng.random_range(0..SIGNS), rng)
            };
            // Beyond the cell's edge in one direction, anywhere in the other.
            let off = rng.random_range(4..=6_i64);
            let far = if rng.random_bool(0.5) { off } else { 2 - off };
            let near = rng.random_range(0..=2_i64);
            let place = if rng.random_bool(0.5) {
                [far, near]
            } else {
                [near, far]
            };
            return paste(&pixels, place.map(|at| at as isize), strength, cell);
        }
        let mut point = || [0.0; 2].map(|_: f32| rng.random_range(0.0..CELL as f32));
        let ([from_y, from_x], [to_y, to_x]) = (point(), point());
        for step in 0..=20_u8 {
            let way = f32::from(step) / 20.0;
            let between = |from: f32, to: f32| (from + way * (to - from)) as usize;
            let (y, x) = (between(from_y, to_y), between(from_x, to_x));
            if let Some(pixel) = cell.get_mut(y * CELL + x) {
                *pixel = strength;
            }
        }
    }

    /// A scene, `[CELLS * CELL, CELLS * CELL]` row-major, and the label of every cell.
    pub(crate) fn scene(&self, rng: &mut impl Rng) -> (Vec<u8>, Vec<u8>) {
        const SIDE: usize = CELLS * CELL;
        let mut pixels = vec![0; SIDE * SIDE];
        let mut labels = Vec::with_capacity(CELLS * CELLS);
        for at in 0..CELLS * CELLS {
            let (cell, object) = self.cell(rng);
            labels.push(object.map_or(0, |object| object.label()));
            for (row, values) in cell.chunks(CELL).enumerate() {
                let start = ((at / CELLS) * CELL + row) * SIDE + (at % CELLS) * CELL;
                for (pixel, value) in pixels.iter_mut().skip(start).zip(values) {
                    *pixel = (value * WHITE).round() as u8;
                }
            }
        }
        (pixels, labels)
    }
}

/// Puts `[CROP, CROP]` pixels into a cell, where they lie within it.
fn paste(pixels: &[f32], [down, across]: [isize; 2], strength: f32, cell: &mut [f32]) {
    let side = CELL.cast_signed();
    for (row, values) in (down..).zip(pixels.chunks(CROP)) {
        for (column, value) in (across..).zip(values) {
            if (0..side).contains(&row)
                && (0..side).contains(&column)
                && let Some(pixel) = cell.get_mut((row * side + column) as usize)
            {
                *pixel = value * strength;
            }
        }
    }
}
