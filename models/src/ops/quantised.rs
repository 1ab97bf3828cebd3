//! Products with quantised matrices, in integer arithmetic.
//!
//! Like the weights, a row's elements are quantised in blocks of 32 with a scale each, but to 16 bits. The products of
//! two blocks are summed exactly in i32; the sum is multiplied by both scales and added to the result in f32, block by
//! block. An element `x` of a block with maximum magnitude `a` becomes `x + d` with `|d| <= a / 65,534`, which is
//! 1/258 of the rounding of a weight in `Q8_0`.
//!
//! Each element of the result is computed in the same order of operations, independent of the other rows, so a row's
//! result is bit-identical in any batch. If a row has an element that is not finite, its results are NaN.

use pulp::{Arch, bytemuck::cast_slice};

use super::gemm::{add_bias, interleaved};
use super::packed::{LINE, PANEL, Panels, Q4_0_TILE, Q8_0_TILE};
use crate::precision::{BLOCK, f16_to_f32};

/// Maximum quantised number of an element.
const MAX_CODE: f32 = 32_767.0;
/// Blocks whose elements are all smaller in magnitude are zero.
const MIN_MAGNITUDE: f32 = 1e-30;
/// Number of row pairs in a block.
const PAIRS: usize = BLOCK / 2;

/// Computes `rows * packed + bias` on this thread, for `stride` columns; `out` is `[m, stride]`.
pub(super) fn multiply(
    out: &mut [f32],
    stride: usize,
    rows: &[f32],
    inputs: usize,
    packed: Panels<'_>,
    bias: &[f32],
) {
    let product = Product {
        rows,
        inputs,
        packed,
        bias,
        out,
        stride,
    };
    match Arch::new() {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => simd.vectorize(Run(product, simd)),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(Run(product, simd)),
        _ => product.compute(Portable),
    }
}

/// A product of some rows with the first panels of `packed`, as many as `out` has columns.
struct Product<'a> {
    rows: &'a [f32],
    inputs: usize,
    packed: Panels<'a>,
    bias: &'a [f32],
    out: &'a mut [f32],
    stride: usize,
}

/// A product with the instructions of a processor.
#[cfg(target_arch = "x86_64")]
struct Run<'a, I>(Product<'a>, I);

#[cfg(target_arch = "x86_64")]
impl<I: Instructions> pulp::NullaryFnOnce for Run<'_, I> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        self.0.compute(self.1);
    }
}

/// SIMD instructions on vectors of a panel's columns.
trait Instructions: Copy {
    /// Number of columns per vector.
    const COLUMNS: usize;
    /// Two i16 per column.
    type Pairs: Copy;
    /// An i32 per column.
    type Sums: Copy;
    /// An f32 per column.
    type Floats: Copy;

