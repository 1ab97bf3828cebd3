//! Weights of a layer in host memory, in the form in which they are transferred to the device.

use std::sync::Arc;

use super::cross_attention::CrossAttention;
use super::experts::{ExpertShape, Experts};
use super::layer::{DevicePerLayerGate, Layer};
use super::linear_shape::LinearShape;
use super::recurrent::{RecurrentMixer, RecurrentShape};
use super::self_attention::{Projection, SelfAttention};
use super::streams::DeviceStreams;
use crate::decoder::weights::{
    CrossWeights, ExpertWeights, LatentWeights, LayerWeights, LinearWeights, NormWeights, PerLayerGate,
    RecurrentWeights, StreamWeights,
};
use crate::ops::{Activation, HostWords, Ops, from_words, to_words};
use crate::precision::WeightType;

/// Epsilon of the norms of latent vectors, independent of that of other norms.
const LATENT_EPSILON: f32 = 1e-6;

/// Weights of a layer in host memory, packed for the device, in the order of [`Parts::visited`].
#[derive(Debug)]
pub(crate) struct HostLayer {
    tensors: Vec<HostWords>,
    shape: Box<Shape>,
}

/// Structure of a layer: the meaning of its tensors, and values that stay in host memory.
#[derive(Debug)]
struct Shape {
    local: bool,
    parts: StoredParts,
    activation: Option<Activation>,
    sparsity: Option<f32>,
    /// Prediction and correction coefficients of the AltUp streams, if there are any.
    coefficients: Option<[Vec<f32>; 2]>,
    reuses_kv: bool,
    epsilon: f32,
}

/// Parts of a layer: norms, rows of floats, linear layers, a recurrent mixer and experts.
#[derive(Debug, Clone)]
struct Parts<N, F, L, R, E> {
    norms: Norms<N>,
    /// Norms of the latent vectors of queries, and of keys and values.
    latent_norms: [Option<N>; 2],
    sinks: Option<F>,
    /// Relative position bias of this layer, if it has its own.
    position_bias: Option<F>,
    /// Projections to the latent vectors of queries, and of keys and values.
    latents: [Option<L>; 2],
    /// Query, key-value and output projection, if there is attention.
    attention: Option<[L; 3]>,
    /// Projection to the gates of the attention's output.
    gate: Option<L>,
    recurrent: Option<R>,
    /// Linear layers of the feed-forward.
    dense: Option<[L; 2]>,
    /// Linear layers of the cross-attention, if there is one.
    cross: Option<[L; 3]>,
    /// Linear layers of the per-layer embedding's gate, if there is one.
    token_gate: Option<[L; 2]>,
    /// Router and learned residual of the AltUp streams, if there are any.
    streams: Option<[L; 3]>,
    experts: Option<E>,
}

/// Norms of a layer except those of latent vectors. Scale factors are stored like norms, and multiplied without
/// normalising.
#[derive(Debug, Clone)]
struct Norms<N> {
    attention: Option<N>,
    query: Option<N>,
    key: Option<N>,
    query_factors: Option<N>,
    key_factors: Option<N>,
    attention_output: Option<N>,
    feed_forward_output: Option<N>,
    feed_forward: Option<N>,
    cross: Option<N>,
    cross_output: Option<N>,
    token: Option<N>,
    output_scale: Option<N>,
    heads: Option<N>,
    inner: Option<N>,
    router: Option<N>,
    residual: Option<N>,
    stream_scale: Option<N>,
}

/// Visitor for the parts of a layer.
trait Visit<N, F, L, R, E> {
    type Norm;
    type Floats;
    type Linear;
    type Recurrent;
    type Experts;

    /// Visits a norm; `latent` states whether it belongs to a latent vector.
    fn norm(&mut self, norm: N, latent: bool) -> Self::Norm;
    fn floats(&mut self, floats: F) -> Self::Floats;
    fn linear(&mut self, linear: L) -> Self::Linear;
    fn recurrent(&mut self, recurrent: R) -> Self::Recurrent;
    fn experts(&mut self, experts: E) -> Self::Experts;
}

