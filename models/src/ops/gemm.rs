//! Matrix products (GEMM) with a packed matrix on the CPU, which take most of the time of decoding.
//!
//! The matrix is stored in panels of [`PANEL`] columns, row by row, so that it is read once and in order for any
//! number of rows; a product with one row runs at memory bandwidth. Each element of the result is summed over the
//! inner dimension in order, one fused multiply-add at a time, independent of the other rows. A row's result is
//! therefore bit-identical in any batch, and recomputed keys and values equal the discarded ones. Products with
//! quantised matrices are in [`quantised`](super::quantised).

mod interleave;

use std::cell::Cell;

use pulp::bytemuck::cast_slice;
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::layout::{Bf16, F16, Layout, Single, convert};
use super::packed::{PANEL, Panels};
use super::quantised;
use crate::precision::WeightType;
use interleave::interleave_into;
pub(super) use interleave::interleaved;

/// Rows of a panel that are converted to f32 together, where that pays off: 16 KiB, which stay in the L1 cache.
const CONVERTED: usize = 128;
/// Maximum rows of a product that converts f16 in registers, once per group of rows, which takes ten instructions.
const CONVERTED_IN_REGISTERS: usize = 4;
/// Maximum rows per task: four of the kernel's largest groups, whose inputs stay in the cache.
const ROWS: usize = 48;
/// Maximum multiplications of a product on one thread: waking another thread takes longer.
const SMALL: usize = 1 << 19;
/// Products with fewer rows are split by columns, so that all cores read the matrix together.
pub(super) const FEW: usize = 24;

thread_local! {
    /// Buffer for the interleaved rows of a product, reused because a new vector would be zeroed each time.
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Runs a block in which a constant has the value of `$size`, from 1 to `$max`, at most 12.
macro_rules! with_size {
    ($size:expr, $max:expr, $name:ident => $block:block) => {
        $crate::ops::gemm::with_size!(@match $size, $max, $name, $block; 12 11 10 9 8 7 6 5 4 3 2)
    };
    (@match $size:expr, $max:expr, $name:ident, $block:block; $($known:literal)+) => {
        match $size {
            $($known if $max >= $known => {
                const $name: usize = $known;
                $block
            })+
            _ => {
                const $name: usize = 1;
                $block
            }
        }
    };
}
pub(super) use with_size;

/// Returns the rows per task when `count` rows are distributed evenly over all threads.
pub(super) fn rows_per_task(count: usize) -> usize {
    let threads = rayon::current_num_threads();
    let tasks = count.div_ceil(threads * ROWS).max(1) * threads;
    count.div_ceil(tasks)
}

/// Returns whether this many multiplications should stay on one thread.
pub(super) fn is_small(multiplications: usize) -> bool {
    multiplications <= SMALL
}

/// Computes `rows * matrix + bias` on this thread; see [`gemm`]. `out` is `[m, outputs]`.
pub(super) fn gemm_into(
    out: &mut [f32],
    outputs: usize,
    rows: &[f32],
    inputs: usize,
    packed: Panels<'_>,
    bias: &[f32],
) {
    if packed.kind().is_quantised() {
        quantised::multiply(out, outputs, rows, inputs, packed, bias);
        return;
    }
    let mut scratch = SCRATCH.take();
    if scratch.len() < rows.len() {
        scratch.resize(rows.len(), 0.0);
    }
    Arch::new().dispatch(Gemm {
        rows,
        scratch: &mut scratch,
        inputs,
        packed,
        bias,
        out,
        stride: outputs,
    });
    SCRATCH.set(scratch);
}

/// Computes `rows * matrix + bias`, row-major: `rows` is `[m, inputs]`, `packed` holds the panels of the matrix
/// `[inputs, outputs]`, `bias` is `[outputs]` or empty.
pub(super) fn gemm(
    rows: &[f32],
    inputs: usize,
    packed: Panels<'_>,
    bias: &[f32],
    outputs: usize,
) -> Vec<f32> {
    let count = rows.len().checked_div(inputs).unwrap_or_default();
    let mut out = vec![0.0; count * outputs];
    if out.is_empty() {
        return out;
    }
    if is_small(rows.len().saturating_mul(outputs)) {
        gemm_into(&mut out, outputs, rows, inputs, packed, bias);
        return out;
    }
    let share = |rows: &[f32], panels: std::ops::Range<usize>, out: &mut [f32], stride: usize| {
        let packed = packed.skip(panels.start, inputs);
        let bias = bias.get(panels.start * PANEL..).unwrap_or_default();
        gemm_into(out, stride, rows, inputs, packed, bias);
    };
    let panels = outputs.div_ceil(PANEL);
    if count >= FEW {
        let each = rows_per_task(count);
        out.par_chunks_mut(each * outputs)
            .zip(rows.par_chunks(each * inputs))
            .for_each(|(out, rows)| share(rows, 0..panels, out, outputs));
        return out;
    }
    // Threads cannot borrow columns of one matrix, so each task computes a buffer that is then copied.
    let width = panels.div_ceil(rayon::current_num_threads() * 2).max(1);
    let parts: Vec<(usize, usize, Vec<f32>)> = (0..panels.div_ceil(width))
        .into_par_iter()
        .map(|index| {
            let (from, to) = (index * width, panels.min((index + 1) * width));
            let columns = outputs.min(to * PANEL) - from * PANEL;
            let mut part = vec![0.0; count * columns];
            share(rows, from..to, &mut part, columns);
            (from * PANEL, columns, part)
        })
        .collect();
    for (from, columns, part) in parts {
        for (target, source) in out.chunks_mut(outputs).zip(part.chunks(columns)) {
            if let Some(target) = target.get_mut(from..from + columns) {
                target.copy_from_slice(source);
            }
        }
    }
    out
}

/// A product of some rows with the first panels of `packed`, as many as `out` has columns.
struct Gemm<'a> {
    rows: &'a [f32],
    /// Scratch memory for at least as many elements as `rows` has.
    scratch: &'a mut [f32],
    inputs: usize,
    packed: Panels<'a>,
    bias: &'a [f32],
    out: &'a mut [f32],
    stride: usize,
}