    /// Returns a vector with the same pair in every column.
    fn pairs(self, pair: u32) -> Self::Pairs;
    /// Returns a vector with the same number in every column.
    fn sums(self, value: i32) -> Self::Sums;
    /// Returns a vector with the same number in every column.
    fn floats(self, value: f32) -> Self::Floats;
    /// Reads vector `index` of a line of scales.
    fn scales(self, line: &[u32; LINE], index: usize) -> Self::Floats;
    /// Reads vector `index` of a line of `Q8_0`.
    fn q8_0(self, line: &[u32; LINE], index: usize) -> Self::Pairs;
    /// Reads vector `index` of a line of `Q4_0`: the lower halves of its bytes, and the upper halves.
    fn q4_0(self, line: &[u32; LINE], index: usize) -> [Self::Pairs; 2];
    /// Adds the products of both numbers of each pair.
    fn add_products(self, sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums;
    /// Adds `sums` times the scales of their columns and of the row.
    fn add_scaled(
        self,
        totals: Self::Floats,
        sums: Self::Sums,
        columns: Self::Floats,
        row: f32,
    ) -> Self::Floats;
    /// Writes vector `index` of a line of results.
    fn store(self, totals: Self::Floats, out: &mut [f32; PANEL], index: usize);
}

/// Quantised rows that are computed together, interleaved.
struct Group {
    size: usize,
    /// Two elements per word, `[inputs / 2, size]`.
    pairs: Vec<u32>,
    /// `[blocks, size]`.
    scales: Vec<f32>,
    /// -8 times the block sums, `[blocks, size]`.
    offsets: Vec<i32>,
}

impl Group {
    #[inline(always)]
    fn new(rows: &[f32], size: usize) -> Self {
        let (blocks, _) = rows.as_chunks::<BLOCK>();
        let mut pairs = Vec::with_capacity(rows.len() / 2);
        let mut scales = Vec::with_capacity(blocks.len());
        let mut offsets = Vec::with_capacity(blocks.len());
        for block in blocks {
            let (scale, numbers) = rounded(block);
            scales.push(scale);
            offsets.push(-8 * numbers.iter().map(|number| i32::from(*number)).sum::<i32>());
            pairs.extend_from_slice(cast_slice::<i16, u32>(&numbers));
        }
        let width = blocks.len() / size.max(1);
        Self {
            size,
            pairs: interleaved(&pairs, width * PAIRS),
            scales: interleaved(&scales, width),
            offsets: interleaved(&offsets, width),
        }
    }
}

/// Returns the scale of a block, and its quantised elements: `element = scale * number`.
#[inline(always)]
fn rounded(block: &[f32; BLOCK]) -> (f32, [i16; BLOCK]) {
    /// Adding this to a small number rounds the number to an integer in the lowest bits.
    const ROUNDING: f32 = 12_582_912.0;
    // Magnitudes have the same order as their bits, in which NaN is the largest.
    let magnitudes = block.iter().map(|value| value.to_bits() & 0x7fff_ffff);
    let largest = f32::from_bits(magnitudes.fold(0, u32::max));
    let (scale, inverse) = if !largest.is_finite() {
        (f32::NAN, 0.0)
    } else if largest < MIN_MAGNITUDE {
        (0.0, 0.0)
    } else {
        (largest / MAX_CODE, MAX_CODE / largest)
    };
    let mut numbers = [0; BLOCK];
    for (number, value) in numbers.iter_mut().zip(block) {
        *number = (value * inverse + ROUNDING).to_bits() as i16;
    }
    (scale, numbers)
}

impl Product<'_> {
    #[inline(always)]
    fn compute<I: Instructions>(self, simd: I) {
        match self.packed {
            Panels::Q8_0(_) => self.groups::<I, Q8_0_TILE>(simd),
            Panels::Q4_0(_) => self.groups::<I, Q4_0_TILE>(simd),
            _ => {}
        }
    }

    /// Computes rows in groups that fill the registers.
    #[inline(always)]
    fn groups<I: Instructions, const TILE: usize>(mut self, simd: I) {
        let wide = I::COLUMNS == PANEL / 2;
        let mut groups = Vec::new();
        let mut rest = self.rows;
        while !rest.is_empty() {
            let size = match rest.len() / self.inputs {
                6.. if wide => 6,
                // Two equal groups instead of a group of four and a remainder.
                3 | 5 | 6 => 3,
                4.. => 4,
                2 => 2,
                0 => break,
                _ => 1,
            };
            let (rows, left) = rest.split_at(size * self.inputs);
            groups.push(Group::new(rows, size));
            rest = left;
        }
        for index in 0..self.stride.div_ceil(PANEL) {
            let words = self.packed.skip(index, self.inputs).first(self.inputs);
            let (tiles, _) = words.as_chunks::<TILE>();
            let mut row = 0;
            for group in &groups {
                match (group.size, wide) {
                    (6, _) => self.kernel::<I, TILE, 2, 6>(simd, tiles, group, index, row),
                    (4, _) => self.kernel::<I, TILE, 2, 4>(simd, tiles, group, index, row),
                    (3, _) => self.kernel::<I, TILE, 2, 3>(simd, tiles, group, index, row),
                    (2, true) => self.kernel::<I, TILE, 2, 2>(simd, tiles, group, index, row),
                    (2, false) => self.kernel::<I, TILE, 4, 2>(simd, tiles, group, index, row),
                    (_, true) => self.kernel::<I, TILE, 2, 1>(simd, tiles, group, index, row),
                    (_, false) => self.kernel::<I, TILE, 4, 1>(simd, tiles, group, index, row),
                }
                row += group.size;
            }
        }
    }

