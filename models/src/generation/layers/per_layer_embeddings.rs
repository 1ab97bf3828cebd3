//! Per-layer embeddings, computed when tokens are embedded.

use crate::decoder::weights::{LinearWeights, PerLayerEmbeddings};
use crate::ops::{Ops, OpsError};
use crate::precision::{Table, WeightType};

/// Per-layer embeddings on the device; the table stays in host memory, like an embedding.
pub(crate) struct DeviceTokenLayers<M: Ops> {
    width: usize,
    table: Table,
    table_scale: f32,
    projection: M::Linear,
    projection_scale: f32,
    norm: M::Norm,
    /// Device memory, bytes.
    pub(crate) bytes: u64,
}

impl<M: Ops> DeviceTokenLayers<M> {
    /// Uploads projection and norm; the projection gets weights of this type.
    pub(crate) fn new(ops: &M, layers: PerLayerEmbeddings, epsilon: f32, kind: WeightType) -> Self {
        let PerLayerEmbeddings {
            width,
            table,
            table_scale,
            projection,
            projection_scale,
            norm,
        } = layers;
        let bytes = projection.bytes(kind) + size_of::<f32>() * norm.gamma.len();
        let LinearWeights {
            weight,
            bias,
            inputs,
            outputs,
            ..
        } = projection.decoded();
        let prepared = ops.prepare(weight, inputs, outputs, kind);
        Self {
            width,
            table,
            table_scale,
            projection: ops.linear(prepared, bias, inputs, outputs),
            projection_scale,
            norm: ops.norm(norm.gamma, norm.beta, epsilon),
            bytes: bytes as u64,
        }
    }

    /// Returns the inputs of every layer, each `[tokens, width]`, for tokens with the embeddings `x`.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn inputs(&self, ops: &M, tokens: &[u32], x: &M::Matrix) -> Result<Vec<M::Matrix>, OpsError> {
        let projected = ops.multiply(x, &self.projection);
        let projected = ops.values(&projected)?;
        let all = projected.len() / tokens.len().max(1);
        let layers = all / self.width.max(1);
        let scaled = projected.iter().map(|value| value * self.projection_scale);
        let mut parts = ops.upload(scaled.collect(), all);
        ops.normalise_heads(&mut parts, layers, &self.norm);
        let parts = ops.values(&parts)?;
        let mut inputs = vec![Vec::with_capacity(tokens.len() * self.width); layers];
        let mut row = vec![0.0; all];
        for (token, projected) in tokens.iter().zip(parts.chunks_exact(all.max(1))) {
            row.fill(0.0);
            self.table.read_row(*token as usize, &mut row);
            let sum = projected.iter().zip(&row);
            let sum: Vec<f32> = sum
                .map(|(one, other)| (one + other * self.table_scale) * std::f32::consts::FRAC_1_SQRT_2)
                .collect();
            for (input, part) in inputs.iter_mut().zip(sum.chunks_exact(self.width.max(1))) {
                input.extend_from_slice(part);
            }
        }
        Ok(inputs
            .into_iter()
            .map(|input| ops.upload(input, self.width))
            .collect())
    }
}
