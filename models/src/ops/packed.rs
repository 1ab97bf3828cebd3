//! Weights of linear layers as devices compute with them, and the panels of the CPU kernels.
//!
//! A panel holds [`PANEL`] columns of a matrix `[inputs, outputs]`, row by row, in the matrix's type. Kernels convert
//! some rows of a panel to f32 at a time, which stay in the first cache; every sum is f32. Blocks of quantised types run
//! along the inputs: 32 rows of a panel are 32 scales in f16, one per column, followed by the numbers row by row.

use pulp::bytemuck::cast_slice;
use rayon::prelude::*;

use crate::precision::{BLOCK, WeightType, bf16_to_f32, f16_to_f32, quantise_q4_0, quantise_q8_0};

/// Columns of a panel: two vectors of AVX-512, four of AVX2, eight of Neon.
pub(crate) const PANEL: usize = 32;
/// Words of the scales of [`BLOCK`] rows of a panel.
const SCALES: usize = PANEL / 2;
/// Words of [`BLOCK`] rows of a panel of `Q8_0`.
const Q8_0_TILE: usize = SCALES + BLOCK * PANEL / 4;
/// Words of [`BLOCK`] rows of a panel of `Q4_0`: rows `i` and `i + 16` share bytes.
const Q4_0_TILE: usize = SCALES + BLOCK * PANEL / 8;

/// The weight of a linear layer as a device computes with it, in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreparedWeight {
    /// Its type.
    pub(crate) kind: WeightType,
    /// Its memory; words of f32 or parts of smaller numbers.
    pub(crate) words: Vec<u32>,
}

impl PreparedWeight {
    /// Creates a weight of f32.
    pub(crate) fn f32(values: Vec<f32>) -> Self {
        Self {
            kind: WeightType::F32,
            words: to_words(values),
        }
    }

    /// Packs a row-major matrix `[inputs, outputs]` into panels of `kind`, or of f32 if `kind` cannot represent it.
    pub(crate) fn pack(weight: &[f32], inputs: usize, outputs: usize, kind: WeightType) -> Self {
        let kind = kind.for_rows(inputs, weight);
        if kind == WeightType::F32 {
            return Self::f32(pack(weight, inputs, outputs));
        }
        let panels = outputs.div_ceil(PANEL);
        let mut words = vec![0; panels * panel_words(kind, inputs)];
        let each = panel_words(kind, inputs).max(1);
        words.par_chunks_mut(each).enumerate().for_each(|(index, panel)| {
            let tiles = panel.chunks_mut((panel_words(kind, BLOCK.min(inputs))).max(1));
            let lines = weight.chunks(BLOCK * outputs.max(1));
            for (tile, lines) in tiles.zip(lines) {
                pack_tile(tile, lines, outputs, index * PANEL, kind);
            }
        });
        Self { kind, words }
    }

    /// Its memory, bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.words.as_slice()) as u64
    }

    /// The panels that it was packed into.
    pub(super) fn panels(&self) -> Panels<'_> {
        match self.kind {
            WeightType::F32 => Panels::F32(cast_slice(&self.words)),
            WeightType::Bf16 => Panels::Bf16(cast_slice(&self.words)),
            WeightType::F16 => Panels::F16(cast_slice(&self.words)),
            WeightType::Q8_0 => Panels::Q8_0(&self.words),
            WeightType::Q4_0 => Panels::Q4_0(&self.words),
        }
    }
}

