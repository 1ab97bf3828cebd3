//! Operations by kernels for the CPU.

use std::borrow::Cow;

use pulp::Arch;
use rayon::prelude::*;

use super::activation::{Activate, Gate};
use super::attention;
use super::cpu_layers::{CpuNorm, PackedLinear, sum_into};
use super::feed_forward::{self, Residual};
use super::fused;
use super::gemm::gemm;
use super::packed::PreparedWeight;
use super::rows::Rows;
use super::{
    Activation, AttentionSpans, Convolution, EncoderAttention, Epilogue, Heads, Ops, OpsError, Rotary,
    ScoreRules, Span,
};
use super::{convolution, pooling, self_attention};
use crate::precision::WeightType;

/// Elements per task.
const CHUNK: usize = 1 << 14;

/// The CPU. Its matrix products are bit-identical for any batch.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cpu;

impl Ops for Cpu {
    type Matrix = Rows;
    type Linear = PackedLinear;
    type Norm = CpuNorm;

    const READS_OUTPUTS: bool = true;

    fn upload(&self, values: Vec<f32>, width: usize) -> Rows {
        Rows { values, width }
    }

    fn recycle(&self, matrix: Rows) -> Vec<f32> {
        matrix.values
    }

    fn values<'a>(&self, matrix: &'a Rows) -> Result<Cow<'a, [f32]>, OpsError> {
        Ok(Cow::Borrowed(&matrix.values))
    }

    fn gather(&self, spans: &[Span<'_, Rows>], width: usize) -> Rows {
        let count: usize = spans.iter().map(|span| span.count).sum();
        let mut values = Vec::with_capacity(count * width);
        for span in spans {
            values.extend_from_slice(span.matrix.span(span.from, span.count));
        }
        Rows { values, width }
    }

    fn write(&self, target: &mut Rows, source: &Rows, rows: &[(usize, usize)]) {
        let width = target.width;
        for (from, to) in rows {
            let values = source.span(*from, 1);
            let slots = target.values.get_mut(to * width..to * width + values.len());
            if let Some(slots) = slots {
                slots.copy_from_slice(values);
            }
        }
    }

    fn prepare(&self, weight: Vec<f32>, inputs: usize, outputs: usize, kind: WeightType) -> PreparedWeight {
        PreparedWeight::pack(&weight, inputs, outputs, kind)
    }

    fn prepare_transposed(
        &self,
        weight: Vec<f32>,
        inputs: usize,
        outputs: usize,
        kind: WeightType,
    ) -> PreparedWeight {
        PreparedWeight::pack_transposed(weight, inputs, outputs, kind)
    }

    fn read_output(&self, linear: &PackedLinear, output: usize, out: &mut [f32]) {
        linear.weight.read_column(output, linear.inputs, out);
    }

    fn linear(
        &self,
        prepared: PreparedWeight,
        bias: Vec<f32>,
        inputs: usize,
        outputs: usize,
    ) -> PackedLinear {
        PackedLinear {
            weight: prepared,
            bias,
            inputs,
            outputs,
        }
    }

    fn norm(&self, gamma: Vec<f32>, beta: Option<Vec<f32>>, epsilon: f32) -> CpuNorm {
        CpuNorm { gamma, beta, epsilon }
    }

    fn normalise(&self, rows: &Rows, norm: &CpuNorm) -> Rows {
        let mut out = rows.clone();
        let many = (CHUNK / rows.width.max(1)).max(1) * rows.width.max(1);
        for_each_chunk(&mut out.values, many, |rows| norm.apply(rows));
        out
    }

    fn normalise_heads(&self, rows: &mut Rows, heads: usize, norm: &CpuNorm) {
        let (arch, width) = (Arch::new(), rows.width.max(1));
        let many = (CHUNK / width).max(1) * width;
        for_each_chunk(&mut rows.values, many, |values| {
            for row in values.chunks_mut(width) {
                let part = heads * norm.gamma.len();
                if let Some(rows) = row.get_mut(..part) {
                    norm.apply_with(arch, rows);
                }
            }
        });
    }

    fn multiply(&self, rows: &Rows, linear: &PackedLinear) -> Rows {
        let PackedLinear {
            weight,
            bias,
            inputs,
            outputs,
        } = linear;
        Rows {
            values: gemm(&rows.values, *inputs, weight.panels(), bias, *outputs),
            width: *outputs,
        }
    }

    fn scale(&self, rows: &mut Rows, factors: &CpuNorm) {
        let width = rows.width.max(1);
        for_each_chunk(&mut rows.values, (CHUNK / width).max(1) * width, |values| {
            for row in values.chunks_mut(width) {
                for (value, factor) in row.iter_mut().zip(&factors.gamma) {
                    *value *= factor;
                }
            }
        });
    }

    fn add(&self, rows: &mut Rows, other: &Rows) {
        if rows.values.len() <= CHUNK {
            sum_into(&mut rows.values, &other.values);
            return;
        }
        let parts = rows
            .values
            .par_chunks_mut(CHUNK)
            .zip(other.values.par_chunks(CHUNK));
        parts.for_each(|(rows, other)| sum_into(rows, other));
    }

    fn times(&self, rows: &mut Rows, other: &Rows) {
        let parts = rows
            .values
            .par_chunks_mut(CHUNK)
            .zip(other.values.par_chunks(CHUNK));
        parts.for_each(|(rows, other)| {
            for (value, factor) in rows.iter_mut().zip(other) {
                *value *= factor;
            }
        });
    }

    fn add_scaled(&self, rows: &mut Rows, other: &Rows, at: &[usize], factors: &[f32]) {
        let width = rows.width;
        let scaled = other
            .values
            .chunks_exact(width.max(1))
            .zip(at.iter().zip(factors));
        for (other, (row, factor)) in scaled {
            let row = rows.values.get_mut(row * width..(row + 1) * width);
            for (value, other) in row.unwrap_or_default().iter_mut().zip(other) {
                *value += factor * other;
            }
        }
    }

    fn activate(&self, mut rows: Rows, activation: Activation, gated: bool) -> Rows {
        let arch = Arch::new();
        if !gated {
            for_each_chunk(&mut rows.values, CHUNK, |values| {
                arch.dispatch(Activate { values, activation });
            });
            return rows;
        }
        let width = rows.width / 2;
        let mut out = vec![0.0; rows.values.len() / 2];
        let many = (CHUNK / width.max(1)).max(1);
        let pairs = out
            .par_chunks_mut((many * width).max(1))
            .zip(rows.values.par_chunks((many * rows.width).max(1)));
        pairs.for_each(|(out, rows)| {
            arch.dispatch(Gate {
                rows,
                out,
                activation,
                width,
            });
        });
        Rows { values: out, width }
    }

    fn feed_forward(
        &self,
        rows: &Rows,
        [up, down]: [&PackedLinear; 2],
        activation: Activation,
        gated: bool,
    ) -> Rows {
        feed_forward::feed_forward(rows, None, [up, down], (activation, gated)).unwrap_or_else(|| {
            self.multiply(&self.activate(self.multiply(rows, up), activation, gated), down)
        })
    }

    fn multiply_normalised(&self, rows: &Rows, norm: &CpuNorm, linear: &PackedLinear) -> Rows {
        fused::multiply(rows, Some(norm), linear, None)
            .unwrap_or_else(|| self.multiply(&self.normalise(rows, norm), linear))
    }

    fn multiply_and_add(&self, rows: &Rows, linear: &PackedLinear, residual: &Rows) -> Rows {
        fused::multiply(rows, None, linear, Some(residual)).unwrap_or_else(|| {
            let mut out = self.multiply(rows, linear);
            self.add(&mut out, residual);
            out
        })
    }

    fn feed_forward_residual(
        &self,
        rows: &Rows,
        norm: Option<&CpuNorm>,
        layers: [&PackedLinear; 2],
        activation: Activation,
        gated: bool,
    ) -> Rows {
        let residual = Residual { norm };
        feed_forward::feed_forward(rows, Some(&residual), layers, (activation, gated)).unwrap_or_else(|| {
            let normalised = norm.map(|norm| self.normalise(rows, norm));
            let mut out = self.feed_forward(normalised.as_ref().unwrap_or(rows), layers, activation, gated);
            self.add(&mut out, rows);
            out
        })
    }

    fn rotate(&self, rows: &mut Rows, heads: usize, head_dim: usize, rotary: &Rotary, positions: &[usize]) {
        let width = rows.width.max(1);
        rows.values
            .par_chunks_mut(width)
            .zip(positions)
            .for_each(|(row, position)| {
                let turns: Vec<(f32, f32)> = rotary
                    .frequencies
                    .iter()
                    .map(|frequency| (*position as f32 * frequency).sin_cos())
                    .map(|(sin, cos)| (sin * rotary.scale, cos * rotary.scale))
                    .collect();
                for head in row.chunks_mut(head_dim.max(1)).take(heads) {
                    rotate_pair(head, rotary, &turns);
                }
            });
    }

    fn attend(
        &self,
        queries: &Rows,
        requests: &[AttentionSpans<'_, Rows>],
        heads: &Heads,
        rules: ScoreRules<'_, Rows>,
    ) -> Rows {
        attention::attend(queries, requests, heads, rules)
    }

    fn attend_sequences(
        &self,
        projected: &Rows,
        sequences: &[&[bool]],
        attention: &EncoderAttention<'_, Rows>,
    ) -> Rows {
        self_attention::attend_sequences(projected, sequences, attention)
    }

    fn convolve(&self, images: &Rows, convolution: &Convolution, linear: &PackedLinear) -> Rows {
        convolution::convolve(images, convolution, linear, Epilogue::default())
    }

    fn convolve_with(
        &self,
        images: &Rows,
        convolution: &Convolution,
        linear: &PackedLinear,
        epilogue: Epilogue<'_, Rows>,
    ) -> Rows {
        convolution::convolve(images, convolution, linear, epilogue)
    }

    fn depthwise_convolve(&self, images: &Rows, convolution: &Convolution, weights: &Rows) -> Rows {
        pooling::depthwise_convolve(images, convolution, weights)
    }

    fn max_pool(&self, images: &Rows, convolution: &Convolution) -> Rows {
        pooling::max_pool(images, convolution)
    }

    fn mean(&self, rows: &Rows, count: usize) -> Rows {
        pooling::mean(rows, count)
    }

    fn scale_images(&self, rows: &mut Rows, count: usize, factors: &Rows) {
        pooling::scale_images(rows, count, factors);
    }

    fn global_response_norm(&self, rows: &mut Rows, count: usize, norm: &CpuNorm) {
        let beta = norm.beta.as_deref().unwrap_or_default();
        pooling::global_response_norm(rows, count, &norm.gamma, beta, norm.epsilon);
    }

    fn select(&self, matrix: &Rows, rows: &[usize]) -> Rows {
        let width = matrix.width;
        let mut values = Vec::with_capacity(rows.len() * width);
        for row in rows {
            let end = values.len() + width;
            values.extend_from_slice(matrix.span(*row, 1));
            values.resize(end, 0.0);
        }
        Rows { values, width }
    }

    fn with_width(&self, matrix: Rows, width: usize) -> Rows {
        Rows {
            values: matrix.values,
            width,
        }
    }
}

/// Calls `compute` for chunks of the values, on all cores; computes a single chunk on this thread.
fn for_each_chunk(values: &mut [f32], size: usize, compute: impl Fn(&mut [f32]) + Send + Sync) {
    if values.len() <= size {
        compute(values);
    } else {
        values.par_chunks_mut(size).for_each(compute);
    }
}

fn rotate_pair(head: &mut [f32], rotary: &Rotary, turns: &[(f32, f32)]) {
    for (index, (sin, cos)) in turns.iter().enumerate() {
        let (first, second) = rotary.pair(index);
        if let (Some(a), Some(b)) = (head.get(first).copied(), head.get(second).copied()) {
            for (at, value) in [(first, a * cos - b * sin), (second, b * cos + a * sin)] {
                if let Some(slot) = head.get_mut(at) {
                    *slot = value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_norm_centres_and_rms_norm_does_not() {
        let rows = Cpu.upload(vec![1.0, 3.0, 5.0, 7.0], 4);
        let layer = Cpu.norm(vec![1.0; 4], Some(vec![0.0; 4]), 0.0);
        let expected = [-1.341_640_8, -0.447_213_6, 0.447_213_6, 1.341_640_8];
        for (actual, expected) in Cpu.normalise(&rows, &layer).values.iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-6);
        }
        let rms = Cpu.norm(vec![2.0; 4], None, 0.0);
        let scale = 2.0 / 21.0_f32.sqrt();
        for (actual, x) in Cpu.normalise(&rows, &rms).values.iter().zip([1.0, 3.0, 5.0, 7.0]) {
            assert!((actual - x * scale).abs() < 1e-6);
        }
    }

    #[test]
    fn spans_are_gathered_and_written() {
        let source = Cpu.upload((0..12).map(|value| value as f32).collect(), 3);
        let span = |from, count| Span {
            matrix: &source,
            from,
            count,
        };
        let gathered = Cpu.gather(&[span(2, 2), span(0, 1)], 3);
        assert_eq!(gathered.values, [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 0.0, 1.0, 2.0]);
        let mut target = Cpu.upload(vec![0.0; 9], 3);
        Cpu.write(&mut target, &source, &[(1, 2), (3, 0)]);
        assert_eq!(target.values, [9.0, 10.0, 11.0, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0]);
    }
}
