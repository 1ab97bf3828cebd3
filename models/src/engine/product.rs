//! Products of rows with a packed matrix on the CPU: what decoding spends its time in.
//!
//! The matrix lies in panels of [`PANEL`] columns, row by row, so that it is read once, in order, however few rows there are; a product with
//! one row is then as fast as memory. Every element of a result is summed over the inner dimension in order, one
//! fused step at a time, whatever else is computed beside it. So a row's result is the same to the last bit in any batch: keys and
//! values that are computed again are those that were thrown away.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

/// Columns of a panel: two vectors of AVX-512, four of AVX2.
pub(crate) const PANEL: usize = 32;
/// Rows that a task takes where there are many: four of the kernel's largest groups, whose inputs stay in the cache.
const ROWS: usize = 48;
/// Fewer rows than this are shared out by columns, so that all cores read the matrix together.
const FEW: usize = 24;

/// A row-major matrix `[inputs, outputs]` in panels; the last one is filled up with zeros.
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

/// `rows * matrix + bias`, row-major: `rows` `[m, inputs]`, `packed` as [`pack`] makes it, `bias` `[outputs]` or empty.
pub(crate) fn product(rows: &[f32], inputs: usize, packed: &[f32], bias: &[f32], outputs: usize) -> Vec<f32> {
    let count = rows.len().checked_div(inputs).unwrap_or_default();
    let mut out = vec![0.0; count * outputs];
    if out.is_empty() {
        return out;
    }
    let arch = Arch::new();
    let share = |rows: &[f32], panels: std::ops::Range<usize>, out: &mut [f32], stride: usize| {
        arch.dispatch(Product {
            rows,
            inputs,
            packed: packed.get(panels.start * PANEL * inputs..).unwrap_or_default(),
            bias: bias.get(panels.start * PANEL..).unwrap_or_default(),
            out,
            stride,
        });
    };
    let panels = outputs.div_ceil(PANEL);
    if count >= FEW {
        out.par_chunks_mut(ROWS * outputs)
            .zip(rows.par_chunks(ROWS * inputs))
            .for_each(|(out, rows)| share(rows, 0..panels, out, outputs));
        return out;
    }
    // Columns of one matrix cannot be lent to several threads, so each share is computed apart and copied into place.
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

/// Some rows by the panels that `packed` begins with, as many as `out` has columns for.
struct Product<'a> {
    rows: &'a [f32],
    inputs: usize,
    packed: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[expect(
        clippy::inline_always,
        reason = "only what is inlined here is compiled for the vector extension"
    )]
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match S::F32_LANES {
            16 => self.groups::<S, 2, 12>(simd),
            8 => self.groups::<S, 4, 3>(simd),
            _ => self.groups::<S, PANEL, 1>(simd),
        }
    }
}

#[expect(
    clippy::inline_always,
    reason = "only what is inlined into `with_simd` becomes vectors"
)]
impl Product<'_> {
    /// Rows in groups of at most `MOST`, which is what the registers hold beside a panel's row of `VECTORS` vectors.
    #[inline(always)]
    fn groups<S: Simd, const VECTORS: usize, const MOST: usize>(mut self, simd: S) {
        let mut groups = Vec::new();
        let mut rest = self.rows;
        while !rest.is_empty() {
            let size = match rest.len() / self.inputs {
                12.. if MOST >= 12 => 12,
                8.. if MOST >= 8 => 8,
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
        let panels = self.packed.chunks_exact((PANEL * self.inputs).max(1));
        for (index, panel) in panels.take(self.stride.div_ceil(PANEL)).enumerate() {
            let mut row = 0;
            for (size, group) in &groups {
                match size {
                    12 => self.kernel::<S, VECTORS, 12>(simd, index, panel, group, row),
                    8 => self.kernel::<S, VECTORS, 8>(simd, index, panel, group, row),
                    4 => self.kernel::<S, VECTORS, 4>(simd, index, panel, group, row),
                    3 => self.kernel::<S, VECTORS, 3>(simd, index, panel, group, row),
                    2 => self.kernel::<S, VECTORS, 2>(simd, index, panel, group, row),
                    _ => self.kernel::<S, VECTORS, 1>(simd, index, panel, group, row),
                }
                row += size;
            }
        }
    }

    #[inline(always)]
    fn kernel<S: Simd, const VECTORS: usize, const GROUP: usize>(
        &mut self,
        simd: S,
        index: usize,
        panel: &[f32],
        group: &[f32],
        row: usize,
    ) {
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; GROUP];
        let (inputs, _) = group.as_chunks::<GROUP>();
        let (weights, _) = panel.as_chunks::<PANEL>();
        for (inputs, weights) in inputs.iter().zip(weights) {
            let (weights, _) = S::as_simd_f32s(weights);
            for (sums, input) in sums.iter_mut().zip(inputs) {
                let input = simd.splat_f32s(*input);
                for (sum, weight) in sums.iter_mut().zip(weights) {
                    *sum = simd.mul_add_f32s(input, *weight, *sum);
                }
            }
        }
        let from = index * PANEL;
        let columns = PANEL.min(self.stride - from);
        let bias = self.bias.get(from..).unwrap_or_default();
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
            if let (Some(out), Some(line)) = (out.get_mut(from..from + columns), line.get(..columns)) {
                out.copy_from_slice(line);
            }
        }
    }
}

/// Rows side by side, `[inputs, rows]`, so that the kernel reads them in order.
fn interleaved(rows: &[f32], inputs: usize) -> Vec<f32> {
    let count = rows.len() / inputs.max(1);
    let mut out = vec![0.0; rows.len()];
    for (index, row) in rows.chunks(inputs.max(1)).enumerate() {
        for (slot, value) in out.iter_mut().skip(index).step_by(count.max(1)).zip(row) {
            *slot = *value;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn products_are_what_they_should_be() {
        for (rows, inputs, outputs) in [
            (1, 1, 1),
            (1, 7, 33),
            (3, 64, 31),
            (5, 5, 32),
            (30, 20, 100),
            (100, 12, 65),
        ] {
            let (x, w, b) = (
                numbers(rows * inputs, 1),
                numbers(inputs * outputs, 2),
                numbers(outputs, 3),
            );
            let out = product(&x, inputs, &pack(&w, inputs, outputs), &b, outputs);
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

    /// What exactness in all cache modes rests on.
    #[test]
    fn a_row_has_the_same_bits_in_any_batch() {
        let (inputs, outputs) = (96, 70);
        let packed = pack(&numbers(inputs * outputs, 2), inputs, outputs);
        let x = numbers(61 * inputs, 1);
        let all = product(&x, inputs, &packed, &[], outputs);
        for (from, to) in [(0, 1), (3, 5), (7, 20), (20, 60), (60, 61)] {
            let some = product(&x[from * inputs..to * inputs], inputs, &packed, &[], outputs);
            assert_eq!(some, all[from * outputs..to * outputs]);
        }
        assert!(product(&[], inputs, &packed, &[], outputs).is_empty());
    }
}
