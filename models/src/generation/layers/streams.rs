//! AltUp streams on the device. Their coefficients are computed in host memory, like those of experts.

use super::layer::DevicePerLayerGate;
use super::layer_context::LayerContext;
use crate::decoder::weights::{LinearWeights, StreamProjections};
use crate::ops::{Activation, Ops, OpsError, Span};
use crate::precision::WeightType;

/// Minimum mean square of a stream before scaling.
const LEAST: f32 = 1e-5;

/// Prediction and correction of the streams in a layer.
pub(crate) struct DeviceStreams<M: Ops> {
    pub(crate) router_norm: M::Norm,
    pub(crate) router: M::Linear,
    /// Prediction coefficients, `[streams * streams, streams]`.
    pub(crate) prediction: Vec<f32>,
    /// Correction coefficients, `[streams, streams]`.
    pub(crate) correction: Vec<f32>,
    pub(crate) output_scale: Option<M::Norm>,
    pub(crate) residual: [M::Linear; 2],
    pub(crate) residual_norm: M::Norm,
    /// Scale factors `1 / sqrt(2)`.
    pub(crate) half: M::Norm,
}

impl<M: Ops> DeviceStreams<M> {
    /// Returns the router's result for hidden states, one row per token.
    fn routed(&self, ops: &M, x: &M::Matrix) -> Result<Vec<f32>, OpsError> {
        let routed = ops.multiply(&ops.normalise(x, &self.router_norm), &self.router);
        let routed = ops.activate(routed, Activation::Tanh, false);
        Ok(ops.values(&routed)?.into_owned())
    }

    /// Predicts all streams from all streams, in place, and returns a copy of the first one, `x`.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn predict(
        &self,
        ctx: LayerContext<'_, M>,
        x: &mut M::Matrix,
        others: &mut [M::Matrix],
    ) -> Result<M::Matrix, OpsError> {
        let (ops, width, count) = (ctx.ops, ctx.model_config.width, others.len() + 1);
        let routed = self.routed(ops, x)?;
        let tokens = routed.len() / count;
        let at: Vec<usize> = (0..tokens).collect();
        let before = std::iter::once(&*x).chain(&*others);
        let before: Vec<M::Matrix> = before.map(|stream| copy(ops, stream, tokens, width)).collect();
        let rows = self.prediction.chunks(count * count);
        for (stream, rows) in std::iter::once(&mut *x).chain(others).zip(rows) {
            for (before, row) in before.iter().zip(rows.chunks(count)) {
                ops.add_scaled(stream, before, &at, &products(&routed, row));
            }
        }
        Ok(copy(ops, x, tokens, width))
    }

    /// Adds the learned residual to the attention's output, and scales the sum.
    pub(crate) fn add_residual(&self, ops: &M, x: &mut M::Matrix, input: &M::Matrix) {
        let [left, right] = &self.residual;
        let learned = ops.multiply(&ops.multiply(input, left), right);
        ops.add(x, input);
        ops.add(x, &ops.normalise(&learned, &self.residual_norm));
        ops.scale(x, &self.half);
    }

    /// Corrects the streams by the change of the first one, `x`, from its `prediction`; adds the per-layer embedding
    /// to the other streams.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn correct(
        &self,
        ctx: LayerContext<'_, M>,
        (x, prediction): (&mut M::Matrix, M::Matrix),
        others: &mut [M::Matrix],
        token_gate: Option<&DevicePerLayerGate<M>>,
    ) -> Result<(), OpsError> {
        let (ops, width, count) = (ctx.ops, ctx.model_config.width, others.len() + 1);
        let routed = self.routed(ops, x)?;
        let tokens = routed.len() / count;
        let at: Vec<usize> = (0..tokens).collect();
        let mut change = copy(ops, x, tokens, width);
        ops.add_scaled(&mut change, &prediction, &at, &vec![-1.0; tokens]);
        *x = prediction;
        let streams = std::iter::once(&mut *x).chain(&mut *others);
        for (stream, row) in streams.zip(self.correction.chunks(count)) {
            let mut factors = products(&routed, row);
            for factor in &mut factors {
                *factor += 1.0;
            }
            ops.add_scaled(stream, &change, &at, &factors);
        }
        let Some((gate, input)) = token_gate.zip(ctx.token_input) else {
            return Ok(());
        };
        let mut first = copy(ops, x, tokens, width);
        if let Some(scale) = &self.output_scale {
            ops.scale(&mut first, scale);
        }
        let read = gate.read(ctx, &first, input);
        for stream in others {
            ops.add(stream, &read);
        }
        Ok(())
    }
}

