//! A layer: its weights in host memory and on the device, and its computation.

use std::sync::Arc;

use super::cross_attention::CrossAttention;
use super::experts::{ExpertShape, Experts};
use crate::decoder::weights::{
    CrossWeights, LayerWeights, LinearWeights, ModelConfig, NormWeights, Parallel,
};
use crate::ops::{AttentionSpans, Ops, OpsError, PreparedWeight, ScoreRules, Span, from_words, to_words};
use crate::precision::WeightType;

/// Context shared by all layers: operations, model configuration, position bias.
pub(super) struct LayerContext<'a, M: Ops> {
    pub(super) ops: &'a M,
    pub(super) model_config: &'a ModelConfig,
    /// Position bias, if positions are relative.
    pub(super) position_bias: Option<&'a M::Matrix>,
}

impl<M: Ops> Clone for LayerContext<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Ops> Copy for LayerContext<'_, M> {}

/// A layer on the device.
pub(super) struct Layer<M: Ops> {
    local: bool,
    attention_norm: Option<M::Norm>,
    /// Norms of queries and keys.
    head_norms: Option<[M::Norm; 2]>,
    /// Norms of the outputs of attention and feed-forward layer.
    output_norms: Option<[M::Norm; 2]>,
    query: M::Linear,
    key_value: M::Linear,
    output: M::Linear,
    feed_forward_norm: Option<M::Norm>,
    /// Up and down projection, unless the layer has only experts that are chosen.
    dense: Option<[M::Linear; 2]>,
    experts: Option<Experts<M>>,
    pub(super) cross: Option<CrossAttention<M>>,
}

/// Weights of a layer in host memory: prepared for the device, one vector per tensor in the order in which
/// [`HostLayer::layer`] reads them. The elements are words: f32, or parts of smaller numbers.
#[derive(Debug)]
pub(super) struct HostLayer {
    tensors: Vec<Arc<[u32]>>,
    shape: Arc<Shape>,
}

/// Structure of a layer: sizes of the linear layers, and which norms and biases exist.
#[derive(Debug)]
struct Shape {
    local: bool,
    linears: [LinearShape; 3],
    /// The feed-forward layer's linear layers.
    dense: Option<[LinearShape; 2]>,
    experts: Option<ExpertShape>,
    /// The cross-attention's linear layers, if there is one.
    cross: Option<[LinearShape; 3]>,
    /// Which norms exist, and whether they have offsets.
    norms: [Option<bool>; 7],
    epsilon: f32,
}

/// Size of a linear layer, and the type of its weight.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearShape {
    inputs: usize,
    outputs: usize,
    kind: WeightType,
}

impl HostLayer {
    /// Prepares a layer; its linear layers get weights of this type.
    pub(super) fn new<M: Ops>(ops: &M, weights: LayerWeights, epsilon: f32, kind: WeightType) -> Self {
        let mut tensors: Vec<Arc<[u32]>> = Vec::new();
        let (cross_norm, cross) = weights.cross.map(parts).unzip();
        let heads = weights.head_norms.map(|norms| (norms.query, norms.key));
        let (query_norm, key_norm) = heads.unzip();
        let outputs = weights.output_norms;
        let outputs = outputs.map(|norms| (norms.attention, norms.feed_forward));
        let (attention_output, feed_forward_output) = outputs.unzip();
        let mut store_norm = |NormWeights { gamma, beta }| {
            let shifts = beta.is_some();
            tensors.push(to_words(gamma).into());
            tensors.extend(beta.map(|beta| Arc::from(to_words(beta))));
            shifts
        };
        let norms = [
            weights.attention_norm,
            query_norm,
            key_norm,
            attention_output,
            feed_forward_output,
            weights.feed_forward_norm,
            cross_norm,
        ];
        let norms = norms.map(|norm| norm.map(&mut store_norm));
        let linears = [weights.query, weights.key_value, weights.output];
        let dense = (weights.down.outputs > 0).then_some([weights.up, weights.down]);
        let mut store_as = |dense: LinearWeights, kind: WeightType| {
            let LinearWeights {
                weight,
                bias,
                inputs,
                outputs,
                ..
            } = dense.decoded();
            let prepared = ops.prepare(weight, inputs, outputs, kind);
            tensors.push(prepared.words.into());
            tensors.push(to_words(bias).into());
            LinearShape {
                inputs,
                outputs,
                kind: prepared.kind,
            }
        };
        let mut store = |linear| store_as(linear, kind);
        let linears = linears.map(&mut store);
        let dense = dense.map(|linears| linears.map(&mut store));
        let cross = cross.map(|linears| linears.map(&mut store));
        let experts = weights.experts;
        let experts = experts.map(|experts| ExpertShape::new(experts, kind, &mut store_as));
        Self {
            tensors,
            shape: Arc::new(Shape {
                local: weights.local,
                linears,
                dense,
                experts,
                cross,
                norms,
                epsilon,
            }),
        }
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| size_of_val::<[u32]>(tensor) as u64)
            .sum()
    }

    /// The tensors in the order of transfer.
    pub(super) fn tensors(&self) -> &[Arc<[u32]>] {
        &self.tensors
    }

    /// Builds the layer on the device from a copy of its tensors.
    pub(super) fn layer<M: Ops>(&self, ops: &M, tensors: Vec<Vec<u32>>) -> Layer<M> {
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().unwrap_or_default();
        let Shape {
            local,
            linears,
            dense,
            ref experts,
            cross,
            norms,
            epsilon,
        } = *self.shape;
        let mut norm = |shifts: bool| {
            let gamma = from_words(next());
            let beta = shifts.then(|| from_words(next()));
            ops.norm(gamma, beta, epsilon)
        };
        let [
            attention_norm,
            query_norm,
            key_norm,
            attention_output,
            feed_forward_output,
            feed_forward_norm,
            cross_norm,
        ] = norms.map(|shifts| shifts.map(&mut norm));
        let pair = |first: Option<M::Norm>, second: Option<M::Norm>| Some([first?, second?]);
        let cross = cross_norm.zip(cross);
        let mut linear = |shape| {
            let LinearShape {
                inputs,
                outputs,
                kind,
            } = shape;
            let weight = PreparedWeight { kind, words: next() };
            ops.linear(weight, from_words(next()), inputs, outputs)
        };
        let [query, key_value, output] = linears.map(&mut linear);
        let dense = dense.map(|linears| linears.map(&mut linear));
        let cross = cross.map(|(norm, linears)| {
            let [query, key_value, output] = linears.map(&mut linear);
            CrossAttention {
                norm,
                query,
                key_value,
                output,
            }
        });
        let experts = experts.as_ref().map(|shape| shape.experts(&mut linear));
        Layer {
            local,
            attention_norm,
            head_norms: pair(query_norm, key_norm),
            output_norms: pair(attention_output, feed_forward_output),
            query,
            key_value,
            output,
            feed_forward_norm,
            dense,
            experts,
            cross,
        }
    }

    /// Builds the layer on the device from its own tensors, to stay there.
    pub(super) fn resident<M: Ops>(&self, ops: &M) -> Layer<M> {
        self.layer(ops, self.tensors.iter().map(|tensor| tensor.to_vec()).collect())
    }
}