/// Slice of a panel that a kernel call processes.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// Rows of the panel, as words of a [`Layout`].
    words: &'a [u32],
    /// First column in the panel.
    from: usize,
    /// First column in the matrix.
    first: usize,
    /// Whether the sums start with these rows, and whether they end with them.
    begins: bool,
    ends: bool,
}

impl WithSimd for Gemm<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.packed.kind() {
            WeightType::Bf16 => self.of_layout::<S, Bf16>(simd),
            WeightType::F16 if self.rows.len() <= CONVERTED_IN_REGISTERS * self.inputs => {
                self.of_layout::<S, F16>(simd);
            }
            // f16 has this layout after conversion.
            _ => self.of_layout::<S, Single>(simd),
        }
    }
}

impl Gemm<'_> {
    #[inline(always)]
    fn of_layout<S: Simd, L: Layout>(self, simd: S) {
        let count = self.rows.len() / self.inputs.max(1);
        match (S::F32_LANES, L::ROWS) {
            (16, 1) => self.groups::<S, L, 2, 12>(simd),
            (16, _) => self.groups::<S, L, 2, 8>(simd),
            // With few rows, registers stay free, and more columns at a time keep the multipliers busy.
            (8, 1) if count <= 3 => self.groups::<S, L, 4, 3>(simd),
            (8, 1) => self.groups::<S, L, 2, 6>(simd),
            (8, _) if count <= 2 => self.groups::<S, L, 4, 2>(simd),
            (8, _) => self.groups::<S, L, 2, 4>(simd),
            (4, 1) => self.groups::<S, L, 4, 6>(simd),
            (4, _) => self.groups::<S, L, 4, 4>(simd),
            _ => self.groups::<S, L, PANEL, 1>(simd),
        }
    }

    /// Computes rows in groups of at most `MAX_ROWS`, by slices of a panel that are `VECTORS` vectors wide, which fill
    /// the registers. Larger groups read a panel less often.
    #[inline(always)]
    fn groups<S: Simd, L: Layout, const VECTORS: usize, const MAX_ROWS: usize>(mut self, simd: S) {
        let mut groups = Vec::new();
        let (mut rest, mut scratch) = (self.rows, std::mem::take(&mut self.scratch));
        while let count @ 1.. = rest.len() / self.inputs.max(1) {
            // Groups have equal sizes: a group of one row after full ones would mostly wait for its own sums.
            let size = count.div_ceil(count.div_ceil(MAX_ROWS));
            let (group, left) = rest.split_at(size * self.inputs);
            let Some((interleaved, unused)) = scratch.split_at_mut_checked(group.len()) else {
                return;
            };
            interleave_into(interleaved, group, self.inputs);
            groups.push((size, &*interleaved));
            (rest, scratch) = (left, unused);
        }
        let (stride, inputs) = (self.stride, self.inputs);
        let converts = L::ROWS == 1 && self.packed.kind() == WeightType::F16;
        let (most, mut converted) = if converts {
            (CONVERTED, vec![0.0; CONVERTED.min(inputs) * PANEL])
        } else {
            (inputs, Vec::new())
        };
        for index in 0..stride.div_ceil(PANEL) {
            let panel = self.packed.skip(index, inputs).first(inputs);
            for begin in (0..inputs).step_by(most) {
                let count = most.min(inputs - begin);
                let words = if converts {
                    let words = panel.get(begin / 2 * PANEL..).unwrap_or_default();
                    let rows = converted.get_mut(..count * PANEL).unwrap_or_default();
                    convert::<S, F16>(simd, words, rows);
                    cast_slice(rows)
                } else {
                    panel
                };
                for from in (0..PANEL).step_by(VECTORS * S::F32_LANES) {
                    let part = Part {
                        words,
                        from,
                        first: index * PANEL + from,
                        begins: begin == 0,
                        ends: begin + count == inputs,
                    };
                    if part.first >= stride {
                        break;
                    }
                    let mut row = 0;
                    for (size, group) in &groups {
                        let group = group
                            .get(begin * size..(begin + count) * size)
                            .unwrap_or_default();
                        with_size!(*size, MAX_ROWS, SIZE => {
                            self.kernel::<S, L, VECTORS, SIZE>(simd, part, group, row);
                        });
                        row += size;
                    }
                }
            }
        }
    }

    /// Computes a group of rows with a slice of a panel; `group` holds the elements to multiply with the slice's rows,
    /// interleaved.
    #[inline(always)]
    fn kernel<S: Simd, L: Layout, const VECTORS: usize, const SIZE: usize>(
        &mut self,
        simd: S,
        part: Part<'_>,
        group: &[f32],
        row: usize,
    ) {
        let Part { from, first, .. } = part;
        let columns = (VECTORS * S::F32_LANES).min(self.stride - first);
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; SIZE];
        if !part.begins {
            let rows = self.out.chunks_exact(self.stride).skip(row);
            for (sums, out) in sums.iter_mut().zip(rows) {
                let mut line = [0.0; PANEL];
                if let (Some(line), Some(out)) = (line.get_mut(..columns), out.get(first..first + columns)) {
                    line.copy_from_slice(out);
                }
                let (vectors, _) = S::as_simd_f32s(&line);
                for (sum, vector) in sums.iter_mut().zip(vectors) {
                    *sum = *vector;
                }
            }
        }
        let (inputs, _) = group.as_chunks::<SIZE>();
        let (lines, _) = part.words.as_chunks::<PANEL>();
        if L::ROWS == 1 {
            for (inputs, line) in inputs.iter().zip(lines) {
                let [weights, _] = weights::<S, L, VECTORS>(simd, line, from);
                accumulate(simd, &mut sums, inputs, &weights);
            }
        } else {
            for (inputs, line) in inputs.chunks(2).zip(lines) {
                let [first, second] = weights::<S, L, VECTORS>(simd, line, from);
                if let Some(inputs) = inputs.first() {
                    accumulate(simd, &mut sums, inputs, &first);
                }
                if let Some(inputs) = inputs.get(1) {
                    accumulate(simd, &mut sums, inputs, &second);
                }
            }
        }
        let bias = if part.ends {
            self.bias.get(first..).unwrap_or_default()
        } else {
            &[]
        };
        let out = self.out.get_mut(row * self.stride..).unwrap_or_default();
        store(simd, &sums, out, self.stride, first, bias);
    }
}