/// Projections from and to the streams.
pub(crate) struct DeviceProjections<M: Ops> {
    begin: Vec<M::Linear>,
    end: Vec<M::Linear>,
    /// Device memory, bytes.
    pub(crate) bytes: u64,
}

impl<M: Ops> DeviceProjections<M> {
    /// Uploads the projections with weights of this type.
    pub(crate) fn new(ops: &M, projections: StreamProjections, kind: WeightType) -> Self {
        let bytes = projections.bytes(kind) as u64;
        let upload = |linears: Vec<LinearWeights>| {
            let linears = linears.into_iter().map(|linear| {
                let LinearWeights {
                    weight,
                    bias,
                    inputs,
                    outputs,
                    ..
                } = linear.decoded();
                let prepared = ops.prepare(weight, inputs, outputs, kind);
                ops.linear(prepared, bias, inputs, outputs)
            });
            linears.collect()
        };
        Self {
            begin: upload(projections.begin),
            end: upload(projections.end),
            bytes,
        }
    }

    /// Returns the streams besides the embedding `x`, scaled to its root mean square.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn begin(&self, ops: &M, x: &M::Matrix, width: usize) -> Result<Vec<M::Matrix>, OpsError> {
        let lengths = squares(ops, x, width)?;
        let scaled = |linear| scaled(ops, &ops.multiply(x, linear), width, &lengths, 1.0);
        self.begin.iter().map(scaled).collect()
    }

    /// Returns the mean of the streams, after scaling to the root mean square of the first one, `x`.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn end(
        &self,
        ops: &M,
        x: &M::Matrix,
        others: &[M::Matrix],
        width: usize,
    ) -> Result<M::Matrix, OpsError> {
        let lengths = squares(ops, x, width)?;
        let share = 1.0 / (others.len() + 1) as f32;
        let at: Vec<usize> = (0..lengths.len()).collect();
        let mut mean = ops.zeros(lengths.len(), width);
        ops.add_scaled(&mut mean, x, &at, &vec![share; lengths.len()]);
        for (stream, linear) in others.iter().zip(&self.end) {
            ops.add(
                &mut mean,
                &scaled(ops, &ops.multiply(stream, linear), width, &lengths, share)?,
            );
        }
        Ok(mean)
    }
}

/// Scales each row to a given mean square, times a factor.
fn scaled<M: Ops>(
    ops: &M,
    rows: &M::Matrix,
    width: usize,
    lengths: &[f32],
    factor: f32,
) -> Result<M::Matrix, OpsError> {
    let own = squares(ops, rows, width)?;
    let factors = own.iter().zip(lengths);
    let factors = factors.map(|(own, length)| factor * length.sqrt() / own.max(LEAST).sqrt());
    let at: Vec<usize> = (0..own.len()).collect();
    let mut out = ops.zeros(own.len(), width);
    ops.add_scaled(&mut out, rows, &at, &factors.collect::<Vec<f32>>());
    Ok(out)
}

/// Returns the mean square of every row.
fn squares<M: Ops>(ops: &M, rows: &M::Matrix, width: usize) -> Result<Vec<f32>, OpsError> {
    let values = ops.values(rows)?;
    let rows = values.chunks_exact(width.max(1));
    let squares = rows.map(|row| {
        let sum: f64 = row.iter().map(|value| f64::from(*value).powi(2)).sum();
        (sum / width.max(1) as f64) as f32
    });
    Ok(squares.collect())
}

/// Returns the dot product of every row of `routed` with `row`.
fn products(routed: &[f32], row: &[f32]) -> Vec<f32> {
    let tokens = routed.chunks_exact(row.len().max(1));
    let products = tokens.map(|token| token.iter().zip(row).map(|(one, other)| one * other).sum());
    products.collect()
}

fn copy<M: Ops>(ops: &M, matrix: &M::Matrix, count: usize, width: usize) -> M::Matrix {
    let all = Span {
        matrix,
        from: 0,
        count,
    };
    ops.gather(&[all], width)
}
