//! Cross-attention: a decoder's layers attend to what an encoder made of the prompt.
//!
//! What the encoder made lies in the request's own blocks, before those of its answer: keys and values of a layer where a block is
//! KV, and the encoder's output where it is ACT. The output is as wide as an activation, and a projection alone makes keys and values of it, so it
//! is an ACT entry like any other. Admission, refusals, offloading, packing, preemption and freeing thus hold for prompts
//! too, and every mode treats them as it treats answers. The price is that ACT blocks repeat the output in every layer, which is
//! still half of what keys and values would take there. Where nothing is cached the encoder reads the prompt again in every step.

use crate::decoder::weights::ModelConfig;
use crate::ops::{AttentionSpans, Ops};

/// A layer's cross-attention on the device.
pub(super) struct CrossAttention<M: Ops> {
    pub(super) norm: M::Norm,
    pub(super) query: M::Linear,
    pub(super) key_value: M::Linear,
    pub(super) output: M::Linear,
}

impl<M: Ops> CrossAttention<M> {
    /// Adds to the vectors `x` of the decoder's new tokens what they get from their prompts.
    pub(super) fn forward(
        &self,
        ops: &M,
        model_config: &ModelConfig,
        x: &mut M::Matrix,
        prompts: &[AttentionSpans<'_, M::Matrix>],
    ) {
        let query = ops.multiply(&ops.normalise(x, &self.norm), &self.query);
        // Distances between the texts mean nothing, so scores gain nothing by them.
        let attended = ops.attend(&query, prompts, &model_config.heads, None);
        ops.add(x, &ops.multiply(&attended, &self.output));
    }
}
