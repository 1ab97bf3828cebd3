//! Packed weights of linear layers, and the panels of the CPU kernels.
//!
//! A panel holds [`PANEL`] columns of a matrix `[inputs, outputs]` in the matrix's type, in the order in which kernels
//! read it. Rows of f32 are consecutive. Smaller types hold two rows side by side, so that a vector of words has the
//! same columns in any type:
//!
//! - bf16, f16: one word per column, the even row in its lower half, the odd row in its upper half.
//! - Quantised types: blocks run along the inputs. 32 rows of a panel are 32 f16 scales, one per column, then the
//!   numbers: two bytes per column, those of an even and an odd row. In `Q4_0` the upper half of a byte belongs to the
//!   row 16 further down.

use pulp::bytemuck::cast_slice;
use rayon::prelude::*;

use crate::checkpoint::transposed;
use crate::precision::{BLOCK, WeightType, f16_to_f32, quantise_q4_0, quantise_q8_0};

/// Columns per panel: two vectors with AVX-512, four with AVX2, eight with Neon.
pub(crate) const PANEL: usize = 32;
/// Words of the scales of [`BLOCK`] rows of a panel, and of the numbers of two rows.
pub(super) const LINE: usize = PANEL / 2;
/// Words of [`BLOCK`] rows of a panel of `Q8_0`.
pub(super) const Q8_0_TILE: usize = LINE + BLOCK * PANEL / 4;
/// Words of [`BLOCK`] rows of a panel of `Q4_0`.
pub(super) const Q4_0_TILE: usize = LINE + BLOCK * PANEL / 8;

/// Weight of a linear layer in the layout that a device computes with, in host memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PreparedWeight {
    /// Type of the weight.
    pub(crate) kind: WeightType,
    /// Memory of the weight, as words; smaller numbers are packed.
    pub(crate) words: Vec<u32>,
}

impl PreparedWeight {
    /// Creates an f32 weight.
    pub(crate) fn f32(values: Vec<f32>) -> Self {
        Self {
            kind: WeightType::F32,
            words: to_words(values),
        }
    }

    /// Stores a row-major matrix as `kind` for devices of burn, two 16-bit numbers per word, the first in the lower
    /// half. Stays f32 for other types, an odd number of elements, and values that `kind` cannot represent.
    #[cfg(feature = "burn")]
    pub(crate) fn row_major(weight: Vec<f32>, inputs: usize, kind: WeightType) -> Self {
        let convert: fn(f32) -> u16 = match kind.for_rows(inputs, &weight) {
            WeightType::Bf16 => |value| half::bf16::from_f32(value).to_bits(),
            WeightType::F16 => |value| half::f16::from_f32(value).to_bits(),
            WeightType::F32 | WeightType::Q8_0 | WeightType::Q4_0 => return Self::f32(weight),
        };
        let (pairs, rest) = weight.as_chunks();
        if !rest.is_empty() {
            return Self::f32(weight);
        }
        let word = |pair: &[f32; 2]| {
            let [low, high] = pair.map(|value| u32::from(convert(value)));
            low | high << 16
        };
        Self {
            kind,
            words: pairs.par_iter().map(word).collect(),
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
            pack_panel(panel, weight, inputs, outputs, index * PANEL, kind);
        });
        Self { kind, words }
    }

    /// Packs a matrix as [`PreparedWeight::pack`] does; `weight` is its transpose, `[outputs, inputs]` row-major.
    /// Packs f32 in place.
    pub(crate) fn pack_transposed(
        mut weight: Vec<f32>,
        inputs: usize,
        outputs: usize,
        kind: WeightType,
    ) -> Self {
        let kind = kind.for_rows(inputs, &weight);
        let panels = outputs.div_ceil(PANEL);
        let each = (PANEL * inputs).max(1);
        if kind == WeightType::F32 {
            // Pads the matrix to whole panels of outputs.
            weight.resize(panels * each, 0.0);
            weight
                .par_chunks_mut(each)
                .for_each(|panel| panel.copy_from_slice(&transposed(panel, inputs)));
            return Self::f32(weight);
        }
        let mut words = vec![0; panels * panel_words(kind, inputs)];
        let panels = words.par_chunks_mut(panel_words(kind, inputs).max(1));
        panels.zip(weight.par_chunks(each)).for_each(|(panel, lines)| {
            let columns = lines.len() / inputs.max(1);
            pack_panel(panel, &transposed(lines, inputs), inputs, columns, 0, kind);
        });
        Self { kind, words }
    }

    /// Writes a column of a packed matrix with `inputs` rows, the weights of one output; zeros if the index is out of
    /// range.
    pub(super) fn read_column(&self, index: usize, inputs: usize, out: &mut [f32]) {
        let panel = self.panels().skip(index / PANEL, inputs);
        for (row, slot) in out.iter_mut().enumerate().take(inputs) {
            *slot = panel.element(row, index % PANEL, inputs);
        }
    }

    /// Returns the memory of the weight, bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(self.words.as_slice()) as u64
    }

    /// Returns the panels of the weight.
    pub(super) fn panels(&self) -> Panels<'_> {
        match self.kind {
            WeightType::F32 => Panels::F32(cast_slice(&self.words)),
            WeightType::Bf16 => Panels::Bf16(&self.words),
            WeightType::F16 => Panels::F16(&self.words),
            WeightType::Q8_0 => Panels::Q8_0(&self.words),
            WeightType::Q4_0 => Panels::Q4_0(&self.words),
        }
    }
}

