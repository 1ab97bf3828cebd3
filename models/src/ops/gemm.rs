//! Matrix products (GEMM) with a packed matrix on the CPU: most of the time of decoding.
//!
//! The matrix is stored in panels of [`PANEL`] columns, row by row, so that it is read once and in order for any number
//! of rows; a product with one row runs at memory bandwidth. Every element of the result is summed over the inner
//! dimension in order, one fused multiply-add at a time, whatever else is computed with it. A row's result therefore
//! has the same bits in any batch, and recomputed keys and values equal the discarded ones.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::packed::{PANEL, Panels};

/// Rows of a panel that are converted to f32 together, where they are stored in another type: 16 kilobytes, which stay in
/// the first cache. A multiple of the blocks of quantised types.
const CONVERTED: usize = 128;
/// Maximum rows per task: four of the kernel's largest groups, whose inputs stay in the cache.
const ROWS: usize = 48;
/// The number of rows per task is a multiple of this, so that few groups are smaller than the largest ones.
const GROUP: usize = 4;
/// Products of at most this many multiplications stay on one thread: waking another one takes longer.
const SMALL: usize = 1 << 19;
/// Fewer rows than this are split by columns, so that all cores read the matrix together.
const FEW: usize = 24;

/// Rows per task if `count` rows are distributed evenly over all threads.
pub(super) fn rows_per_task(count: usize) -> usize {
    let threads = rayon::current_num_threads();
    let tasks = count.div_ceil(threads * ROWS).max(1) * threads;
    count.div_ceil(tasks).next_multiple_of(GROUP)
}

/// Whether this many multiplications should stay on one thread.
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
    Arch::new().dispatch(Gemm {
        rows,
        inputs,
        packed,
        bias,
        out,
        stride: outputs,
    });
}

/// Computes `rows * matrix + bias`, row-major: `rows` `[m, inputs]`, `packed` the panels of the matrix
/// `[inputs, outputs]`, `bias` `[outputs]` or empty.
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
    // Columns of one matrix cannot be borrowed by several threads, so each task computes a buffer that is then copied.
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

/// A product of some rows with the first panels of `packed`, as many as `out` has columns for.
struct Gemm<'a> {
    rows: &'a [f32],
    inputs: usize,
    packed: Panels<'a>,
    bias: &'a [f32],
    out: &'a mut [f32],
    stride: usize,
}

/// Part of a panel that a kernel computes with.
#[derive(Clone, Copy)]
struct Part<'a> {
    /// Rows of the panel, f32.
    rows: &'a [f32],
    /// Its first column in the panel.
    from: usize,
    /// Its first column in the matrix.
    first: usize,
    /// Whether the sums begin with these rows, and whether they end with them.
    begins: bool,
    ends: bool,
}

impl WithSimd for Gemm<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "only inlined code is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.groups::<S, 2, 12>(simd),
            // With few rows registers stay free, and more columns at a time keep the multipliers busy.
            8 if self.rows.len() <= 3 * self.inputs => self.groups::<S, 4, 3>(simd),
            8 => self.groups::<S, 2, 6>(simd),
            4 => self.groups::<S, 4, 6>(simd),
            _ => self.groups::<S, PANEL, 1>(simd),
        }
    }
}