    /// Computes a group of rows with panel `index`, `VECTORS` vectors at a time.
    #[inline(always)]
    fn kernel<I: Instructions, const TILE: usize, const VECTORS: usize, const SIZE: usize>(
        &mut self,
        simd: I,
        tiles: &[[u32; TILE]],
        group: &Group,
        index: usize,
        row: usize,
    ) {
        let (pairs, _) = group.pairs.as_chunks::<SIZE>();
        let (pairs, _) = pairs.as_chunks::<PAIRS>();
        let (scales, _) = group.scales.as_chunks::<SIZE>();
        let (offsets, _) = group.offsets.as_chunks::<SIZE>();
        for from in (0..PANEL / I::COLUMNS).step_by(VECTORS) {
            let first = index * PANEL + from * I::COLUMNS;
            if first >= self.stride {
                break;
            }
            let mut totals = [[simd.floats(0.0); VECTORS]; SIZE];
            let blocks = tiles.iter().zip(pairs).zip(scales.iter().zip(offsets));
            for ((tile, pairs), (scales, offsets)) in blocks {
                let (lines, _) = tile.as_chunks::<LINE>();
                let Some((columns, lines)) = lines.split_first() else {
                    continue;
                };
                let mut sums = [[simd.sums(0); VECTORS]; SIZE];
                if TILE == Q4_0_TILE {
                    for (sums, offset) in sums.iter_mut().zip(offsets) {
                        *sums = [simd.sums(*offset); VECTORS];
                    }
                    let (low, high) = pairs.split_at(PAIRS / 2);
                    for (line, (low, high)) in lines.iter().zip(low.iter().zip(high)) {
                        let mut weights = [[simd.pairs(0); VECTORS]; 2];
                        let [first, second] = &mut weights;
                        for (place, (first, second)) in first.iter_mut().zip(second).enumerate() {
                            [*first, *second] = simd.q4_0(line, from + place);
                        }
                        let [first, second] = &weights;
                        add_products(simd, &mut sums, low, first);
                        add_products(simd, &mut sums, high, second);
                    }
                } else {
                    for (line, pairs) in lines.iter().zip(pairs) {
                        let mut weights = [simd.pairs(0); VECTORS];
                        for (place, weights) in weights.iter_mut().enumerate() {
                            *weights = simd.q8_0(line, from + place);
                        }
                        add_products(simd, &mut sums, pairs, &weights);
                    }
                }
                for place in 0..VECTORS {
                    let columns = simd.scales(columns, from + place);
                    for ((totals, sums), scale) in totals.iter_mut().zip(&sums).zip(scales) {
                        if let (Some(total), Some(sum)) = (totals.get_mut(place), sums.get(place)) {
                            *total = simd.add_scaled(*total, *sum, columns, *scale);
                        }
                    }
                }
            }
            let bias = self.bias.get(first..).unwrap_or_default();
            let columns = (VECTORS * I::COLUMNS).min(self.stride - first);
            let rows = self.out.chunks_exact_mut(self.stride).skip(row);
            for (totals, out) in totals.iter().zip(rows) {
                let mut line = [0.0; PANEL];
                for (place, total) in totals.iter().enumerate() {
                    simd.store(*total, &mut line, place);
                }
                add_bias(out, &line, bias, first, columns);
            }
        }
    }
}