/// Reinterprets f32 as words, without a copy.
pub(crate) fn to_words(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Reinterprets words as f32, without a copy.
pub(crate) fn from_words(words: Vec<u32>) -> Vec<f32> {
    words.into_iter().map(f32::from_bits).collect()
}

/// Packs a row-major matrix `[inputs, outputs]` into panels of f32; pads the last one with zeros.
pub(crate) fn pack(weight: &[f32], inputs: usize, outputs: usize) -> Vec<f32> {
    let mut packed = vec![0.0; outputs.div_ceil(PANEL) * PANEL * inputs];
    let fill = |(index, panel): (usize, &mut [f32])| {
        let from = index * PANEL;
        let columns = PANEL.min(outputs - from);
        for (row, target) in weight.chunks(outputs.max(1)).zip(panel.chunks_mut(PANEL)) {
            if let (Some(source), Some(target)) = (row.get(from..from + columns), target.get_mut(..columns)) {
                target.copy_from_slice(source);
            }
        }
    };
    let each = (PANEL * inputs).max(1);
    if weight.len() < PARALLEL {
        packed.chunks_mut(each).enumerate().for_each(fill);
    } else {
        packed.par_chunks_mut(each).enumerate().for_each(fill);
    }
    packed
}

/// Packs the panel of a matrix `[inputs, outputs]` whose first column is `first`.
fn pack_panel(
    panel: &mut [u32],
    weight: &[f32],
    inputs: usize,
    outputs: usize,
    first: usize,
    kind: WeightType,
) {
    let tiles = panel.chunks_mut((panel_words(kind, BLOCK.min(inputs))).max(1));
    let lines = weight.chunks(BLOCK * outputs.max(1));
    for (tile, lines) in tiles.zip(lines) {
        pack_tile(tile, lines, outputs, first, kind);
    }
}

/// Minimum elements of a matrix that is packed on all threads.
const PARALLEL: usize = 1 << 18;

/// Returns the number of words of a panel with `inputs` rows.
const fn panel_words(kind: WeightType, inputs: usize) -> usize {
    match kind {
        WeightType::F32 => inputs * PANEL,
        WeightType::Bf16 | WeightType::F16 => inputs.div_ceil(2) * PANEL,
        WeightType::Q8_0 => inputs / BLOCK * Q8_0_TILE,
        WeightType::Q4_0 => inputs / BLOCK * Q4_0_TILE,
    }
}

/// Packs up to [`BLOCK`] rows of a matrix, from column `first` on.
fn pack_tile(tile: &mut [u32], lines: &[f32], outputs: usize, first: usize, kind: WeightType) {
    // Grouped by column, as the blocks of a quantised type.
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
            for (index, word) in tile.iter_mut().enumerate() {
                let (row, column) = (index / PANEL * 2, index % PANEL);
                let [low, high] = [row, row + 1].map(|row| u32::from(bits(at(column, row))));
                *word = low | high << 16;
            }
        }
        WeightType::Q8_0 | WeightType::Q4_0 => {
            let Some((scales, numbers)) = tile.split_at_mut_checked(LINE) else {
                return;
            };
            let scales = pulp::bytemuck::cast_slice_mut::<u32, u16>(scales);
            let (numbers, _) = pulp::bytemuck::cast_slice_mut::<u32, u8>(numbers).as_chunks_mut::<2>();
            for ((index, column), slot) in columns.iter().enumerate().zip(scales) {
                let places = numbers.iter_mut().skip(index).step_by(PANEL);
                if kind == WeightType::Q8_0 {
                    let (scale, block) = quantise_q8_0(column);
                    *slot = scale;
                    for (place, pair) in places.zip(block.as_chunks::<2>().0) {
                        *place = pair.map(i8::cast_unsigned);
                    }
                } else {
                    let (scale, block) = quantise_q4_0(column);
                    *slot = scale;
                    let (low, high) = block.split_at(BLOCK / 2);
                    let pairs = low.as_chunks::<2>().0.iter().zip(high.as_chunks::<2>().0);
                    for (place, ([a, b], [c, d])) in places.zip(pairs) {
                        *place = [a | c << 4, b | d << 4];
                    }
                }
            }
        }
    }
}

