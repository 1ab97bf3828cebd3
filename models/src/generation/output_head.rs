//! The projection to logits on a device.

use crate::decoder::weights::{Decoder, LinearWeights};
use crate::ops::Ops;
use crate::precision::Table;

/// The head of a decoder. It holds the embedding too if both have the same weights and the device's can be read.
pub(super) struct OutputHead<M: Ops> {
    linear: M::Linear,
    /// Its memory on the device, bytes.
    pub(super) bytes: u64,
}

impl<M: Ops> OutputHead<M> {
    /// Takes the decoder's head, and its embedding if the head holds it.
    pub(super) fn take(ops: &M, decoder: &mut Decoder) -> Self {
        let kind = decoder.weight_type.of_embeddings();
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
            bytes: prepared.bytes() + size_of_val(bias.as_slice()) as u64,
            linear: ops.linear(prepared, bias, inputs, outputs),
        }
    }

    /// Computes the logits of normalised hidden vectors.
    pub(super) fn logits(&self, ops: &M, rows: &M::Matrix) -> M::Matrix {
        ops.multiply(rows, &self.linear)
    }

    /// Writes the embedding of a token, if this head holds it.
    pub(super) fn read_embedding(&self, ops: &M, token: usize, out: &mut [f32]) {
        ops.read_output(&self.linear, token, out);
    }
}
