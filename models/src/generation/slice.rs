//! A run of a decoder's layers, for a model that is cut over several devices (HybridServe Edinburgh §V: the partitions `S_i`).
//!
//! It computes whole texts and keeps nothing of them: what goes from slice to slice are hidden states, and out of the last one come the
//! logits of each text's next token.

use super::layer::{HostLayer, Layer, LayerContext};
use crate::decoder::weights::{Decoder, ModelConfig};
use crate::ops::{AttentionSpans, Ops, OpsError, Span};

/// Some consecutive layers of a decoder, and its head if they are the last.
pub(crate) struct DecoderSlice<M: Ops> {
    ops: M,
    /// Embeddings; its layers and its head are taken out.
    decoder: Decoder,
    layers: Vec<Layer<M>>,
    position_bias: Option<M::Matrix>,
    output_head: Option<OutputHead<M>>,
}

/// What makes logits of hidden states.
struct OutputHead<M: Ops> {
    norm: M::Norm,
    head: M::Linear,
}

impl<M: Ops> DecoderSlice<M> {
    /// The layers that `decoder` has, with its norm and head if they are the `last`.
    pub(crate) fn new(ops: M, mut decoder: Decoder, last: bool) -> Self {
        let epsilon = decoder.model_config.epsilon;
        let layers = std::mem::take(&mut decoder.layers).into_iter();
        let layers = layers.map(|weights| HostLayer::new(&ops, weights, epsilon).resident(&ops));
        let layers = layers.collect();
        let head = std::mem::take(&mut decoder.head);
        let output_head = last.then(|| {
            let norm = decoder.final_norm.clone();
            let weight = ops.prepare(head.weight, head.inputs, head.outputs);
            OutputHead {
                norm: ops.norm(norm.gamma, norm.beta, epsilon),
                head: ops.linear(weight, head.bias, head.inputs, head.outputs),
            }
        });
        let position_bias = decoder.model_config.relative_bias.as_ref();
        Self {
            position_bias: position_bias
                .map(|position_bias| ops.upload(position_bias.values.clone(), position_bias.width())),
            layers,
            output_head,
            decoder,
            ops,
        }
    }

    /// The whole model's extents.
    pub(crate) fn model_config(&self) -> &ModelConfig {
        &self.decoder.model_config
    }

    /// The vectors of a text's tokens, `[tokens, width]`. Tokens are below the vocabulary.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        self.decoder.embed(tokens, 0)
    }

    /// What the layers make of the hidden states of some texts, one after the other, `[tokens of all, width]`; `lengths` says how many
    /// tokens each has.
    ///
    /// # Errors
    /// [`OpsError`]: the device failed.
    pub(crate) fn forward(&self, states: Vec<f32>, lengths: &[usize]) -> Result<Vec<f32>, OpsError> {
        let ctx = LayerContext {
            ops: &self.ops,
            model_config: &self.decoder.model_config,
            position_bias: self.position_bias.as_ref(),
        };
        let positions: Vec<usize> = lengths.iter().flat_map(|length| 0..*length).collect();
        let mut x = self.ops.upload(states, self.decoder.model_config.width);
        for layer in &self.layers {
            let new_kv = layer.project(ctx, &x, &positions);
            let mut next = 0;
            let self_spans = lengths.iter().map(|count| {
                let from = next;
                next += count;
                AttentionSpans {
                    queries: *count,
                    cached: Vec::new(),
                    new_kv: Some(Span {
                        matrix: &new_kv.kv,
                        from,
                        count: *count,
                    }),
                }
            });
            let self_spans: Vec<AttentionSpans<'_, M::Matrix>> = self_spans.collect();
            layer.forward(ctx, &mut x, &positions, &new_kv.act, &self_spans, &[]);
        }
        Ok(self.ops.values(&x)?.into_owned())
    }

    /// The logits that come out of hidden states `[rows, width]`, a row each; none of a slice that is not the last.
    ///
    /// # Errors
    /// [`OpsError`]: the device failed.
    pub(crate) fn logits(&self, states: Vec<f32>) -> Result<Vec<Vec<f32>>, OpsError> {
        let Some(OutputHead { norm, head }) = &self.output_head else {
            return Ok(Vec::new());
        };
        let x = self.ops.upload(states, self.decoder.model_config.width);
        let logits = self.ops.multiply(&self.ops.normalise(&x, norm), head);
        let values = self.ops.values(&logits)?;
        let rows = values.chunks(self.decoder.model_config.vocabulary.max(1));
        Ok(rows.map(<[f32]>::to_vec).collect())
    }
}