/// Splits a cross-attention into its norm and its linear layers.
fn parts(cross: CrossWeights) -> (NormWeights, [LinearWeights; 3]) {
    (cross.norm, [cross.query, cross.key_value, cross.output])
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
        let LayerContext {
            ops, model_config, ..
        } = ctx;
        let mut kv = ops.multiply(acts, &self.key_value);
        if let Some([_, norm]) = &self.head_norms {
            let [parts, _] = model_config.query_key_norm.parts(model_config.heads.keys);
            ops.normalise_heads(&mut kv, parts, norm);
        }
        if let Some(rotary) = model_config.rotary_of(self.local) {
            ops.rotate(
                &mut kv,
                model_config.heads.keys,
                model_config.heads.head_dim,
                rotary,
                positions,
            );
        }
        kv
    }

    /// Computes the cache entries of a mini-batch's new tokens.
    pub(super) fn project(&self, ctx: LayerContext<'_, M>, x: &M::Matrix, positions: &[usize]) -> NewKv<M> {
        let norm = self.attention_norm.as_ref();
        let act = if let Some(norm) = norm.filter(|_| !ctx.model_config.norms_after) {
            ctx.ops.normalise(x, norm)
        } else {
            let all = Span {
                matrix: x,
                from: 0,
                count: positions.len(),
            };
            ctx.ops.gather(&[all], ctx.model_config.width)
        };
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
        } = ctx;
        let mut query = ops.multiply(act, &self.query);
        if let Some([norm, _]) = &self.head_norms {
            let [parts, _] = model_config.query_key_norm.parts(model_config.heads.queries);
            ops.normalise_heads(&mut query, parts, norm);
        }
        if let Some(rotary) = model_config.rotary_of(self.local) {
            ops.rotate(
                &mut query,
                model_config.heads.queries,
                model_config.heads.head_dim,
                rotary,
                positions,
            );
        }
        let rules = ScoreRules {
            position_bias,
            window: model_config.window_of(self.local),
            softcap: model_config.score_softcap,
        };
        let attended = ops.attend(&query, self_spans, &model_config.heads, rules);
        let attended = ops.multiply(&attended, &self.output);
        let normalise_after = |x: &mut M::Matrix, norm: Option<&M::Norm>| {
            if let Some(norm) = norm.filter(|_| model_config.norms_after) {
                *x = ops.normalise(x, norm);
            }
        };
        let norm = self.feed_forward_norm.as_ref();
        let norm = norm.filter(|_| !model_config.norms_after);
        // A parallel feed-forward layer reads the input of the attention.
        let beside = norm.filter(|_| model_config.parallel == Parallel::OwnNorm);
        let beside = beside.map(|norm| ops.normalise(x, norm));
        let [attention_norm, feed_forward_norm] = match &self.output_norms {
            Some(norms) => norms.each_ref().map(Some),
            None => [None; 2],
        };
        let add = |x: &mut M::Matrix, output: M::Matrix, norm: Option<&M::Norm>| match norm {
            Some(norm) => ops.add(x, &ops.normalise(&output, norm)),
            None => ops.add(x, &output),
        };
        add(x, attended, attention_norm);
        normalise_after(x, self.attention_norm.as_ref());
        if let Some(cross) = self.cross.as_ref().filter(|_| !prompts.is_empty()) {
            cross.forward(ops, model_config, x, prompts);
            normalise_after(x, Some(&cross.norm));
        }
        let normed = beside.or_else(|| norm.map(|norm| ops.normalise(x, norm)));
        let input = match &normed {
            Some(normed) => normed,
            None if model_config.parallel == Parallel::SharedNorm => act,
            None => &*x,
        };
        let dense = self.dense.as_ref().map(|[up, down]| {
            let hidden = ops.multiply(input, up);
            let hidden = ops.activate(hidden, model_config.activation, model_config.gated);
            ops.multiply(&hidden, down)
        });
        let output = match &self.experts {
            Some(experts) => Some(experts.forward(ops, model_config, input, dense)?),
            None => dense,
        };
        if let Some(output) = output {
            add(x, output, feed_forward_norm);
        }
        normalise_after(x, self.feed_forward_norm.as_ref());
        Ok(())
    }
}
