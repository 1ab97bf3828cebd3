//! A layer on the device, and its computation.

use super::cross_attention::CrossAttention;
use super::experts::Experts;
use super::layer_context::LayerContext;
use super::recurrent::RecurrentMixer;
use super::self_attention::SelfAttention;
use super::streams::DeviceStreams;
use crate::decoder::weights::{OutputNorms, Parallel};
use crate::ops::{Activation, AttentionSpans, Ops, OpsError, Span};

/// A layer on the device, with attention, a recurrence, both in parallel, or neither.
pub(crate) struct Layer<M: Ops> {
    pub(crate) attention_norm: Option<M::Norm>,
    pub(crate) attention: Option<SelfAttention<M>>,
    pub(crate) recurrent: Option<RecurrentMixer<M>>,
    pub(crate) attention_output_norm: Option<M::Norm>,
    pub(crate) feed_forward_norm: Option<M::Norm>,
    /// Up and down projection; `None` if the layer has only routed experts, or no feed-forward.
    pub(crate) dense: Option<[M::Linear; 2]>,
    /// Norm before the down projection.
    pub(crate) feed_forward_sub_norm: Option<M::Norm>,
    /// Activation of the feed-forward, if the layer has its own.
    pub(crate) activation: Option<Activation>,
    /// Threshold below which gates of the feed-forward become zero, in standard deviations above their mean.
    pub(crate) sparsity: Option<f32>,
    pub(crate) experts: Option<Experts<M>>,
    pub(crate) feed_forward_output_norm: Option<M::Norm>,
    pub(crate) cross: Option<CrossAttention<M>>,
    pub(crate) streams: Option<DeviceStreams<M>>,
    pub(crate) token_gate: Option<DevicePerLayerGate<M>>,
    /// Scale factors of the layer's output.
    pub(crate) output_scale: Option<M::Norm>,
    /// Whether the layer reuses keys and values of an earlier layer.
    pub(crate) reuses_kv: bool,
}

/// Gate of a layer's per-layer embedding.
pub(crate) struct DevicePerLayerGate<M: Ops> {
    pub(crate) gate: M::Linear,
    pub(crate) projection: M::Linear,
    pub(crate) norm: M::Norm,
}

impl<M: Ops> DevicePerLayerGate<M> {
    /// Returns the gated per-layer embedding, to be added to the hidden states `x`.
    pub(crate) fn read(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, token_input: &M::Matrix) -> M::Matrix {
        let (ops, activation) = (ctx.ops, ctx.model_config.activation);
        let mut gated = ops.activate(ops.multiply(x, &self.gate), activation, false);
        ops.times(&mut gated, token_input);
        ops.normalise(&ops.multiply(&gated, &self.projection), &self.norm)
    }
}

/// Cache entries of new tokens.
pub(crate) struct NewKv<M: Ops> {
    /// Inputs of the projections, which ACT blocks store.
    pub(crate) act: M::Matrix,
    /// Keys, rotated by their positions, and values; `None` for a layer without attention.
    pub(crate) kv: Option<M::Matrix>,
}

/// Earlier tokens that a layer's new tokens attend to, one entry per request.
pub(crate) struct ContextSpans<'a, M: Ops> {
    /// Keys and values for self-attention, with the number of new tokens.
    pub(crate) self_spans: &'a [AttentionSpans<'a, M::Matrix>],
    /// Keys and values for cross-attention, which is skipped if this is empty.
    pub(crate) prompts: &'a [AttentionSpans<'a, M::Matrix>],
    /// Recurrent states, which the layer updates with the new tokens; empty without a recurrence.
    pub(crate) states: Vec<&'a mut [f32]>,
}

impl<M: Ops> Layer<M> {
    /// Returns whether the layer is local.
    pub(crate) fn is_local(&self) -> bool {
        self.attention.as_ref().is_some_and(|attention| attention.local)
    }

