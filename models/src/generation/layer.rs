//! A layer on the device, and its computation.

use super::cross_attention::CrossAttention;
use super::experts::Experts;
use crate::decoder::weights::{ModelConfig, OutputNorms, Parallel, QueryKeyNorm};
use crate::ops::{Activation, AttentionSpans, Heads, Ops, OpsError, ScoreRules, Span};

/// Context shared by all layers: operations, model configuration, position bias.
pub(super) struct LayerContext<'a, M: Ops> {
    pub(super) ops: &'a M,
    pub(super) model_config: &'a ModelConfig,
    /// Position bias, if positions are relative.
    pub(super) position_bias: Option<&'a M::Matrix>,
    /// What the tokens bring for the layer, if they do.
    pub(super) token_input: Option<&'a M::Matrix>,
}

impl<M: Ops> Clone for LayerContext<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Ops> Copy for LayerContext<'_, M> {}

/// A layer on the device.
pub(super) struct Layer<M: Ops> {
    pub(super) local: bool,
    pub(super) attention_norm: Option<M::Norm>,
    pub(super) queries: Projection<M>,
    pub(super) keys_values: Projection<M>,
    pub(super) sinks: Option<M::Matrix>,
    pub(super) output: M::Linear,
    pub(super) attention_output_norm: Option<M::Norm>,
    pub(super) feed_forward_norm: Option<M::Norm>,
    /// Up and down projection, unless the layer has only experts that are chosen.
    pub(super) dense: Option<[M::Linear; 2]>,
    /// Activation of the feed-forward layer, if the layer has its own.
    pub(super) activation: Option<Activation>,
    pub(super) experts: Option<Experts<M>>,
    pub(super) feed_forward_output_norm: Option<M::Norm>,
    pub(super) cross: Option<CrossAttention<M>>,
    pub(super) token_gate: Option<DeviceTokenGate<M>>,
    /// Factors of the layer's output.
    pub(super) output_scale: Option<M::Norm>,
    /// Whether keys and values are those of an earlier layer.
    pub(super) reuses_kv: bool,
}

/// How a layer reads what tokens bring for it.
pub(super) struct DeviceTokenGate<M: Ops> {
    pub(super) gate: M::Linear,
    pub(super) projection: M::Linear,
    pub(super) norm: M::Norm,
}

/// A projection to queries, or to keys and values.
pub(super) struct Projection<M: Ops> {
    /// Projection to a latent vector, and the norm of its first elements.
    pub(super) latent: Option<(M::Linear, M::Norm)>,
    pub(super) linear: M::Linear,
    /// Norm of the heads of queries or keys.
    pub(super) norm: Option<M::Norm>,
    /// Factors that follow it.
    pub(super) factors: Option<M::Norm>,
}

impl<M: Ops> Projection<M> {
    /// Projects the attention's input to rows that begin with the heads of queries, or of `keys`, which are normalised and
    /// rotated.
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

/// Cache entries of new tokens.
pub(super) struct NewKv<M: Ops> {
    /// Inputs of the projections, which ACT blocks hold.
    pub(super) act: M::Matrix,
    /// Keys, rotated by their positions, and values.
    pub(super) kv: M::Matrix,
}

impl<M: Ops> Layer<M> {
    /// KV Gen (equation 7): computes keys and values from activations, by the projection alone.
    pub(super) fn generate(
        &self,
        ctx: LayerContext<'_, M>,
        acts: &M::Matrix,
        positions: &[usize],
    ) -> M::Matrix {
        self.keys_values.project(ctx, acts, true, self.local, positions)
    }

    /// Computes the input of the projections for a mini-batch's new tokens.
    pub(super) fn input(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, positions: &[usize]) -> M::Matrix {
        if let Some(norm) = &self.attention_norm {
            ctx.ops.normalise(x, norm)
        } else {
            let all = Span {
                matrix: x,
                from: 0,
                count: positions.len(),
            };
            ctx.ops.gather(&[all], ctx.model_config.width)
        }
    }

