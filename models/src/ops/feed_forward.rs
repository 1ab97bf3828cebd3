//! Feed-forward layers on the CPU: computes both products and the activation between them for some rows at a time.
//!
//! The intermediate rows of a task, several times as wide as its other rows, stay in its core's cache, and tasks
//! synchronise once instead of three times.

use std::cell::Cell;

use pulp::Arch;
use rayon::prelude::*;

use super::Activation;
use super::activation::{Activate, Gate};
use super::cpu_layers::{CpuNorm, PackedLinear, sum_into};
use super::fused::with_normalised;
use super::gemm::{FEW, is_small, rows_per_task};
use super::rows::Rows;

thread_local! {
    /// Buffer for the intermediate rows of a task, reused because a new vector would be zeroed each time.
    static HIDDEN: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Residual connection around a feed-forward layer.
pub(super) struct Residual<'a> {
    /// Norm before the layer.
    pub(super) norm: Option<&'a CpuNorm>,
}

/// Computes `down(activation(up(rows)))`; see [`Ops::feed_forward`](super::Ops::feed_forward), and with a residual
/// [`Ops::feed_forward_residual`](super::Ops::feed_forward_residual). The result is bit-identical to the separate
/// operations. `None` for few rows, whose products are better split by columns.
pub(super) fn feed_forward(
    rows: &Rows,
    residual: Option<&Residual<'_>>,
    [up, down]: [&PackedLinear; 2],
    (activation, gated): (Activation, bool),
) -> Option<Rows> {
    let count = rows.values.len().checked_div(up.inputs)?;
    let width = if gated { up.outputs / 2 } else { up.outputs };
    let few = count < FEW || is_small(rows.values.len().saturating_mul(up.outputs));
    if few || width != down.inputs || residual.is_some() && down.outputs != up.inputs {
        return None;
    }
    let norm = residual.and_then(|residual| residual.norm);
    let mut out = vec![0.0; count * down.outputs];
    let (arch, each) = (Arch::new(), rows_per_task(count));
    out.par_chunks_mut(each * down.outputs)
        .zip(rows.values.par_chunks(each * up.inputs))
        .for_each(|(out, rows)| {
            let count = rows.len() / up.inputs;
            let mut memory = HIDDEN.take();
            if memory.len() < count * up.outputs {
                memory.resize(count * up.outputs, 0.0);
            }
            let hidden = memory.get_mut(..count * up.outputs).unwrap_or_default();
            with_normalised(rows, norm, |rows| up.multiply_into(hidden, rows));
            if gated {
                let mut gate = vec![0.0; count * width];
                arch.dispatch(Gate {
                    rows: hidden,
                    out: &mut gate,
                    activation,
                    width,
                });
                down.multiply_into(out, &gate);
            } else {
                arch.dispatch(Activate {
                    values: &mut *hidden,
                    activation,
                });
                down.multiply_into(out, hidden);
            }
            HIDDEN.set(memory);
            if residual.is_some() {
                sum_into(out, rows);
            }
        });
    Some(Rows {
        values: out,
        width: down.outputs,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Ops;
    use super::super::cpu::Cpu;
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
    fn the_bits_are_those_of_the_three_operations() {
        let (inputs, hidden) = (96, 160);
        for kind in WeightType::ALL {
            for gated in [false, true] {
                let widths = if gated { 2 * hidden } else { hidden };
                let linear = |from: usize, to: usize, seed: u32| {
                    let weight = Cpu.prepare(numbers(from * to, seed), from, to, kind);
                    Cpu.linear(weight, numbers(to, seed + 1), from, to)
                };
                let (up, down) = (linear(inputs, widths, 1), linear(hidden, inputs, 3));
                for (count, is_fused) in [(FEW - 1, false), (61, true), (200, true)] {
                    let rows = Cpu.upload(numbers(count * inputs, 5), inputs);
                    let activated = Cpu.activate(Cpu.multiply(&rows, &up), Activation::Gelu, gated);
                    let expected = Cpu.multiply(&activated, &down);
                    let actual = Cpu.feed_forward(&rows, [&up, &down], Activation::Gelu, gated);
                    assert_eq!(actual, expected, "{kind}, {gated}, {count} rows");
                    let form = (Activation::Gelu, gated);
                    let fused = feed_forward(&rows, None, [&up, &down], form);
                    assert_eq!(fused.is_some(), is_fused, "{count} rows");

                    let norm = Cpu.norm(numbers(inputs, 7), Some(numbers(inputs, 8)), 1e-5);
                    for norm in [None, Some(&norm)] {
                        let normalised = norm.map(|norm| Cpu.normalise(&rows, norm));
                        let normalised = normalised.as_ref().unwrap_or(&rows);
                        let mut expected = Cpu.feed_forward(normalised, [&up, &down], form.0, gated);
                        Cpu.add(&mut expected, &rows);
                        let actual = Cpu.feed_forward_residual(&rows, norm, [&up, &down], form.0, gated);
                        assert_eq!(actual, expected, "{kind}, {gated}, {count} rows");
                    }
                }
            }
        }
    }
}