impl<N> Norms<N> {
    fn map<T>(self, mut each: impl FnMut(N) -> T) -> Norms<T> {
        Norms {
            attention: self.attention.map(&mut each),
            query: self.query.map(&mut each),
            key: self.key.map(&mut each),
            query_factors: self.query_factors.map(&mut each),
            key_factors: self.key_factors.map(&mut each),
            attention_output: self.attention_output.map(&mut each),
            feed_forward_output: self.feed_forward_output.map(&mut each),
            feed_forward: self.feed_forward.map(&mut each),
            cross: self.cross.map(&mut each),
            cross_output: self.cross_output.map(&mut each),
            token: self.token.map(&mut each),
            output_scale: self.output_scale.map(&mut each),
            heads: self.heads.map(&mut each),
            inner: self.inner.map(&mut each),
            router: self.router.map(&mut each),
            residual: self.residual.map(&mut each),
            stream_scale: self.stream_scale.map(&mut each),
        }
    }
}

impl<N, F, L, R, E> Parts<N, F, L, R, E> {
    /// Visits the parts in the order of transfer, which is defined only here and in [`Norms::map`].
    #[expect(clippy::type_complexity, reason = "its parameters are those of the trait")]
    fn visited<V: Visit<N, F, L, R, E>>(
        self,
        visitor: &mut V,
    ) -> Parts<V::Norm, V::Floats, V::Linear, V::Recurrent, V::Experts> {
        Parts {
            norms: self.norms.map(|norm| visitor.norm(norm, false)),
            latent_norms: self
                .latent_norms
                .map(|norm| norm.map(|norm| visitor.norm(norm, true))),
            sinks: self.sinks.map(|floats| visitor.floats(floats)),
            position_bias: self.position_bias.map(|floats| visitor.floats(floats)),
            latents: self
                .latents
                .map(|linear| linear.map(|linear| visitor.linear(linear))),
            attention: self
                .attention
                .map(|linears| linears.map(|linear| visitor.linear(linear))),
            gate: self.gate.map(|linear| visitor.linear(linear)),
            recurrent: self.recurrent.map(|recurrent| visitor.recurrent(recurrent)),
            dense: self
                .dense
                .map(|linears| linears.map(|linear| visitor.linear(linear))),
            cross: self
                .cross
                .map(|linears| linears.map(|linear| visitor.linear(linear))),
            token_gate: self
                .token_gate
                .map(|linears| linears.map(|linear| visitor.linear(linear))),
            streams: self
                .streams
                .map(|linears| linears.map(|linear| visitor.linear(linear))),
            experts: self.experts.map(|experts| visitor.experts(experts)),
        }
    }
}

/// Rows of floats, with their width.
type Rows = (Vec<f32>, usize);

/// Parts as in a checkpoint.
type WeightParts = Parts<NormWeights, Rows, LinearWeights, RecurrentWeights, ExpertWeights>;

/// Parts after storing: whether norms have offsets, widths of rows, and shapes.
type StoredParts = Parts<bool, usize, LinearShape, Arc<RecurrentShape>, Arc<ExpertShape>>;

/// Visitor that stores tensors; linear layers get weights of this type.
struct Store<'a, M: Ops> {
    ops: &'a M,
    kind: WeightType,
    epsilon: f32,
    tensors: Vec<HostWords>,
}

impl<M: Ops> Store<'_, M> {
    fn push(&mut self, values: Vec<f32>) {
        self.tensors.push(HostWords::Owned(to_words(values)));
    }

    fn linear_from_host(&mut self, linear: LinearWeights, kind: WeightType) -> LinearShape {
        let LinearWeights {
            weight,
            bias,
            inputs,
            outputs,
            ..
        } = linear.decoded();
        let prepared = self.ops.prepare(weight, inputs, outputs, kind);
        self.tensors.push(HostWords::Owned(prepared.words));
        self.push(bias);
        LinearShape {
            inputs,
            outputs,
            kind: prepared.kind,
        }
    }
}