    /// Computes the cache entries of a mini-batch's new tokens.
    pub(super) fn project(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, positions: &[usize]) -> NewKv<M> {
        let act = self.input(ctx, x, positions);
        let kv = self.generate(ctx, &act, positions);
        NewKv { act, kv }
    }

    /// Computes the rest of the layer (equations 2 to 6) on the hidden vectors `x` of the new tokens, in place. `act`
    /// is the result of [`Layer::project`]; `self_spans` are the keys and values of the self-attention, per request,
    /// `prompts` those of the cross-attention, which is skipped if there are none.
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; only layers with experts wait for it.
    pub(super) fn forward(
        &self,
        ctx: LayerContext<'_, M>,
        x: &mut M::Matrix,
        positions: &[usize],
        act: &M::Matrix,
        self_spans: &[AttentionSpans<'_, M::Matrix>],
        prompts: &[AttentionSpans<'_, M::Matrix>],
    ) -> Result<(), OpsError> {
        let LayerContext {
            ops,
            model_config,
            position_bias,
            token_input,
        } = ctx;
        let heads = model_config.heads_of(self.local);
        let mut query = self.queries.project(ctx, act, false, self.local, positions);
        let growth = model_config.query_growth;
        if let Some(growth) = growth.filter(|growth| growth.is_local || !self.local) {
            let factors: Vec<f32> = positions.iter().map(|position| growth.at(*position)).collect();
            let rows: Vec<usize> = (0..positions.len()).collect();
            let zeros = vec![0.0; rows.len() * heads.query_width()];
            let mut grown = ops.upload(zeros, heads.query_width());
            ops.add_scaled(&mut grown, &query, &rows, &factors);
            query = grown;
        }
        let rules = ScoreRules {
            position_bias,
            window: model_config.window_of(self.local),
            chunk: model_config.chunk_of(self.local),
            softcap: model_config.score_softcap,
            sinks: self.sinks.as_ref(),
        };
        let attended = ops.attend(&query, self_spans, heads, rules);
        let attended = ops.multiply(&attended, &self.output);
        let norm = self.feed_forward_norm.as_ref();
        // A parallel feed-forward layer reads the input of the attention.
        let beside = norm.filter(|_| model_config.parallel == Parallel::OwnNorm);
        let beside = beside.map(|norm| ops.normalise(x, norm));
        let add = |x: &mut M::Matrix, output: M::Matrix, norm: Option<&M::Norm>| match norm {
            Some(norm) if model_config.output_norms == OutputNorms::Sums => {
                ops.add(x, &output);
                *x = ops.normalise(x, norm);
            }
            Some(norm) => ops.add(x, &ops.normalise(&output, norm)),
            None => ops.add(x, &output),
        };
        add(x, attended, self.attention_output_norm.as_ref());
        if let Some(cross) = self.cross.as_ref().filter(|_| !prompts.is_empty()) {
            cross.forward(ops, model_config, x, prompts);
        }
        let normed = beside.or_else(|| norm.map(|norm| ops.normalise(x, norm)));
        let input = match &normed {
            Some(normed) => normed,
            None if model_config.parallel == Parallel::SharedNorm => act,
            None => &*x,
        };
        let dense = self.dense.as_ref().map(|[up, down]| {
            let activation = self.activation.unwrap_or(model_config.activation);
            ops.feed_forward(input, [up, down], activation, model_config.gated)
        });
        let output = match &self.experts {
            Some(experts) => Some(experts.forward(ops, model_config, [&*x, input], dense)?),
            None => dense,
        };
        if let Some(output) = output {
            add(x, output, self.feed_forward_output_norm.as_ref());
        }
        if let Some((token_gate, input)) = self.token_gate.as_ref().zip(token_input) {
            let gate = ops.multiply(x, &token_gate.gate);
            let mut gated = ops.activate(gate, model_config.activation, false);
            ops.times(&mut gated, input);
            let read = ops.multiply(&gated, &token_gate.projection);
            ops.add(x, &ops.normalise(&read, &token_gate.norm));
        }
        if let Some(scale) = &self.output_scale {
            ops.scale(x, scale);
        }
        Ok(())
    }
}