    /// Computes keys and values from activations ([`SelfAttention::generate`]); `None` without attention.
    pub(crate) fn generate(
        &self,
        ctx: LayerContext<'_, M>,
        acts: &M::Matrix,
        positions: &[usize],
    ) -> Option<M::Matrix> {
        let attention = self.attention.as_ref()?;
        Some(attention.generate(ctx, acts, positions))
    }

    /// Computes the input of the projections for a mini-batch's new tokens.
    pub(crate) fn input(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, positions: &[usize]) -> M::Matrix {
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
    pub(crate) fn project(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, positions: &[usize]) -> NewKv<M> {
        let act = self.input(ctx, x, positions);
        let kv = self.generate(ctx, &act, positions);
        NewKv { act, kv }
    }

    /// Computes attention and recurrence, and returns their sum; `None` if the layer has neither.
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

    /// Computes the rest of the layer (equations 2 to 6) on the hidden states `x` of the new tokens, in place. `act`
    /// is the result of [`Layer::project`].
    ///
    /// # Errors
    /// [`OpsError`] if the device fails; only layers with experts or a recurrence wait for the device.
    pub(crate) fn forward(
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
        // A parallel feed-forward reads the hidden states before attention is added.
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
        if let Some(streams) = &self.streams {
            streams.add_residual(ops, x, act);
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
        let dense = self
            .dense
            .as_ref()
            .map(|[up, down]| -> Result<M::Matrix, OpsError> {
                let activation = self.activation.unwrap_or(model_config.activation);
                if let Some(deviations) = self.sparsity {
                    let inner = cut_gates(ops, &ops.multiply(input, up), positions.len(), deviations)?;
                    let inner = ops.activate(inner, activation, model_config.gated);
                    return Ok(ops.multiply(&inner, down));
                }
                let Some(norm) = &self.feed_forward_sub_norm else {
                    return Ok(ops.feed_forward(input, [up, down], activation, model_config.gated));
                };
                let inner = ops.activate(ops.multiply(input, up), activation, model_config.gated);
                Ok(ops.multiply_normalised(&inner, norm, down))
            });
        let dense = dense.transpose()?;
        let output = match &self.experts {
            Some(experts) => Some(experts.forward(ops, &model_config.into(), [&*x, input], dense)?),
            None => dense,
        };
        if let Some(output) = output {
            add(x, output, self.feed_forward_output_norm.as_ref());
        }
        // With AltUp streams, the other streams receive it instead of these hidden states.
        let token_gate = self.token_gate.as_ref().filter(|_| self.streams.is_none());
        if let Some((token_gate, input)) = token_gate.zip(token_input) {
            let read = token_gate.read(ctx, x, input);
            ops.add(x, &read);
        }
        if let Some(scale) = &self.output_scale {
            ops.scale(x, scale);
        }
        Ok(())
    }
}

/// Sparsifies the gates, which are the first half of every row: subtracts a threshold, `deviations` standard
/// deviations above the mean, and sets negative results to zero.
fn cut_gates<M: Ops>(
    ops: &M,
    rows: &M::Matrix,
    count: usize,
    deviations: f32,
) -> Result<M::Matrix, OpsError> {
    let mut values = ops.values(rows)?.into_owned();
    let width = values.len() / count.max(1);
    for row in values.chunks_exact_mut(width.max(1)) {
        let (gates, _) = row.split_at_mut(width / 2);
        let size = gates.len().max(1) as f64;
        let mean = gates.iter().map(|gate| f64::from(*gate)).sum::<f64>() / size;
        let variance = gates
            .iter()
            .map(|gate| (f64::from(*gate) - mean).powi(2))
            .sum::<f64>()
            / size;
        let cut = (mean + variance.sqrt() * f64::from(deviations)) as f32;
        for gate in gates {
            // In contrast to `max`, this propagates NaN.
            *gate = if *gate < cut { 0.0 } else { *gate - cut };
        }
    }
    Ok(ops.upload(values, width))
}