impl<M: Ops> Visit<NormWeights, Rows, LinearWeights, RecurrentWeights, ExpertWeights> for Store<'_, M> {
    type Norm = bool;
    type Floats = usize;
    type Linear = LinearShape;
    type Recurrent = Arc<RecurrentShape>;
    type Experts = Arc<ExpertShape>;

    fn norm(&mut self, NormWeights { gamma, beta }: NormWeights, _: bool) -> bool {
        let shifts = beta.is_some();
        self.push(gamma);
        if let Some(beta) = beta {
            self.push(beta);
        }
        shifts
    }

    fn floats(&mut self, (values, width): Rows) -> usize {
        self.push(values);
        width
    }

    fn linear(&mut self, linear: LinearWeights) -> LinearShape {
        self.linear_from_host(linear, self.kind)
    }

    fn recurrent(&mut self, recurrent: RecurrentWeights) -> Arc<RecurrentShape> {
        let kind = self.kind;
        let mut store = |linear, kind| self.linear_from_host(linear, kind);
        Arc::new(RecurrentShape::new(recurrent, kind, &mut store))
    }

    fn experts(&mut self, experts: ExpertWeights) -> Arc<ExpertShape> {
        let settings = (self.kind, self.epsilon);
        let mut store = |linear, kind| self.linear_from_host(linear, kind);
        Arc::new(ExpertShape::new(experts, settings, &mut store))
    }
}

/// Visitor that reads stored tensors onto the device.
struct Read<'a, M: Ops> {
    ops: &'a M,
    epsilon: f32,
    tensors: std::vec::IntoIter<HostWords>,
}

impl<M: Ops> Read<'_, M> {
    fn next(&mut self) -> HostWords {
        self.tensors.next().unwrap_or(HostWords::Owned(Vec::new()))
    }

    fn values(&mut self) -> Vec<f32> {
        from_words(self.next().into_vec())
    }
}

impl<M: Ops> Visit<bool, usize, LinearShape, Arc<RecurrentShape>, Arc<ExpertShape>> for Read<'_, M> {
    type Norm = M::Norm;
    type Floats = M::Matrix;
    type Linear = M::Linear;
    type Recurrent = RecurrentMixer<M>;
    type Experts = Experts<M>;

    fn norm(&mut self, shifts: bool, latent: bool) -> M::Norm {
        let gamma = self.values();
        let beta = shifts.then(|| self.values());
        let epsilon = if latent { LATENT_EPSILON } else { self.epsilon };
        self.ops.norm(gamma, beta, epsilon)
    }

    fn floats(&mut self, width: usize) -> M::Matrix {
        let values = self.values();
        self.ops.upload(values, width)
    }

    fn linear(&mut self, shape: LinearShape) -> M::Linear {
        let LinearShape {
            inputs,
            outputs,
            kind,
        } = shape;
        let weight = (kind, self.next());
        let bias = self.values();
        self.ops.linear_from_host(weight, bias, inputs, outputs)
    }

    fn recurrent(&mut self, shape: Arc<RecurrentShape>) -> RecurrentMixer<M> {
        shape.mixer(&mut |shape| self.linear(shape))
    }

    fn experts(&mut self, shape: Arc<ExpertShape>) -> Experts<M> {
        let ops = self.ops;
        shape.experts(ops, &mut |shape| self.linear(shape))
    }
}

impl HostLayer {
    /// Packs a layer; its linear layers get weights of this type.
    pub(crate) fn new<M: Ops>(ops: &M, weights: LayerWeights, epsilon: f32, kind: WeightType) -> Self {
        let (local, activation, sparsity) = (weights.local, weights.activation, weights.sparsity);
        let reuses_kv = weights.reuses_kv;
        let (parts, coefficients) = parts(weights);
        let mut store = Store {
            ops,
            kind,
            epsilon,
            tensors: Vec::new(),
        };
        let parts = parts.visited(&mut store);
        Self {
            tensors: store.tensors,
            shape: Box::new(Shape {
                local,
                parts,
                activation,
                sparsity,
                coefficients,
                reuses_kv,
                epsilon,
            }),
        }
    }

    /// Moves the tensors to the host memory from which the device copies fastest.
    pub(crate) fn held<M: Ops>(self, ops: &M) -> Self {
        let tensors = self.tensors.into_iter();
        Self {
            tensors: tensors.map(|tensor| ops.hold(tensor.into_vec())).collect(),
            ..self
        }
    }