/// Reinterprets f32 as words; the memory is reused.
pub(crate) fn to_words(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Reinterprets words as f32; the memory is reused.
pub(crate) fn from_words(words: Vec<u32>) -> Vec<f32> {
    words.into_iter().map(f32::from_bits).collect()
}

/// Packs a row-major matrix `[inputs, outputs]` into panels of f32; the last one is padded with zeros.
pub(crate) fn pack(weight: &[f32], inputs: usize, outputs: usize) -> Vec<f32> {
    let mut packed = vec![0.0; outputs.div_ceil(PANEL) * PANEL * inputs];
    let panels = packed.chunks_mut((PANEL * inputs).max(1));
    for (index, panel) in panels.enumerate() {
        let from = index * PANEL;
        let columns = PANEL.min(outputs - from);
        for (row, target) in weight.chunks(outputs.max(1)).zip(panel.chunks_mut(PANEL)) {
            if let (Some(source), Some(target)) = (row.get(from..from + columns), target.get_mut(..columns)) {
                target.copy_from_slice(source);
            }
        }
    }
    packed
}

/// Words of a panel with this many rows.
const fn panel_words(kind: WeightType, inputs: usize) -> usize {
    match kind {
        WeightType::F32 => inputs * PANEL,
        WeightType::Bf16 | WeightType::F16 => inputs * PANEL / 2,
        WeightType::Q8_0 => inputs / BLOCK * Q8_0_TILE,
        WeightType::Q4_0 => inputs / BLOCK * Q4_0_TILE,
    }
}

/// Packs up to [`BLOCK`] rows of a matrix, whose columns from `first` on belong to the panel.
fn pack_tile(tile: &mut [u32], lines: &[f32], outputs: usize, first: usize, kind: WeightType) {
    // By column: the blocks of a quantised type.
    let mut columns = [[0.0; BLOCK]; PANEL];
    for (row, line) in lines.chunks(outputs).enumerate() {
        for (column, value) in columns.iter_mut().zip(line.iter().skip(first)) {
            if let Some(slot) = column.get_mut(row) {
                *slot = *value;
            }
        }
    }
    let at = |column: usize, row: usize| -> f32 {
        columns
            .get(column)
            .and_then(|column| column.get(row))
            .copied()
            .unwrap_or_default()
    };
    match kind {
        WeightType::F32 => {}
        WeightType::Bf16 | WeightType::F16 => {
            let bits = |value: f32| match kind {
                WeightType::Bf16 => half::bf16::from_f32(value).to_bits(),
                _ => half::f16::from_f32(value).to_bits(),
            };
            let places = pulp::bytemuck::cast_slice_mut::<u32, u16>(tile);
            for (index, slot) in places.iter_mut().enumerate() {
                *slot = bits(at(index % PANEL, index / PANEL));
            }
        }
        WeightType::Q8_0 | WeightType::Q4_0 => {
            let Some((scales, numbers)) = tile.split_at_mut_checked(SCALES) else {
                return;
            };
            let scales = pulp::bytemuck::cast_slice_mut::<u32, u16>(scales);
            let numbers = pulp::bytemuck::cast_slice_mut::<u32, u8>(numbers);
            for ((index, column), slot) in columns.iter().enumerate().zip(scales) {
                let places = numbers.iter_mut().skip(index).step_by(PANEL);
                if kind == WeightType::Q8_0 {
                    let (scale, block) = quantise_q8_0(column);
                    *slot = scale;
                    for (place, number) in places.zip(block) {
                        *place = number.cast_unsigned();
                    }
                } else {
                    let (scale, block) = quantise_q4_0(column);
                    *slot = scale;
                    let (low, high) = block.split_at(BLOCK / 2);
                    for (place, (low, high)) in places.zip(low.iter().zip(high)) {
                        *place = low | high << 4;
                    }
                }
            }
        }
    }
}

/// The panels of a packed matrix, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Panels<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u16]),
    F16(&'a [u16]),
    Q8_0(&'a [u32]),
    Q4_0(&'a [u32]),
}

impl<'a> Panels<'a> {
    /// Returns the panels from `first` on; a panel has `inputs` rows.
    pub(super) fn skip(self, first: usize, inputs: usize) -> Self {
        fn rest<T>(values: &[T], from: usize) -> &[T] {
            values.get(from..).unwrap_or_default()
        }
        match self {
            Self::F32(values) => Self::F32(rest(values, first * inputs * PANEL)),
            Self::Bf16(values) => Self::Bf16(rest(values, first * inputs * PANEL)),
            Self::F16(values) => Self::F16(rest(values, first * inputs * PANEL)),
            Self::Q8_0(words) => Self::Q8_0(rest(words, first * panel_words(WeightType::Q8_0, inputs))),
            Self::Q4_0(words) => Self::Q4_0(rest(words, first * panel_words(WeightType::Q4_0, inputs))),
        }
    }

    /// Returns rows of the first panel, from row `from` on, as many as `scratch` has places for; `from` and their number
    /// are multiples of [`BLOCK`] or reach the last row. Only f32 is not copied.
    #[expect(
        clippy::inline_always,
        reason = "only code inlined into `with_simd` is vectorised"
    )]
    #[inline(always)]
    pub(super) fn rows<'b>(self, from: usize, scratch: &'b mut [f32]) -> &'b [f32]
    where
        'a: 'b,
    {
        let count = scratch.len() / PANEL;
        match self {
            Self::F32(values) => {
                return values
                    .get(from * PANEL..(from + count) * PANEL)
                    .unwrap_or_default();
            }
            Self::Bf16(values) => {
                let source = values.get(from * PANEL..).unwrap_or_default();
                for (slot, bits) in scratch.iter_mut().zip(source) {
                    *slot = bf16_to_f32(*bits);
                }
            }
            Self::F16(values) => {
                let source = values.get(from * PANEL..).unwrap_or_default();
                for (slot, bits) in scratch.iter_mut().zip(source) {
                    *slot = f16_to_f32(*bits);
                }
            }
            Self::Q8_0(words) => {
                let (tiles, _) = words.as_chunks::<Q8_0_TILE>();
                let (targets, _) = scratch.as_chunks_mut::<{ BLOCK * PANEL }>();
                for (tile, target) in tiles.iter().skip(from / BLOCK).zip(targets) {
                    expand_q8_0(tile, target);
                }
            }
            Self::Q4_0(words) => {
                let (tiles, _) = words.as_chunks::<Q4_0_TILE>();
                let (targets, _) = scratch.as_chunks_mut::<{ BLOCK * PANEL }>();
                for (tile, target) in tiles.iter().skip(from / BLOCK).zip(targets) {
                    expand_q4_0(tile, target);
                }
            }
        }
        scratch
    }
}

