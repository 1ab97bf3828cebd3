//! Cross-attention of a decoder's layers to the encoder's output.
//!
//! The encoder's output is cached in the request's blocks, before those of the answer: KV blocks hold a layer's keys
//! and values, ACT blocks the output itself. The output is as wide as an activation and needs only a projection to
//! become keys and values, so it is a regular ACT entry. Admission, rejection, offloading, packing, preemption and
//! freeing therefore treat prompts like answers in every mode.
//!
//! The cost: ACT blocks repeat the output in every layer, which is still half of the size of keys and values. Without
//! a cache, the encoder reads the prompt again in every step.

use crate::decoder::weights::{ModelConfig, OutputNorms};
use crate::ops::{AttentionSpans, Ops, ScoreRules};

/// A layer's cross-attention on the device.
pub(crate) struct CrossAttention<M: Ops> {
    pub(crate) norm: M::Norm,
    /// Norm after cross-attention, if there is one.
    pub(crate) output_norm: Option<M::Norm>,
    pub(crate) query: M::Linear,
    pub(crate) key_value: M::Linear,
    pub(crate) output: M::Linear,
}

impl<M: Ops> CrossAttention<M> {
    /// Adds the cross-attention to the hidden states `x` of the decoder's new tokens. The norm is applied to `x`
    /// before, or with post-norms to the sum.
    pub(crate) fn forward(
        &self,
        ops: &M,
        model_config: &ModelConfig,
        x: &mut M::Matrix,
        prompts: &[AttentionSpans<'_, M::Matrix>],
    ) {
        let after = model_config.output_norms == OutputNorms::Sums;
        let query = if after {
            ops.multiply(x, &self.query)
        } else {
            ops.multiply(&ops.normalise(x, &self.norm), &self.query)
        };
        // Positions in prompt and answer are unrelated, so there is no position bias.
        let rules = ScoreRules {
            softcap: model_config.score_softcap,
            ..ScoreRules::default()
        };
        let attended = ops.attend(&query, prompts, &model_config.heads, rules);
        let mut output = ops.multiply(&attended, &self.output);
        if let Some(norm) = &self.output_norm {
            output = ops.normalise(&output, norm);
        }
        ops.add(x, &output);
        if after {
            *x = ops.normalise(x, &self.norm);
        }
    }
}