    /// Returns the size, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(HostWords::bytes).sum()
    }

    /// Returns whether the layer has attention, and therefore a cache.
    pub(crate) fn has_attention(&self) -> bool {
        self.shape.parts.attention.is_some()
    }

    /// Returns the tensors in the order of transfer.
    pub(crate) fn tensors(&self) -> &[HostWords] {
        &self.tensors
    }

    /// Builds the layer on the device from its tensors, or from copies of them.
    pub(crate) fn layer<M: Ops>(&self, ops: &M, tensors: Vec<HostWords>) -> Layer<M> {
        build(ops, &self.shape, tensors)
    }

    /// Builds the layer on the device as a resident layer.
    pub(crate) fn resident<M: Ops>(self, ops: &M) -> Layer<M> {
        build(ops, &self.shape, self.tensors)
    }
}

fn build<M: Ops>(ops: &M, shape: &Shape, tensors: Vec<HostWords>) -> Layer<M> {
    let mut read = Read {
        ops,
        epsilon: shape.epsilon,
        tensors: tensors.into_iter(),
    };
    let parts = shape.parts.clone().visited(&mut read);
    let norms = parts.norms;
    let [query_latent_norm, key_value_latent_norm] = parts.latent_norms;
    let [query_latent, key_value_latent] = parts.latents;
    let (sinks, position_bias, gate, attention_sub_norm) =
        (parts.sinks, parts.position_bias, parts.gate, norms.heads);
    let attention = parts.attention.map(|[query, key_value, output]| SelfAttention {
        local: shape.local,
        queries: projection(
            (query_latent, query_latent_norm),
            query,
            (norms.query, norms.query_factors),
        ),
        keys_values: projection(
            (key_value_latent, key_value_latent_norm),
            key_value,
            (norms.key, norms.key_factors),
        ),
        sinks,
        position_bias,
        gate,
        attention_sub_norm,
        output,
    });
    let cross_norms = (norms.cross, norms.cross_output);
    let stream_norms = (norms.router.zip(norms.residual), norms.stream_scale);
    let token_gate = norms.token.zip(parts.token_gate);
    Layer {
        attention_norm: norms.attention,
        attention,
        recurrent: parts.recurrent,
        attention_output_norm: norms.attention_output,
        feed_forward_norm: norms.feed_forward,
        dense: parts.dense,
        feed_forward_sub_norm: norms.inner,
        activation: shape.activation,
        sparsity: shape.sparsity,
        experts: parts.experts,
        feed_forward_output_norm: norms.feed_forward_output,
        cross: parts
            .cross
            .and_then(|linears| cross_attention(cross_norms, linears)),
        streams: parts
            .streams
            .and_then(|linears| device_streams(ops, shape, stream_norms, linears)),
        token_gate: token_gate.map(|(norm, linears)| device_gate(norm, linears)),
        output_scale: norms.output_scale,
        reuses_kv: shape.reuses_kv,
    }
}

/// Builds a projection on the device; `latent` is the projection to a latent vector, with its norm.
fn projection<M: Ops>(
    latent: (Option<M::Linear>, Option<M::Norm>),
    linear: M::Linear,
    (norm, factors): (Option<M::Norm>, Option<M::Norm>),
) -> Projection<M> {
    Projection {
        latent: latent.0.zip(latent.1),
        linear,
        norm,
        factors,
    }
}

/// Builds a cross-attention on the device, with the norms before and after it.
fn cross_attention<M: Ops>(
    (norm, output_norm): (Option<M::Norm>, Option<M::Norm>),
    [query, key_value, output]: [M::Linear; 3],
) -> Option<CrossAttention<M>> {
    Some(CrossAttention {
        norm: norm?,
        output_norm,
        query,
        key_value,
        output,
    })
}

fn device_gate<M: Ops>(norm: M::Norm, [gate, projection]: [M::Linear; 2]) -> DevicePerLayerGate<M> {
    DevicePerLayerGate {
        gate,
        projection,
        norm,
    }
}

/// Norms of router and residual, and the factors of the output.
type StreamNorms<N> = (Option<(N, N)>, Option<N>);