#[expect(
    clippy::inline_always,
    reason = "only code inlined into `with_simd` is vectorised"
)]
impl Gemm<'_> {
    /// Computes rows in groups of at most `MOST`, by parts of a panel that are `VECTORS` vectors wide, which fill the
    /// registers. Larger groups read a panel less often.
    #[inline(always)]
    fn groups<S: Simd, const VECTORS: usize, const MOST: usize>(mut self, simd: S) {
        let mut groups = Vec::new();
        let mut rest = self.rows;
        while !rest.is_empty() {
            let size = match rest.len() / self.inputs {
                12.. if MOST >= 12 => 12,
                8.. if MOST >= 8 => 8,
                // Two equal groups instead of six and a remainder.
                7 | 8 => 4,
                6.. if MOST >= 6 => 6,
                4.. if MOST >= 4 => 4,
                3.. if MOST >= 3 => 3,
                2.. if MOST >= 2 => 2,
                0 => break,
                _ => 1,
            };
            let (group, left) = rest.split_at(size * self.inputs);
            groups.push((size, interleaved(group, self.inputs)));
            rest = left;
        }
        let (stride, inputs) = (self.stride, self.inputs);
        // Rows of f32 need no conversion, so they are not split.
        let most = match self.packed {
            Panels::F32(_) => inputs,
            _ => CONVERTED,
        };
        let mut scratch = match self.packed {
            Panels::F32(_) => Vec::new(),
            _ => vec![0.0; CONVERTED.min(inputs) * PANEL],
        };
        for index in 0..stride.div_ceil(PANEL) {
            let panel = self.packed.skip(index, inputs);
            for begin in (0..inputs).step_by(most) {
                let count = most.min(inputs - begin);
                let rows = match panel {
                    Panels::F32(values) => values.get(..inputs * PANEL).unwrap_or_default(),
                    _ => panel.rows(begin, scratch.get_mut(..count * PANEL).unwrap_or_default()),
                };
                for from in (0..PANEL).step_by(VECTORS * S::F32_LANES) {
                    let part = Part {
                        rows,
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
                        match size {
                            12 => self.kernel::<S, VECTORS, 12>(simd, part, group, row),
                            8 => self.kernel::<S, VECTORS, 8>(simd, part, group, row),
                            6 => self.kernel::<S, VECTORS, 6>(simd, part, group, row),
                            4 => self.kernel::<S, VECTORS, 4>(simd, part, group, row),
                            3 => self.kernel::<S, VECTORS, 3>(simd, part, group, row),
                            2 => self.kernel::<S, VECTORS, 2>(simd, part, group, row),
                            _ => self.kernel::<S, VECTORS, 1>(simd, part, group, row),
                        }
                        row += size;
                    }
                }
            }
        }
    }

    /// Computes a group of rows with a part of a panel; `group` holds their elements that the part's rows multiply,
    /// interleaved.
    #[inline(always)]
    fn kernel<S: Simd, const VECTORS: usize, const SIZE: usize>(
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
        let (weights, _) = part.rows.as_chunks::<PANEL>();
        for (inputs, weights) in inputs.iter().zip(weights) {
            let (weights, _) = S::as_simd_f32s(weights);
            // The length must be known at compile time, or the sums would not stay in registers.
            let part = weights.get(from / S::F32_LANES..);
            let Some(weights) = part.and_then(<[_]>::first_chunk::<VECTORS>) else {
                break;
            };
            for (sums, input) in sums.iter_mut().zip(inputs) {
                let input = simd.splat_f32s(*input);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_f32s(input, *weight, *sum);
                }
            }
        }
        let bias = if part.ends {
            self.bias.get(first..).unwrap_or_default()
        } else {
            &[]
        };
        let rows = self.out.chunks_exact_mut(self.stride).skip(row);
        for (sums, out) in sums.iter().zip(rows) {
            let mut line = [0.0; PANEL];
            let (vectors, _) = S::as_mut_simd_f32s(&mut line);
            for (vector, sum) in vectors.iter_mut().zip(sums) {
                *vector = *sum;
            }
            for (value, bias) in line.iter_mut().zip(bias) {
                *value += bias;
            }
            if let (Some(out), Some(line)) = (out.get_mut(first..first + columns), line.get(..columns)) {
                out.copy_from_slice(line);
            }
        }
    }
}

/// Interleaves rows to `[inputs, rows]`, so that the kernel reads them in order.
fn interleaved(rows: &[f32], inputs: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows.len()];
    match rows.len() / inputs.max(1) {
        12 => interleave::<12>(rows, inputs, &mut out),
        8 => interleave::<8>(rows, inputs, &mut out),
        6 => interleave::<6>(rows, inputs, &mut out),
        4 => interleave::<4>(rows, inputs, &mut out),
        3 => interleave::<3>(rows, inputs, &mut out),
        2 => interleave::<2>(rows, inputs, &mut out),
        _ => out.copy_from_slice(rows),
    }
    out
}