/// Adds the products of two rows of a panel with a pair of elements of each row of a group.
#[inline(always)]
fn add_products<I: Instructions, const VECTORS: usize, const SIZE: usize>(
    simd: I,
    sums: &mut [[I::Sums; VECTORS]; SIZE],
    pairs: &[u32; SIZE],
    weights: &[I::Pairs; VECTORS],
) {
    for (sums, pair) in sums.iter_mut().zip(pairs) {
        let pair = simd.pairs(*pair);
        for (sum, weights) in sums.iter_mut().zip(weights) {
            *sum = simd.add_products(*sum, pair, *weights);
        }
    }
}

/// Returns `N` words of a line, at multiple `index` of `N`.
#[inline(always)]
fn words<const N: usize>(line: &[u32; LINE], index: usize) -> [u32; N] {
    let (parts, _) = line.as_chunks::<N>();
    parts.get(index).copied().unwrap_or([0; N])
}

/// Returns the scales of `N` columns from `WORDS` words, which hold two each.
#[inline(always)]
fn scales<const N: usize, const WORDS: usize>(line: &[u32; LINE], index: usize) -> [f32; N] {
    let words = words::<WORDS>(line, index);
    let mut scales = [0.0; N];
    for (scale, bits) in scales.iter_mut().zip(cast_slice::<u32, u16>(&words)) {
        *scale = f16_to_f32(*bits);
    }
    scales
}

#[cfg(target_arch = "x86_64")]
mod x86;

/// Portable implementation, vectorised by the compiler. The numbers of even rows and those of odd rows are apart, so that each is
/// one vector of i16, which Neon multiplies and adds to i32 in one instruction.
#[derive(Clone, Copy)]
struct Portable;

impl Instructions for Portable {
    const COLUMNS: usize = 8;
    type Pairs = [[i16; 8]; 2];
    type Sums = [i32; 8];
    type Floats = [f32; 8];

    fn pairs(self, pair: u32) -> Self::Pairs {
        pulp::cast::<u32, [i16; 2]>(pair).map(|number| [number; 8])
    }

    fn sums(self, value: i32) -> Self::Sums {
        [value; 8]
    }

    fn floats(self, value: f32) -> Self::Floats {
        [value; 8]
    }

    fn scales(self, line: &[u32; LINE], index: usize) -> Self::Floats {
        scales::<8, 4>(line, index)
    }

    fn q8_0(self, line: &[u32; LINE], index: usize) -> Self::Pairs {
        let bytes: [i16; 8] = pulp::cast(words::<4>(line, index));
        [bytes.map(|pair| pair << 8 >> 8), bytes.map(|pair| pair >> 8)]
    }

    fn q4_0(self, line: &[u32; LINE], index: usize) -> [Self::Pairs; 2] {
        let bytes: [u16; 8] = pulp::cast(words::<4>(line, index));
        let numbers = |shift: u32| bytes.map(|pair| (pair >> shift & 15).cast_signed());
        [[numbers(0), numbers(8)], [numbers(4), numbers(12)]]
    }

    fn add_products(self, mut sums: Self::Sums, a: Self::Pairs, b: Self::Pairs) -> Self::Sums {
        for (a, b) in a.iter().zip(&b) {
            for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
                *sum += i32::from(*a) * i32::from(*b);
            }
        }
        sums
    }

    fn add_scaled(
        self,
        mut totals: Self::Floats,
        sums: Self::Sums,
        columns: Self::Floats,
        row: f32,
    ) -> Self::Floats {
        for (total, (sum, column)) in totals.iter_mut().zip(sums.iter().zip(columns)) {
            *total += *sum as f32 * (column * row);
        }
        totals
    }

    fn store(self, totals: Self::Floats, out: &mut [f32; PANEL], index: usize) {
        let (parts, _) = out.as_chunks_mut::<8>();
        if let Some(part) = parts.get_mut(index) {
            *part = totals;
        }
    }
}

#[cfg(test)]
mod tests;