/// Writes sums, with their biases if there are any, to the rows of a matrix with `stride` columns, from column `first` on.
#[inline(always)]
pub(super) fn store<S: Simd, const VECTORS: usize, const SIZE: usize>(
    simd: S,
    sums: &[[S::f32s; VECTORS]; SIZE],
    out: &mut [f32],
    stride: usize,
    first: usize,
    bias: &[f32],
) {
    let columns = (VECTORS * S::F32_LANES).min(stride - first);
    let rows = out.chunks_exact_mut(stride);
    if columns == VECTORS * S::F32_LANES {
        let bias = S::as_simd_f32s(bias).0.first_chunk::<VECTORS>();
        let bias = bias.copied().unwrap_or([simd.splat_f32s(0.0); VECTORS]);
        for (sums, out) in sums.iter().zip(rows) {
            let out = out.get_mut(first..first + columns).unwrap_or_default();
            let (vectors, _) = S::as_mut_simd_f32s(out);
            if let Some(vectors) = vectors.first_chunk_mut::<VECTORS>() {
                for ((vector, sum), bias) in vectors.iter_mut().zip(sums).zip(bias) {
                    *vector = simd.add_f32s(*sum, bias);
                }
            }
        }
        return;
    }
    for (sums, out) in sums.iter().zip(rows) {
        let mut line = [0.0; PANEL];
        let (vectors, _) = S::as_mut_simd_f32s(&mut line);
        for (vector, sum) in vectors.iter_mut().zip(sums) {
            *vector = *sum;
        }
        add_bias(out, &line, bias, first, columns);
    }
}