/// Interleaves by blocks of a cache line, with the number of rows known to the compiler.
fn interleave<const ROWS: usize>(rows: &[f32], inputs: usize, out: &mut [f32]) {
    let (columns, _) = out.as_chunks_mut::<ROWS>();
    for (block, columns) in columns.chunks_mut(16).enumerate() {
        let from = block * 16;
        for (index, row) in rows.chunks_exact(inputs).enumerate() {
            let part = row.get(from..from + columns.len()).unwrap_or_default();
            for (column, value) in columns.iter_mut().zip(part) {
                if let Some(slot) = column.get_mut(index) {
                    *slot = *value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::packed::{PreparedWeight, pack};
    use super::*;
    use crate::precision::WeightType;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn products_match_a_plain_sum() {
        for (rows, inputs, outputs) in [
            (1, 1, 1),
            (1, 7, 33),
            (3, 64, 31),
            (5, 5, 32),
            (6, 9, 70),
            (7, 30, 48),
            (8, 11, 40),
            (17, 6, 33),
            (30, 20, 100),
            (100, 12, 65),
            // Large enough for several threads.
            (5, 700, 170),
            (130, 80, 70),
        ] {
            let (x, w, b) = (
                numbers(rows * inputs, 1),
                numbers(inputs * outputs, 2),
                numbers(outputs, 3),
            );
            let packed = pack(&w, inputs, outputs);
            let out = gemm(&x, inputs, Panels::F32(&packed), &b, outputs);
            for row in 0..rows {
                for column in 0..outputs {
                    let expected: f64 = (0..inputs)
                        .map(|k| f64::from(x[row * inputs + k]) * f64::from(w[k * outputs + column]))
                        .sum::<f64>()
                        + f64::from(b[column]);
                    let actual = f64::from(out[row * outputs + column]);
                    assert!(
                        (actual - expected).abs() < 1e-5,
                        "{rows} {inputs} {outputs}: {actual} {expected}"
                    );
                }
            }
        }
    }

    /// Without vector code a product takes a hundred times as long.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_widest_vectors_of_the_processor_are_used() {
        struct Lanes;
        impl WithSimd for Lanes {
            type Output = usize;
            fn with_simd<S: Simd>(self, _: S) -> usize {
                S::F32_LANES
            }
        }
        let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let least = match fused {
            true if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq") => 16,
            true => 8,
            false => 1,
        };
        assert!(Arch::new().dispatch(Lanes) >= least);
    }

    /// The exactness of all cache modes depends on this.
    #[test]
    fn a_row_has_the_same_bits_in_any_batch() {
        // More inputs than are converted at a time, and a last panel that is not full.
        let (inputs, outputs) = (288, 70);
        let x = numbers(61 * inputs, 1);
        for kind in WeightType::ALL {
            let packed = PreparedWeight::pack(&numbers(inputs * outputs, 2), inputs, outputs, kind);
            let packed = packed.panels();
            let all = gemm(&x, inputs, packed, &[], outputs);
            for (from, to) in [(0, 1), (3, 5), (7, 20), (20, 60), (60, 61)] {
                let some = gemm(&x[from * inputs..to * inputs], inputs, packed, &[], outputs);
                assert_eq!(some, all[from * outputs..to * outputs], "{kind}");
            }
            assert!(gemm(&[], inputs, packed, &[], outputs).is_empty());
        }
    }

    #[test]
    fn products_equal_those_with_the_converted_matrix() {
        for (rows, inputs, outputs) in [
            (1, 64, 33),
            (2, 288, 64),
            (5, 160, 100),
            (30, 416, 70),
            (13, 130, 40),
        ] {
            let (x, w) = (numbers(rows * inputs, 1), numbers(inputs * outputs, 2));
            let bias = numbers(outputs, 3);
            for kind in WeightType::ALL {
                let packed = PreparedWeight::pack(&w, inputs, outputs, kind);
                let mut converted = Vec::new();
                for panel in 0..outputs.div_ceil(PANEL) {
                    let mut scratch = vec![0.0; inputs * PANEL];
                    converted.extend_from_slice(packed.panels().skip(panel, inputs).rows(0, &mut scratch));
                }
                let expected = gemm(&x, inputs, Panels::F32(&converted), &bias, outputs);
                let actual = gemm(&x, inputs, packed.panels(), &bias, outputs);
                assert_eq!(actual, expected, "{kind}, {rows} by {inputs} by {outputs}");
            }
        }
    }
}
