//! A layer on the device, and its computation.

use super::cross_attention::CrossAttention;
use super::experts::Experts;
use super::layer_context::LayerContext;
use super::recurrent::RecurrentMixer;
use super::self_attention::SelfAttention;
use crate::decoder::weights::{OutputNorms, Parallel};
use crate::ops::{Activation, AttentionSpans, Ops, OpsError, Span};

/// A layer on the device. Its tokens are mixed by an attention, by a recurrence, by the sum of both, or not at all.
pub(super) struct Layer<M: Ops> {
    pub(super) attention_norm: Option<M::Norm>,
    pub(super) attention: Option<SelfAttention<M>>,
    pub(super) recurrent: Option<RecurrentMixer<M>>,
    pub(super) attention_output_norm: Option<M::Norm>,
    pub(super) feed_forward_norm: Option<M::Norm>,
    /// Up and down projection, unless the layer has only experts that are chosen, or no feed-forward layer.
    pub(super) dense: Option<[M::Linear; 2]>,
    /// Norm of what the down projection reads.
    pub(super) inner_norm: Option<M::Norm>,
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

/// Gate through which a layer reads what tokens bring for it.
pub(super) struct DeviceTokenGate<M: Ops> {
    pub(super) gate: M::Linear,
    pub(super) projection: M::Linear,
    pub(super) norm: M::Norm,
}

/// Cache entries of new tokens.
pub(super) struct NewKv<M: Ops> {
    /// Inputs of the projections, which ACT blocks hold.
    pub(super) act: M::Matrix,
    /// Keys, rotated by their positions, and values; `None` for a layer without attention.
    pub(super) kv: Option<M::Matrix>,
}

/// Earlier tokens that a layer's new tokens read, one entry per request.
pub(super) struct ContextSpans<'a, M: Ops> {
    /// Keys and values of the self-attention, and the number of new tokens.
    pub(super) self_spans: &'a [AttentionSpans<'a, M::Matrix>],
    /// Those of the cross-attention, which is skipped if there are none.
    pub(super) prompts: &'a [AttentionSpans<'a, M::Matrix>],
    /// The recurrence's states, which the layer advances by the new tokens; none for a layer without one.
    pub(super) states: Vec<&'a mut [f32]>,
}

impl<M: Ops> Layer<M> {
    /// Returns whether its attention is local.
    pub(super) fn is_local(&self) -> bool {
        self.attention.as_ref().is_some_and(|attention| attention.local)
    }

    /// Computes keys and values from activations ([`SelfAttention::generate`]); `None` without attention.
    pub(super) fn generate(
        &self,
        ctx: LayerContext<'_, M>,
        acts: &M::Matrix,
        positions: &[usize],
    ) -> Option<M::Matrix> {
        let attention = self.attention.as_ref()?;
        Some(attention.generate(ctx, acts, positions))
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

    /// Computes what the tokens get from each other: the sum of attention and recurrence.
    fn mix(
        &self,
        ctx: LayerContext<'_, M>,
        positions: &[usize],
        act: &M::Matrix,
        past: &mut ContextSpans<'_, M>,
    ) -> Result<Option<M::Matrix>, OpsError> {
        let attention = self.attention.as_ref();
        let attended = attention.map(|attention| attention.attend(ctx, act, positions, past.self_spans));
        let Some(recurrent) = &self.recurrent else {
            return Ok(attended);
        };
        let counts: Vec<usize> = past.self_spans.iter().map(|spans| spans.queries).collect();
        let mut mixed = recurrent.forward(ctx.ops, act, &counts, &mut past.states)?;
        if let Some(attended) = attended {
            ctx.ops.add(&mut mixed, &attended);
        }
        Ok(Some(mixed))
    }

    /// Computes the rest of the layer (equations 2 to 6) on the hidden vectors `x` of the new tokens, in place. `act`
    /// is the result of [`Layer::project`].
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; only layers with experts or a recurrence wait for it.
    pub(super) fn forward(
        &self,
        ctx: LayerContext<'_, M>,
        x: &mut M::Matrix,
        positions: &[usize],
        act: &M::Matrix,
        mut past: ContextSpans<'_, M>,
    ) -> Result<(), OpsError> {
        let LayerContext {
            ops,
            model_config,
            token_input,
            ..
        } = ctx;
        let mixed = self.mix(ctx, positions, act, &mut past)?;
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
        if let Some(mixed) = mixed {
            add(x, mixed, self.attention_output_norm.as_ref());
        }
        if let Some(cross) = self.cross.as_ref().filter(|_| !past.prompts.is_empty()) {
            cross.forward(ops, model_config, x, past.prompts);
        }
        let normed = beside.or_else(|| norm.map(|norm| ops.normalise(x, norm)));
        let input = match &normed {
            Some(normed) => normed,
            None if model_config.parallel == Parallel::SharedNorm => act,
            None => &*x,
        };
        let dense = self.dense.as_ref().map(|[up, down]| {
            let activation = self.activation.unwrap_or(model_config.activation);
            let Some(norm) = &self.inner_norm else {
                return ops.feed_forward(input, [up, down], activation, model_config.gated);
            };
            let inner = ops.activate(ops.multiply(input, up), activation, model_config.gated);
            ops.multiply_normalised(&inner, norm, down)
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
