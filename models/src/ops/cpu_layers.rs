//! Linear layers and norms of the CPU, applied to some rows on one thread.

use pulp::{Arch, Simd, WithSimd};

use super::gemm::gemm_into;
use super::packed::PreparedWeight;

/// A linear layer with packed weights.
#[derive(Debug)]
pub struct PackedLinear {
    pub(super) weight: PreparedWeight,
    pub(super) bias: Vec<f32>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// Weights of a norm.
#[derive(Debug)]
pub struct CpuNorm {
    pub(super) gamma: Vec<f32>,
    pub(super) beta: Option<Vec<f32>>,
    pub(super) epsilon: f32,
}

/// Adds `other` to `rows`, in place.
pub(super) fn sum_into(rows: &mut [f32], other: &[f32]) {
    for (value, other) in rows.iter_mut().zip(other) {
        *value += other;
    }
}

struct Normalise<'a> {
    rows: &'a mut [f32],
    norm: &'a CpuNorm,
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let CpuNorm { gamma, beta, epsilon } = self.norm;
        let width = gamma.len().max(1);
        for row in self.rows.chunks_mut(width) {
            let mean = match beta {
                Some(_) => sum_of(row, |value| value) / width as f32,
                None => 0.0,
            };
            let variance = sum_of(row, |value| (value - mean) * (value - mean)) / width as f32;
            let factor = 1.0 / (variance + epsilon).sqrt();
            let weighted = row.iter_mut().zip(gamma);
            match beta {
                Some(beta) => weighted.zip(beta).for_each(|((value, gamma), beta)| {
                    *value = (*value - mean) * factor * gamma + beta;
                }),
                None => weighted.for_each(|(value, gamma)| *value = *value * factor * gamma),
            }
        }
    }
}

/// Sums in sixteen lanes, which allows vectorisation and keeps the rounding error small.
#[inline(always)]
fn sum_of(values: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += of(*value);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| of(*value)).sum::<f32>()
}

impl CpuNorm {
    /// Normalises rows in place, on this thread.
    pub(super) fn apply(&self, rows: &mut [f32]) {
        self.apply_with(Arch::new(), rows);
    }

    /// Same as [`Self::apply`], with CPU features detected before.
    pub(super) fn apply_with(&self, arch: Arch, rows: &mut [f32]) {
        arch.dispatch(Normalise { rows, norm: self });
    }
}

impl PackedLinear {
    /// Multiplies rows by the layer and adds its bias, on this thread; `out` is `[rows, outputs]`.
    pub(super) fn multiply_into(&self, out: &mut [f32], rows: &[f32]) {
        gemm_into(
            out,
            self.outputs,
            rows,
            self.inputs,
            self.weight.panels(),
            &self.bias,
        );
    }
}
