//! Attention pooling head of `SigLIP`'s image encoder (Zhai et al. 2023): a learned query attends to the patches,
//! followed by a feed-forward.

use super::head::Tokens;
use crate::architectures::encoder::EncoderConfig;
use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{Activation, Ops};
use crate::runtime::batch::device_failed;
use crate::runtime::model::ModelError;

/// Attention of a learned query to the tokens of an image, followed by a feed-forward.
pub(in crate::architectures) struct Probe<O: Ops> {
    /// Layer from a token to its score per head, with the query folded into the key projection.
    scores: O::Linear,
    values: O::Linear,
    output: O::Linear,
    norm: O::Norm,
    layers: [O::Linear; 2],
    activation: Activation,
    heads: usize,
}

impl<O: Ops> Probe<O> {
    /// Takes the tensors with the prefix `prefix`; dimensions are those of the encoder.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        prefix: &str,
        encoder: &EncoderConfig,
    ) -> Result<Self, LoadError> {
        let (width, heads, between) = (encoder.width, encoder.heads, encoder.intermediate_size);
        let at = |name: &str| format!("{prefix}.{name}");
        let probe = layers.weights.take(&at("probe"), &[1, 1, width])?;
        let weight = layers
            .weights
            .take(&at("attention.in_proj_weight"), &[3 * width, width])?;
        let bias = layers.weights.take(&at("attention.in_proj_bias"), &[3 * width])?;
        let (queries, others) = weight.split_at(width * width);
        let (keys, values) = others.split_at(width * width);
        let head = width / heads.max(1);
        let scale = 1.0 / (head as f32).sqrt();
        let query = queries.chunks(width.max(1)).zip(&bias);
        let query = query.map(|(row, bias)| scale * (dot(row, &probe) + bias));
        // The key biases shift all scores of a head equally, so they are omitted.
        let mut scores = vec![0.0; width * heads];
        for (place, (row, query)) in keys.chunks(width.max(1)).zip(query).enumerate() {
            let of_head = scores.iter_mut().skip(place / head.max(1)).step_by(heads.max(1));
            for (score, key) in of_head.zip(row) {
                *score += query * key;
            }
        }
        let value_bias = bias.get(2 * width..).unwrap_or_default().to_vec();
        Ok(Self {
            scores: layers.upload_folded(scores, Vec::new(), width, heads),
            values: layers.upload(transposed(values, width), value_bias, width, width),
            output: layers.linear(&at("attention.out_proj"), width, width)?,
            norm: layers.layer_norm(&at("layernorm"), width, encoder.epsilon)?,
            layers: [
                layers.linear(&at("mlp.fc1"), width, between)?,
                layers.linear(&at("mlp.fc2"), between, width)?,
            ],
            activation: encoder.activation,
            heads,
        })
    }

    /// Returns a vector per image, from the tokens in `states`.
    ///
    /// # Errors
    /// [`ModelError::Failed`] with the message of the device.
    pub(in crate::architectures) fn vectors(
        &self,
        ops: &O,
        states: &O::Matrix,
        Tokens { count, width, .. }: Tokens,
    ) -> Result<O::Matrix, ModelError> {
        let (scores, values) = (
            ops.multiply(states, &self.scores),
            ops.multiply(states, &self.values),
        );
        let failed = |error| device_failed(&error);
        let scores = ops.values(&scores).map_err(failed)?;
        let values = ops.values(&values).map_err(failed)?;
        let head = width / self.heads.max(1);
        let mut pooled = Vec::new();
        let images = scores.chunks((count * self.heads).max(1));
        for (scores, values) in images.zip(values.chunks((count * width).max(1))) {
            for part in 0..self.heads {
                let own = scores.iter().skip(part).step_by(self.heads.max(1));
                let largest = own.clone().copied().fold(f32::NEG_INFINITY, f32::max);
                let weights: Vec<f32> = own.map(|score| (score - largest).exp()).collect();
                let sum: f32 = weights.iter().sum();
                let from = pooled.len();
                pooled.resize(from + head, 0.0);
                let result: &mut [f32] = pooled.get_mut(from..).unwrap_or_default();
                for (weight, row) in weights.iter().zip(values.chunks(width.max(1))) {
                    let row = row.get(part * head..).unwrap_or_default();
                    for (result, value) in result.iter_mut().zip(row) {
                        *result += weight / sum * value;
                    }
                }
            }
        }
        let attended = ops.multiply(&ops.upload(pooled, width), &self.output);
        let [up, down] = &self.layers;
        Ok(ops.feed_forward_residual(&attended, Some(&self.norm), [up, down], self.activation, false))
    }
}

/// Returns the dot product of two rows.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}