/// Returns the rows in a line of a panel, from column `from` on.
#[inline(always)]
pub(super) fn weights<S: Simd, L: Layout, const VECTORS: usize>(
    simd: S,
    line: &[u32; PANEL],
    from: usize,
) -> [[S::f32s; VECTORS]; 2] {
    let mut rows = [[simd.splat_f32s(0.0); VECTORS]; 2];
    let (words, _) = S::as_simd_u32s(line);
    // The length must be known at compile time, so that the sums stay in registers.
    let part = words.get(from / S::F32_LANES..);
    let Some(words) = part.and_then(<[_]>::first_chunk::<VECTORS>) else {
        return rows;
    };
    let [first, second] = &mut rows;
    for ((first, second), words) in first.iter_mut().zip(second).zip(words) {
        [*first, *second] = L::rows(simd, *words);
    }
    rows
}

/// Adds the products of one matrix row with an element of each row of a group.
#[inline(always)]
pub(super) fn accumulate<S: Simd, const VECTORS: usize, const SIZE: usize>(
    simd: S,
    sums: &mut [[S::f32s; VECTORS]; SIZE],
    inputs: &[f32; SIZE],
    weights: &[S::f32s; VECTORS],
) {
    for (sums, input) in sums.iter_mut().zip(inputs) {
        let input = simd.splat_f32s(*input);
        for (sum, weight) in sums.iter_mut().zip(weights) {
            *sum = simd.mul_add_f32s(input, *weight, *sum);
        }
    }
}

/// Writes the sums of `columns` columns from `first` on, plus their biases if there are any.
#[inline(always)]
pub(super) fn add_bias(out: &mut [f32], sums: &[f32; PANEL], bias: &[f32], first: usize, columns: usize) {
    let mut line = *sums;
    for (value, bias) in line.iter_mut().zip(bias) {
        *value += bias;
    }
    if let (Some(out), Some(line)) = (out.get_mut(first..first + columns), line.get(..columns)) {
        out.copy_from_slice(line);
    }
}

#[cfg(test)]
mod tests;
