//! The projection to logits on a device.

use crate::decoder::weights::{Decoder, HeadLayer, LinearWeights};
use crate::ops::{Activation, Ops};
use crate::precision::Table;

/// Head of a decoder. Also stores the embedding if both have the same weights and the device can read them back.
pub(crate) struct OutputHead<M: Ops> {
    /// Layer before the head, with its activation and norm.
    layer: Option<(M::Linear, Activation, M::Norm)>,
    linear: M::Linear,
    /// Device memory, bytes.
    pub(crate) bytes: u64,
}

impl<M: Ops> OutputHead<M> {
    /// Takes the head out of the decoder, with the embedding if the head stores it.
    pub(crate) fn take(ops: &M, decoder: &mut Decoder) -> Self {
        let (epsilon, kind) = (decoder.model_config.epsilon, decoder.weight_type);
        let mut bytes = 0;
        let layer = decoder.head_layer.take().map(|layer| {
            let HeadLayer {
                linear,
                activation,
                norm,
            } = layer;
            let LinearWeights {
                weight,
                bias,
                inputs,
                outputs,
                ..
            } = linear.decoded();
            let prepared = ops.prepare(weight, inputs, outputs, kind);
            let floats = bias.len() + norm.elements();
            bytes += prepared.bytes() + (floats * size_of::<f32>()) as u64;
            let linear = ops.linear(prepared, bias, inputs, outputs);
            (linear, activation, ops.norm(norm.gamma, norm.beta, epsilon))
        });
        let kind = kind.of_embeddings();
        let LinearWeights {
            weight,
            bias,
            inputs,
            outputs,
            shared,
            ..
        } = std::mem::take(&mut decoder.head).decoded();
        let prepared = if shared {
            let embedding = if M::READS_OUTPUTS {
                std::mem::take(&mut decoder.embedding)
            } else {
                decoder.embedding.clone()
            };
            ops.prepare_transposed(Table::into_values(embedding), inputs, outputs, kind)
        } else {
            ops.prepare(weight, inputs, outputs, kind)
        };
        Self {
            layer,
            bytes: bytes + prepared.bytes() + size_of_val(bias.as_slice()) as u64,
            linear: ops.linear(prepared, bias, inputs, outputs),
        }
    }

    /// Computes the logits of normalised hidden states.
    pub(crate) fn logits(&self, ops: &M, rows: &M::Matrix) -> M::Matrix {
        let Some((layer, activation, norm)) = &self.layer else {
            return ops.multiply(rows, &self.linear);
        };
        let rows = ops.activate(ops.multiply(rows, layer), *activation, false);
        ops.multiply(&ops.normalise(&rows, norm), &self.linear)
    }

    /// Writes the embedding of a token to `out`, if this head stores it.
    pub(crate) fn read_embedding(&self, ops: &M, token: usize, out: &mut [f32]) {
        ops.read_output(&self.linear, token, out);
    }
}
