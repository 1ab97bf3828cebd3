//! Self-attention of a layer on the device.

use super::layer_context::LayerContext;
use crate::decoder::weights::QueryKeyNorm;
use crate::ops::{Activation, AttentionSpans, Heads, Ops, ScoreRules};

/// A layer's self-attention on the device.
pub(crate) struct SelfAttention<M: Ops> {
    /// Whether the attention is that of local layers: usually with a sliding window, or with different rotary
    /// positions.
    pub(crate) local: bool,
    pub(crate) queries: Projection<M>,
    pub(crate) keys_values: Projection<M>,
    pub(crate) sinks: Option<M::Matrix>,
    /// Relative position bias of this layer, if it has its own.
    pub(crate) position_bias: Option<M::Matrix>,
    /// Projection to gates, whose sigmoid multiplies the elements of the heads.
    pub(crate) gate: Option<M::Linear>,
    /// Norm before the output projection.
    pub(crate) attention_sub_norm: Option<M::Norm>,
    pub(crate) output: M::Linear,
}

/// Projection to queries, or to keys and values.
pub(crate) struct Projection<M: Ops> {
    /// Projection to a latent vector, with the norm of its first elements.
    pub(crate) latent: Option<(M::Linear, M::Norm)>,
    pub(crate) linear: M::Linear,
    /// Norm of the query or key heads.
    pub(crate) norm: Option<M::Norm>,
    /// Factors to apply after the norm.
    pub(crate) factors: Option<M::Norm>,
}

impl<M: Ops> Projection<M> {
    /// Projects the attention's input to rows that begin with the query heads, or with the key heads if `keys`,
    /// normalised and rotated.
    fn project(
        &self,
        ctx: LayerContext<'_, M>,
        input: &M::Matrix,
        keys: bool,
        local: bool,
        positions: &[usize],
    ) -> M::Matrix {
        let LayerContext {
            ops, model_config, ..
        } = ctx;
        let Heads {
            queries,
            keys: count,
            head_dim,
            ..
        } = *model_config.heads_of(local);
        let heads = if keys { count } else { queries };
        let mut rows = match &self.latent {
            Some((projection, norm)) => {
                let mut latent = ops.multiply(input, projection);
                ops.normalise_heads(&mut latent, 1, norm);
                ops.multiply(&latent, &self.linear)
            }
            None => ops.multiply(input, &self.linear),
        };
        let normalise = |rows: &mut M::Matrix| {
            if let Some(norm) = &self.norm {
                let [parts, _] = model_config.query_key_norm.parts(heads);
                let values = keys && model_config.query_key_norm == QueryKeyNorm::EachHeadAndValue;
                ops.normalise_heads(rows, if values { 2 * parts } else { parts }, norm);
            }
            if let Some(factors) = &self.factors {
                ops.scale(rows, factors);
            }
        };
        let after = model_config.query_key_norm == QueryKeyNorm::RotatedHead;
        if !after {
            normalise(&mut rows);
        }
        if let Some(clip) = model_config.clip {
            rows = ops.activate(rows, Activation::Clamp(clip), false);
        }
        if let Some(rotary) = model_config.rotary_of(local) {
            ops.rotate(&mut rows, heads, head_dim, rotary, positions);
        }
        if after {
            normalise(&mut rows);
        }
        rows
    }
}

impl<M: Ops> SelfAttention<M> {
    /// KV Gen (equation 7): computes keys and values from activations, by projection only.
    pub(crate) fn generate(
        &self,
        ctx: LayerContext<'_, M>,
        acts: &M::Matrix,
        positions: &[usize],
    ) -> M::Matrix {
        self.keys_values.project(ctx, acts, true, self.local, positions)
    }

    /// Computes the attention of the new tokens, whose inputs are `act`.
    pub(crate) fn attend(
        &self,
        ctx: LayerContext<'_, M>,
        act: &M::Matrix,
        positions: &[usize],
        spans: &[AttentionSpans<'_, M::Matrix>],
    ) -> M::Matrix {
        let LayerContext {
            ops,
            model_config,
            position_bias,
            ..
        } = ctx;
        let heads = model_config.heads_of(self.local);
        let mut query = self.queries.project(ctx, act, false, self.local, positions);
        let growth = model_config.query_scaling;
        if let Some(growth) = growth.filter(|growth| growth.is_local || !self.local) {
            let factors: Vec<f32> = positions.iter().map(|position| growth.at(*position)).collect();
            let rows: Vec<usize> = (0..positions.len()).collect();
            let zeros = vec![0.0; rows.len() * heads.query_width()];
            let mut grown = ops.upload(zeros, heads.query_width());
            ops.add_scaled(&mut grown, &query, &rows, &factors);
            query = grown;
        }
        let rules = ScoreRules {
            position_bias: self.position_bias.as_ref().or(position_bias),
            window: model_config.window_of(self.local),
            chunk: model_config.chunk_of(self.local),
            softcap: model_config.score_softcap,
            sinks: self.sinks.as_ref(),
        };
        let mut attended = ops.attend(&query, spans, heads, rules);
        if let Some(gate) = &self.gate {
            let gates = ops.activate(ops.multiply(act, gate), Activation::Sigmoid, false);
            ops.scale_images(&mut attended, 1, &gates);
        }
        match &self.attention_sub_norm {
            Some(norm) => ops.multiply_normalised(&attended, norm, &self.output),
            None => ops.multiply(&attended, &self.output),
        }
    }
}