/// Consecutive panels of a packed matrix.
#[derive(Debug, Clone, Copy)]
pub(super) enum Panels<'a> {
    F32(&'a [f32]),
    Bf16(&'a [u32]),
    F16(&'a [u32]),
    Q8_0(&'a [u32]),
    Q4_0(&'a [u32]),
}

impl<'a> Panels<'a> {
    /// Returns the panels from `first` on; a panel has `inputs` rows.
    pub(super) fn skip(self, first: usize, inputs: usize) -> Self {
        fn rest<T>(values: &[T], from: usize) -> &[T] {
            values.get(from..).unwrap_or_default()
        }
        let from = first * panel_words(self.kind(), inputs);
        match self {
            Self::F32(values) => Self::F32(rest(values, from)),
            Self::Bf16(words) => Self::Bf16(rest(words, from)),
            Self::F16(words) => Self::F16(rest(words, from)),
            Self::Q8_0(words) => Self::Q8_0(rest(words, from)),
            Self::Q4_0(words) => Self::Q4_0(rest(words, from)),
        }
    }

    /// Returns the words of the first panel, which has `inputs` rows.
    pub(super) fn first(self, inputs: usize) -> &'a [u32] {
        let words = match self {
            Self::F32(values) => cast_slice(values),
            Self::Bf16(words) | Self::F16(words) | Self::Q8_0(words) | Self::Q4_0(words) => words,
        };
        words.get(..panel_words(self.kind(), inputs)).unwrap_or_default()
    }

    /// Returns an element of the first panel, which has `inputs` rows; zero outside the matrix.
    pub(super) fn element(self, row: usize, column: usize, inputs: usize) -> f32 {
        let words = self.first(inputs);
        let half = |place: usize| {
            cast_slice::<u32, u16>(words)
                .get(place)
                .copied()
                .unwrap_or_default()
        };
        let pair_half = half((row / 2 * PANEL + column) * 2 + row % 2);
        let (block, place) = (row / BLOCK, row % BLOCK);
        let scale = |tile: usize| f16_to_f32(half(block * tile * 2 + column));
        let number = |tile: usize, row: usize| {
            let place = (block * tile + LINE) * 4 + row / 2 * 2 * PANEL + 2 * column + row % 2;
            cast_slice::<u32, u8>(words)
                .get(place)
                .copied()
                .unwrap_or_default()
        };
        match self {
            Self::F32(_) => f32::from_bits(words.get(row * PANEL + column).copied().unwrap_or_default()),
            Self::Bf16(_) => half::bf16::from_bits(pair_half).to_f32(),
            Self::F16(_) => f16_to_f32(pair_half),
            Self::Q8_0(_) => f32::from(number(Q8_0_TILE, place).cast_signed()) * scale(Q8_0_TILE),
            Self::Q4_0(_) => {
                let pair = number(Q4_0_TILE, place % (BLOCK / 2));
                let number = if place < BLOCK / 2 { pair & 15 } else { pair >> 4 };
                (f32::from(number) - 8.0) * scale(Q4_0_TILE)
            }
        }
    }

    /// Returns the type of the weights.
    pub(super) const fn kind(self) -> WeightType {
        match self {
            Self::F32(_) => WeightType::F32,
            Self::Bf16(_) => WeightType::Bf16,
            Self::F16(_) => WeightType::F16,
            Self::Q8_0(_) => WeightType::Q8_0,
            Self::Q4_0(_) => WeightType::Q4_0,
        }
    }
}

/// Returns the first panel of a matrix with `inputs` rows as f32, row by row.
#[cfg(test)]
pub(super) fn unpacked(panels: Panels<'_>, inputs: usize) -> Vec<f32> {
    (0..inputs * PANEL)
        .map(|index| panels.element(index / PANEL, index % PANEL, inputs))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::precision::{Table, decode, encode};

    /// Rounds a matrix to a type with the codec of files, whose blocks run along the inputs like those of panels.
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
                let by_column = transposed(&weight, outputs);
                prop_assert_eq!(
                    &PreparedWeight::pack_transposed(by_column.clone(), inputs, outputs, kind),
                    &packed
                );
                // The rows of this table are the columns of the matrix.
                let table = Table::new(by_column, inputs).stored_as(kind);
                for index in 0..=outputs {
                    let (mut column, mut row) = (vec![0.0; inputs], Vec::new());
                    packed.read_column(index, inputs, &mut column);
                    table.push_row(index, &mut row);
                    prop_assert_eq!(column, row);
                }
                let expected = rounded(&weight, inputs, outputs, kind);
                for panel in 0..outputs.div_ceil(PANEL) {
                    let rows = unpacked(packed.panels().skip(panel, inputs), inputs);
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
