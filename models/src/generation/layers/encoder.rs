//! An encoder on the device, which reads whole prompts in prefill steps with bidirectional attention.
//!
//! The list of layers has the encoder's layers first: a prefill pass runs all layers, any other pass only the
//! decoder's. Both are resident or streamed by the same rule, and share the two buffers.

use super::layer::{ContextSpans, Layer};
use super::layer_context::LayerContext;
use crate::decoder::weights::{Encoder, ModelConfig, TokenInputs};
use crate::ops::{AttentionSpans, Ops, OpsError, RelativeBias, Span};

/// The encoder on the device, without its layers.
pub(crate) struct DeviceEncoder<M: Ops> {
    /// Number of encoder layers, which are the first in the list.
    pub(crate) layers: usize,
    /// Maximum prompt length, tokens.
    pub(crate) context: usize,
    /// Whether `context` is only a setting, not a limit of the model.
    pub(crate) reads_any_length: bool,
    /// Start token of every answer.
    pub(crate) start_token: u32,
    /// Whether a classifier's decoder begins with the last token of the text instead of the start token.
    pub(crate) starts_with_last: bool,
    /// Embedding of the prompt's tokens.
    pub(crate) inputs: TokenInputs,
    norm: M::Norm,
    position_bias: Option<M::Matrix>,
    bytes: u64,
}

impl<M: Ops> DeviceEncoder<M> {
    /// Uploads an encoder whose `layers` layers are placed separately.
    pub(crate) fn new(ops: &M, encoder: Encoder, layers: usize, epsilon: f32) -> Self {
        let reads_any_length = encoder.reads_any_length();
        let (position_bias, norm) = (encoder.relative_bias, encoder.final_norm);
        let bytes = |bias: &RelativeBias| size_of_val(bias.values.as_slice()) as u64;
        let upload = |bias: RelativeBias| {
            let width = bias.width();
            ops.upload(bias.values, width)
        };
        Self {
            layers,
            context: encoder.context,
            reads_any_length,
            start_token: encoder.start_token,
            starts_with_last: encoder.starts_with_last,
            inputs: encoder.inputs,
            bytes: position_bias.as_ref().map_or(0, bytes),
            position_bias: position_bias.map(upload),
            norm: ops.norm(norm.gamma, norm.beta, epsilon),
        }
    }

    /// Returns the memory without layers, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Computes layer `index` for prompts with `counts` tokens each, stacked in `x`; applies the final norm after the
    /// last layer.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails.
    pub(crate) fn read(
        &self,
        (ops, model_config): (&M, &ModelConfig),
        (index, layer): (usize, &Layer<M>),
        x: &mut M::Matrix,
        counts: &[usize],
    ) -> Result<(), OpsError> {
        let ctx = LayerContext {
            ops,
            model_config,
            position_bias: self.position_bias.as_ref(),
            token_input: None,
        };
        let positions: Vec<usize> = counts.iter().flat_map(|count| 0..*count).collect();
        let new_kv = layer.project(ctx, x, &positions);
        let mut next = 0;
        let self_spans = counts.iter().map(|count| {
            next += count;
            let whole = new_kv.kv.as_ref().map(|matrix| Span {
                matrix,
                from: next - count,
                count: *count,
            });
            AttentionSpans {
                queries: *count,
                cached: whole.into_iter().collect(),
                new_kv: None,
            }
        });
        let self_spans: Vec<AttentionSpans<'_, M::Matrix>> = self_spans.collect();
        let past = ContextSpans {
            self_spans: &self_spans,
            prompts: &[],
            states: Vec::new(),
        };
        layer.forward(ctx, x, &positions, &new_kv.act, past)?;
        if index + 1 == self.layers {
            *x = ops.normalise(x, &self.norm);
        }
        Ok(())
    }
}