/// Builds the AltUp streams of a layer on the device.
fn device_streams<M: Ops>(
    ops: &M,
    shape: &Shape,
    (norms, output_scale): StreamNorms<M::Norm>,
    [router, left, right]: [M::Linear; 3],
) -> Option<DeviceStreams<M>> {
    let (router_norm, residual_norm) = norms?;
    let [prediction, correction] = shape.coefficients.clone()?;
    let [.., last] = shape.parts.streams?;
    let half = vec![std::f32::consts::FRAC_1_SQRT_2; last.outputs];
    Some(DeviceStreams {
        router_norm,
        router,
        prediction,
        correction,
        output_scale,
        residual: [left, right],
        residual_norm,
        half: ops.norm(half, None, shape.epsilon),
    })
}

/// Splits a layer into its parts and the coefficients of its AltUp streams.
fn parts(weights: LayerWeights) -> (WeightParts, Option<[Vec<f32>; 2]>) {
    let plain = |gamma| NormWeights { gamma, beta: None };
    let width = weights.output.outputs;
    let (query, key, factors) = match weights.head_norms {
        Some(norms) => (Some(norms.query), Some(norms.key), norms.factors),
        None => (None, None, None),
    };
    let (query_factors, key_factors) = factors.map(<(Vec<f32>, Vec<f32>)>::from).unzip();
    let split = |latent: LatentWeights| (latent.projection, latent.norm);
    let (query_latent, query_latent_norm) = weights.query_latent.map(split).unzip();
    let (key_value_latent, key_value_latent_norm) = weights.key_value_latent.map(split).unzip();
    let (cross_norms, cross) = weights.cross.map(cross_parts).unzip();
    let (cross_norm, cross_output_norm) = cross_norms.unzip();
    let split_gate = |gate: PerLayerGate| (gate.norm, [gate.gate, gate.projection]);
    let (token, token_gate) = weights.token_gate.map(split_gate).unzip();
    let (stream_norms, streams) = weights.streams.map(stream_parts).unzip();
    let [router, residual, stream_scale] = stream_norms.unwrap_or_default();
    let (streams, coefficients) = streams.unzip();
    let attention = [weights.query, weights.key_value, weights.output];
    let has_attention = attention.first().is_some_and(|query| query.outputs > 0);
    let has_dense = weights.down.outputs > 0;
    let parts = Parts {
        norms: Norms {
            attention: weights.attention_norm,
            query,
            key,
            query_factors: query_factors.map(plain),
            key_factors: key_factors.map(plain),
            attention_output: weights.attention_output_norm,
            feed_forward_output: weights.feed_forward_output_norm,
            feed_forward: weights.feed_forward_norm,
            cross: cross_norm,
            cross_output: cross_output_norm.flatten(),
            token,
            output_scale: weights.output_scale.map(|scale| plain(vec![scale; width])),
            heads: weights.attention_sub_norm,
            inner: weights.feed_forward_sub_norm,
            router,
            residual,
            stream_scale,
        },
        latent_norms: [query_latent_norm, key_value_latent_norm],
        sinks: (!weights.sinks.is_empty()).then_some((weights.sinks, 1)),
        position_bias: weights.relative_bias.map(|bias| {
            let width = bias.width();
            (bias.values, width)
        }),
        latents: [query_latent, key_value_latent],
        attention: has_attention.then_some(attention),
        gate: weights.gate,
        recurrent: weights.recurrent,
        dense: has_dense.then_some([weights.up, weights.down]),
        cross,
        token_gate,
        streams,
        experts: weights.experts,
    };
    (parts, coefficients)
}

/// Splits AltUp streams into norms and factors, linear layers, and coefficients.
#[expect(clippy::type_complexity, reason = "named by its only caller")]
fn stream_parts(streams: StreamWeights) -> ([Option<NormWeights>; 3], ([LinearWeights; 3], [Vec<f32>; 2])) {
    let [left, right] = streams.residual;
    let scale = streams
        .output_scale
        .map(|gamma| NormWeights { gamma, beta: None });
    (
        [Some(streams.router_norm), Some(streams.residual_norm), scale],
        (
            [streams.router, left, right],
            [streams.prediction, streams.correction],
        ),
    )
}

/// Splits a cross-attention into norms and linear layers.
fn cross_parts(cross: CrossWeights) -> ((NormWeights, Option<NormWeights>), [LinearWeights; 3]) {
    let norms = (cross.norm, cross.output_norm);
    (norms, [cross.query, cross.key_value, cross.output])
}
