//! A slice of a decoder's layers, for a model over several workers (HybridServe Edinburgh §V: the partitions `S_i`).
//!
//! It computes whole texts without a cache: hidden states travel from slice to slice, and the last one returns the
//! logits of each text's next token.

use super::host_layer::HostLayer;
use super::layer::{Layer, LayerContext};
use super::output_head::OutputHead;
use crate::decoder::weights::{Decoder, ModelConfig};
use crate::ops::{AttentionSpans, Ops, OpsError, Span};

/// Contiguous layers of a decoder, and its head if they are the last.
pub(crate) struct DecoderSlice<M: Ops> {
    ops: M,
    /// The decoder without its layers and its head, and without an embedding that the head holds.
    decoder: Decoder,
    layers: Vec<Layer<M>>,
    position_bias: Option<M::Matrix>,
    final_norm: M::Norm,
    head: Option<OutputHead<M>>,
}

impl<M: Ops> DecoderSlice<M> {
    /// Uploads the layers of `decoder`, with its norm and head if they are the `last`.
    pub(crate) fn new(ops: M, mut decoder: Decoder, last: bool) -> Self {
        let epsilon = decoder.model_config.epsilon;
        let layers = std::mem::take(&mut decoder.layers).into_iter();
        let kind = decoder.weight_type;
        let layers = layers.map(|weights| HostLayer::new(&ops, weights, epsilon, kind).resident(&ops));
        let layers = layers.collect();
        let head = last.then(|| OutputHead::take(&ops, &mut decoder));
        let final_norm = decoder.final_norm.clone();
        let position_bias = decoder.model_config.relative_bias.as_ref();
        Self {
            position_bias: position_bias
                .map(|position_bias| ops.upload(position_bias.values.clone(), position_bias.width())),
            layers,
            final_norm: ops.norm(final_norm.gamma, final_norm.beta, epsilon),
            head,
            decoder,
            ops,
        }
    }

    /// Configuration of the whole model.
    pub(crate) fn model_config(&self) -> &ModelConfig {
        &self.decoder.model_config
    }

    /// Embeds a text's tokens, `[tokens, width]`. Tokens must be below the vocabulary size.
    pub(crate) fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        self.decoder.embed(tokens, 0, |token, out| {
            if let Some(head) = &self.head {
                head.read_embedding(&self.ops, token, out);
            }
        })
    }

    /// Computes the layers on the hidden states of texts and returns their values.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn forward(&self, states: Vec<f32>, lengths: &[usize]) -> Result<Vec<f32>, OpsError> {
        let states = self.hidden_states(states, lengths)?;
        Ok(self.ops.values(&states)?.into_owned())
    }

    /// Computes the layers on the hidden states of texts, concatenated, `[tokens of all, width]`; `lengths` are the
    /// texts' token counts.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn hidden_states(&self, states: Vec<f32>, lengths: &[usize]) -> Result<M::Matrix, OpsError> {
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
            layer.forward(ctx, &mut x, &positions, &new_kv.act, &self_spans, &[])?;
        }
        Ok(x)
    }

    /// Returns the logits of hidden states `[rows, width]`, one row each; none unless the slice is the last.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn logits(&self, states: Vec<f32>) -> Result<Vec<Vec<f32>>, OpsError> {
        let Some(head) = &self.head else {
            return Ok(Vec::new());
        };
        let x = self.ops.upload(states, self.decoder.model_config.width);
        let logits = head.logits(&self.ops, &self.ops.normalise(&x, &self.final_norm));
        let values = self.ops.values(&logits)?;
        let rows = values.chunks(self.decoder.model_config.vocabulary.max(1));
        let capped = rows.map(|row| {
            let mut row = row.to_vec();
            self.decoder.model_config.scale_logits(&mut row);
            row
        });
        Ok(capped.collect())
    }
}
