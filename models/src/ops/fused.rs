//! Matrix products on the CPU, fused with a preceding norm or a following residual addition.
//!
//! The rows of a task stay in its core's cache, and tasks synchronise once instead of two or three times.

use std::cell::Cell;

use rayon::prelude::*;

use super::cpu_layers::{CpuNorm, PackedLinear, sum_into};
use super::gemm::{FEW, is_small, rows_per_task};
use super::rows::Rows;

thread_local! {
    /// Buffer for the normalised rows of a task.
    static NORMALISED: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Calls `compute` with the rows, after the norm if there is one.
pub(super) fn with_normalised(rows: &[f32], norm: Option<&CpuNorm>, compute: impl FnOnce(&[f32])) {
    let Some(norm) = norm else {
        return compute(rows);
    };
    let mut memory = NORMALISED.take();
    memory.clear();
    memory.extend_from_slice(rows);
    norm.apply(&mut memory);
    compute(&memory);
    NORMALISED.set(memory);
}

/// Applies the norm if there is one, a linear layer, and the residual if there is one. The result is bit-identical to
/// the separate operations. `None` for few rows, whose products are better split by columns.
pub(super) fn multiply(
    rows: &Rows,
    norm: Option<&CpuNorm>,
    linear: &PackedLinear,
    residual: Option<&Rows>,
) -> Option<Rows> {
    let PackedLinear { inputs, outputs, .. } = *linear;
    let count = rows.values.len().checked_div(inputs)?;
    if count < FEW || outputs == 0 || is_small(rows.values.len().saturating_mul(outputs)) {
        return None;
    }
    let mut out = vec![0.0; count * outputs];
    let each = rows_per_task(count);
    out.par_chunks_mut(each * outputs)
        .zip(rows.values.par_chunks(each * inputs))
        .enumerate()
        .for_each(|(index, (out, rows))| {
            with_normalised(rows, norm, |rows| linear.multiply_into(out, rows));
            if let Some(residual) = residual {
                sum_into(out, residual.span(index * each, each.min(count - index * each)));
            }
        });
    Some(Rows {
        values: out,
        width: outputs,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Ops;
    use super::super::cpu::Cpu;
    use super::*;
    use crate::precision::WeightType;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count)
            .map(|index| ((index * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0)
            .collect()
    }

    #[test]
    fn the_bits_are_those_of_the_single_operations() {
        let (inputs, outputs) = (96, 160);
        let weight = Cpu.prepare(numbers(inputs * outputs, 1), inputs, outputs, WeightType::F32);
        let linear = Cpu.linear(weight, numbers(outputs, 2), inputs, outputs);
        let norm = Cpu.norm(numbers(inputs, 3), Some(numbers(inputs, 4)), 1e-5);
        for (count, is_fused) in [(FEW - 1, false), (61, true), (200, true)] {
            let rows = Cpu.upload(numbers(count * inputs, 5), inputs);
            let residual = Cpu.upload(numbers(count * outputs, 6), outputs);
            let fused = multiply(&rows, Some(&norm), &linear, Some(&residual));
            assert_eq!(fused.is_some(), is_fused, "{count} rows");

            let normalised = Cpu.multiply(&Cpu.normalise(&rows, &norm), &linear);
            assert_eq!(Cpu.multiply_normalised(&rows, &norm, &linear), normalised);
            let mut sum = Cpu.multiply(&rows, &linear);
            Cpu.add(&mut sum, &residual);
            assert_eq!(Cpu.multiply_and_add(&rows, &linear, &residual), sum);
        }
    }

    #[test]
    fn not_a_number_stays_in_its_row() {
        let (count, width) = (50, 128);
        let weight = Cpu.prepare(numbers(width * width, 1), width, width, WeightType::F32);
        let linear = Cpu.linear(weight, Vec::new(), width, width);
        let norm = Cpu.norm(vec![1.0; width], Some(vec![0.0; width]), 1e-5);
        let mut values = numbers(count * width, 2);
        values[40 * width + 3] = f32::NAN;
        let rows = Cpu.upload(values, width);
        let out = multiply(&rows, Some(&norm), &linear, None).unwrap();
        for (row, values) in out.values.chunks(width).enumerate() {
            assert!(values.iter().all(|value| value.is_nan() == (row == 40)), "{row}");
        }
    }
}