#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn scales_of(words: &[u32]) -> [f32; PANEL] {
    let mut scales = [0.0; PANEL];
    for (scale, bits) in scales.iter_mut().zip(cast_slice::<u32, u16>(words)) {
        *scale = f16_to_f32(*bits);
    }
    scales
}

#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn expand_q8_0(tile: &[u32; Q8_0_TILE], target: &mut [f32; BLOCK * PANEL]) {
    let (scales, numbers) = tile.split_at(SCALES);
    let scales = scales_of(scales);
    let (rows, _) = cast_slice::<u32, i8>(numbers).as_chunks::<PANEL>();
    let (targets, _) = target.as_chunks_mut::<PANEL>();
    for (row, target) in rows.iter().zip(targets) {
        for ((slot, number), scale) in target.iter_mut().zip(row).zip(&scales) {
            *slot = f32::from(*number) * scale;
        }
    }
}

#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
#[inline(always)]
fn expand_q4_0(tile: &[u32; Q4_0_TILE], target: &mut [f32; BLOCK * PANEL]) {
    let (scales, numbers) = tile.split_at(SCALES);
    let scales = scales_of(scales);
    let (rows, _) = cast_slice::<u32, u8>(numbers).as_chunks::<PANEL>();
    let (targets, _) = target.as_chunks_mut::<PANEL>();
    let (low, high) = targets.split_at_mut(BLOCK / 2);
    for (row, (low, high)) in rows.iter().zip(low.iter_mut().zip(high)) {
        for ((slot, pair), scale) in low.iter_mut().zip(row).zip(&scales) {
            *slot = f32::from((pair & 15).cast_signed() - 8) * scale;
        }
        for ((slot, pair), scale) in high.iter_mut().zip(row).zip(&scales) {
            *slot = f32::from((pair >> 4).cast_signed() - 8) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::precision::{decode, encode};

    /// The matrix as rounded to a type: by the codec of files, whose blocks run along the inputs as those of panels do.
    fn rounded(weight: &[f32], inputs: usize, outputs: usize, kind: WeightType) -> Vec<f32> {
        let kind = kind.for_rows(inputs, weight);
        let by_column = crate::checkpoint::transposed(weight, outputs);
        let mut back = vec![0.0; weight.len()];
        decode(&encode(&by_column, kind), kind, &mut back);
        crate::checkpoint::transposed(&back, inputs)
    }

    proptest! {
        #[test]
        fn panels_hold_what_files_hold(
            blocks in 1_usize..5,
            extra in prop_oneof![Just(0_usize), 1_usize..32],
            outputs in 1_usize..70,
            seed in any::<u32>(),
        ) {
            let inputs = blocks * BLOCK - extra;
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            let weight: Vec<f32> = (0..inputs * outputs).map(|_| next()).collect();
            for kind in WeightType::ALL {
                let packed = PreparedWeight::pack(&weight, inputs, outputs, kind);
                let expected = rounded(&weight, inputs, outputs, kind);
                for panel in 0..outputs.div_ceil(PANEL) {
                    let mut scratch = vec![f32::NAN; inputs * PANEL];
                    let rows = packed.panels().skip(panel, inputs).rows(0, &mut scratch);
                    for (line, row) in expected.chunks(outputs).zip(rows.chunks(PANEL)) {
                        let columns = &line[panel * PANEL..outputs.min((panel + 1) * PANEL)];
                        prop_assert_eq!(columns, &row[..columns.len()]);
                        prop_assert!(row[columns.len()..].iter().all(|padding| *padding == 0.0));
                    }
                }
            }
        }
    }

    #[test]
    fn memory_follows_the_type() {
        for kind in WeightType::ALL {
            let packed = PreparedWeight::pack(&vec![0.5; 64 * 96], 64, 96, kind);
            assert_eq!(packed.bytes(), kind.bytes(64 * 96) as u64, "{kind}");
        }
    }
}
