//! A layer's weights in host memory, as they are transferred to the device.

use super::cross_attention::CrossAttention;
use super::experts::ExpertShape;
use super::layer::{DeviceTokenGate, Layer};
use super::linear_shape::LinearShape;
use super::recurrent::RecurrentShape;
use super::self_attention::{Projection, SelfAttention};
use super::streams::DeviceStreams;
use crate::decoder::weights::{
    CrossWeights, LatentWeights, LayerWeights, LinearWeights, NormWeights, StreamWeights, TokenGate,
};
use crate::ops::{Activation, HostWords, Ops, from_words, to_words};
use crate::precision::WeightType;

/// Added to the variance by the norms of latent vectors, whatever the other norms add.
const LATENT_EPSILON: f32 = 1e-6;

/// Weights of a layer in host memory: prepared for the device, in the order in which [`HostLayer::layer`] reads them.
#[derive(Debug)]
pub(super) struct HostLayer {
    tensors: Vec<HostWords>,
    shape: Box<Shape>,
}

/// Structure of a layer: sizes of the linear layers, and which norms and biases exist.
#[derive(Debug)]
struct Shape {
    local: bool,
    /// Query, key and value, and output projection, if there is an attention.
    linears: Option<[LinearShape; 3]>,
    /// Projection to the gates of the attention.
    gate: Option<LinearShape>,
    recurrent: Option<RecurrentShape>,
    /// Projections to the latent vectors of queries, and of keys and values.
    latents: [Option<LinearShape>; 2],
    /// The feed-forward layer's linear layers.
    dense: Option<[LinearShape; 2]>,
    activation: Option<Activation>,
    has_sinks: bool,
    /// Size of a row of the layer's own relative positions, if it has them.
    bias_width: Option<usize>,
    experts: Option<ExpertShape>,
    /// The cross-attention's linear layers, if there is one.
    cross: Option<[LinearShape; 3]>,
    sparsity: Option<f32>,
    /// What changes the streams, if there are any.
    streams: Option<StreamShape>,
    /// The linear layers of what reads the tokens' inputs, if there is one.
    token_gate: Option<[LinearShape; 2]>,
    reuses_kv: bool,
    /// Which norms exist, and whether they have offsets. The last two are those of latent vectors.
    norms: [Option<bool>; 19],
    epsilon: f32,
}

/// Structure of what changes the streams: the linear layers of router and learned residual, and the coefficients, which stay in
/// host memory.
#[derive(Debug)]
struct StreamShape {
    linears: [LinearShape; 3],
    prediction: Vec<f32>,
    correction: Vec<f32>,
}

/// Stores tensors in the order of transfer.
struct Store<'a, M: Ops> {
    ops: &'a M,
    tensors: Vec<HostWords>,
}

impl<M: Ops> Store<'_, M> {
    fn norm(&mut self, NormWeights { gamma, beta }: NormWeights) -> bool {
        let shifts = beta.is_some();
        self.floats(gamma);
        if let Some(beta) = beta {
            self.floats(beta);
        }
        shifts
    }

    fn floats(&mut self, values: Vec<f32>) {
        self.tensors.push(HostWords::Owned(to_words(values)));
    }

    fn linear(&mut self, linear: LinearWeights, kind: WeightType) -> LinearShape {
        let LinearWeights {
            weight,
            bias,
            inputs,
            outputs,
            ..
        } = linear.decoded();
        let prepared = self.ops.prepare(weight, inputs, outputs, kind);
        self.tensors.push(HostWords::Owned(prepared.words));
        self.floats(bias);
        LinearShape {
            inputs,
            outputs,
            kind: prepared.kind,
        }
    }
}

impl HostLayer {
    /// Prepares a layer; its linear layers get weights of this type.
    #[expect(clippy::too_many_lines, reason = "one entry per part of a layer")]
    pub(super) fn new<M: Ops>(ops: &M, weights: LayerWeights, epsilon: f32, kind: WeightType) -> Self {
        let mut store = Store {
            ops,
            tensors: Vec::new(),
        };
        let (cross_norms, cross) = weights.cross.map(parts).unzip();
        let (cross_norm, cross_output_norm) = cross_norms.unzip();
        let split_gate = |gate: TokenGate| (gate.norm, [gate.gate, gate.projection]);
        let (token_norm, token_gate) = weights.token_gate.map(split_gate).unzip();
        let width = weights.output.outputs;
        let output_scale = weights.output_scale.map(|scale| NormWeights {
            gamma: vec![scale; width],
            beta: None,
        });
        let (query_norm, key_norm, factors) = match weights.head_norms {
            Some(norms) => (Some(norms.query), Some(norms.key), norms.factors),
            None => (None, None, None),
        };
        // Factors of heads are stored like norms, and multiplied without normalising.
        let factors = factors.map(|factors| factors.map(|gamma| NormWeights { gamma, beta: None }));
        let (query_factors, key_factors) = factors.map(<(NormWeights, NormWeights)>::from).unzip();
        let split = |latent: LatentWeights| (latent.projection, latent.norm);
        let (query_latent, query_latent_norm) = weights.query_latent.map(split).unzip();
        let (key_value_latent, key_value_latent_norm) = weights.key_value_latent.map(split).unzip();
        let (stream_norms, streams) = weights.streams.map(stream_parts).unzip();
        let [router_norm, residual_norm, stream_scale] = stream_norms.unwrap_or_default();
        let norms = [
            weights.attention_norm,
            query_norm,
            key_norm,
            query_factors,
            key_factors,
            weights.attention_output_norm,
            weights.feed_forward_output_norm,
            weights.feed_forward_norm,
            cross_norm,
            cross_output_norm.flatten(),
            token_norm,
            output_scale,
            weights.heads_norm,
            weights.inner_norm,
            router_norm,
            residual_norm,
            stream_scale,
            query_latent_norm,
            key_value_latent_norm,
        ];
        let norms = norms.map(|norm| norm.map(|norm| store.norm(norm)));
        let has_sinks = !weights.sinks.is_empty();
        if has_sinks {
            store.floats(weights.sinks);
        }
        let bias_width = weights.relative_bias.map(|bias| {
            let width = bias.width();
            store.floats(bias.values);
            width
        });
        let latents = [query_latent, key_value_latent];
        let latents = latents.map(|linear| linear.map(|linear| store.linear(linear, kind)));
        let linears =
            (weights.query.outputs > 0).then_some([weights.query, weights.key_value, weights.output]);
        let linears = linears.map(|linears| linears.map(|linear| store.linear(linear, kind)));
        let gate = weights.gate.map(|gate| store.linear(gate, kind));
        let recurrent = weights.recurrent.map(|recurrent| {
            RecurrentShape::new(recurrent, kind, &mut |linear, kind| store.linear(linear, kind))
        });
        let dense = (weights.down.outputs > 0).then_some([weights.up, weights.down]);
        let dense = dense.map(|linears| linears.map(|linear| store.linear(linear, kind)));
        let cross = cross.map(|linears| linears.map(|linear| store.linear(linear, kind)));
        let token_gate = token_gate.map(|linears| linears.map(|linear| store.linear(linear, kind)));
        let streams = streams.map(|(linears, [prediction, correction])| StreamShape {
            linears: linears.map(|linear| store.linear(linear, kind)),
            prediction,
            correction,
        });
        let experts = weights.experts;
        let experts = experts.map(|experts| {
            ExpertShape::new(experts, (kind, epsilon), &mut |linear, kind| {
                store.linear(linear, kind)
            })
        });
        Self {
            tensors: store.tensors,
            shape: Box::new(Shape {
                local: weights.local,
                linears,
                gate,
                recurrent,
                latents,
                dense,
                activation: weights.activation,
                has_sinks,
                bias_width,
                experts,
                cross,
                sparsity: weights.sparsity,
                streams,
                token_gate,
                reuses_kv: weights.reuses_kv,
                norms,
                epsilon,
            }),
        }
    }

    /// Keeps the tensors in the host memory that the device copies from fastest.
    pub(super) fn held<M: Ops>(self, ops: &M) -> Self {
        let tensors = self.tensors.into_iter();
        Self {
            tensors: tensors.map(|tensor| ops.hold(tensor.into_vec())).collect(),
            ..self
        }
    }

    /// Size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors.iter().map(HostWords::bytes).sum()
    }

    /// Returns whether the layer has an attention, whose tokens are cached.
    pub(super) fn has_attention(&self) -> bool {
        self.shape.linears.is_some()
    }

    /// The tensors in the order of transfer.
    pub(super) fn tensors(&self) -> &[HostWords] {
        &self.tensors
    }

    /// Builds the layer on the device from its tensors, or copies of them.
    pub(super) fn layer<M: Ops>(&self, ops: &M, tensors: Vec<HostWords>) -> Layer<M> {
        build(ops, &self.shape, tensors)
    }

    /// Builds the layer on the device, to stay there.
    pub(super) fn resident<M: Ops>(self, ops: &M) -> Layer<M> {
        build(ops, &self.shape, self.tensors)
    }
}

#[expect(clippy::too_many_lines, reason = "one entry per part of a layer")]
fn build<M: Ops>(ops: &M, shape: &Shape, tensors: Vec<HostWords>) -> Layer<M> {
    let mut tensors = tensors.into_iter();
    let mut next = || tensors.next().unwrap_or(HostWords::Owned(Vec::new()));
    let Shape {
        local,
        linears,
        gate,
        ref recurrent,
        latents,
        dense,
        activation,
        has_sinks,
        bias_width,
        ref experts,
        cross,
        sparsity,
        ref streams,
        token_gate,
        reuses_kv,
        norms,
        epsilon,
    } = *shape;
    let mut norm = |shifts: Option<bool>, epsilon: f32| -> Option<M::Norm> {
        let shifts = shifts?;
        let gamma = floats(next());
        let beta = shifts.then(|| floats(next()));
        Some(ops.norm(gamma, beta, epsilon))
    };
    let [norms @ .., query_latent_norm, key_value_latent_norm] = norms;
    let [
        attention_norm,
        query_norm,
        key_norm,
        query_factors,
        key_factors,
        attention_output_norm,
        feed_forward_output_norm,
        feed_forward_norm,
        cross_norm,
        cross_output_norm,
        token_norm,
        output_scale,
        heads_norm,
        inner_norm,
        router_norm,
        residual_norm,
        stream_scale,
    ] = norms.map(|shifts| norm(shifts, epsilon));
    let latent_norms = [query_latent_norm, key_value_latent_norm];
    let [query_latent_norm, key_value_latent_norm] = latent_norms.map(|shifts| norm(shifts, LATENT_EPSILON));
    let sinks = has_sinks.then(|| ops.upload(floats(next()), 1));
    let position_bias = bias_width.map(|width| ops.upload(floats(next()), width));
    let mut linear = |shape| {
        let LinearShape {
            inputs,
            outputs,
            kind,
        } = shape;
        let weight = (kind, next());
        ops.linear_of(weight, floats(next()), inputs, outputs)
    };
    let [query_latent, key_value_latent] = latents.map(|shape| shape.map(&mut linear));
    let linears = linears.map(|linears| linears.map(&mut linear));
    let gate = gate.map(&mut linear);
    let recurrent = recurrent.as_ref().map(|shape| shape.mixer(&mut linear));
    let dense = dense.map(|linears| linears.map(&mut linear));
    let cross = cross_norm.zip(cross);
    let cross =
        cross.map(|(norm, linears)| cross_attention((norm, cross_output_norm), linears.map(&mut linear)));
    let token_gate = token_norm.zip(token_gate);
    let token_gate = token_gate.map(|(norm, linears)| device_gate(norm, linears.map(&mut linear)));
    let streams = streams.as_ref().zip(router_norm.zip(residual_norm));
    let streams = streams.map(|(shape, (router_norm, residual_norm))| {
        let [router, left, right] = shape.linears.map(&mut linear);
        let [.., last] = shape.linears;
        let half = vec![std::f32::consts::FRAC_1_SQRT_2; last.outputs];
        DeviceStreams {
            router_norm,
            router,
            prediction: shape.prediction.clone(),
            correction: shape.correction.clone(),
            output_scale: stream_scale,
            residual: [left, right],
            residual_norm,
            half: ops.norm(half, None, epsilon),
        }
    });
    let experts = experts.as_ref().map(|shape| shape.experts(ops, &mut linear));
    let attention = linears.map(|[query, key_value, output]| SelfAttention {
        local,
        queries: projection(
            (query_latent, query_latent_norm),
            query,
            (query_norm, query_factors),
        ),
        keys_values: projection(
            (key_value_latent, key_value_latent_norm),
            key_value,
            (key_norm, key_factors),
        ),
        sinks,
        position_bias,
        gate,
        heads_norm,
        output,
    });
    Layer {
        attention_norm,
        attention,
        recurrent,
        attention_output_norm,
        feed_forward_norm,
        dense,
        inner_norm,
        activation,
        sparsity,
        experts,
        feed_forward_output_norm,
        cross,
        streams,
        token_gate,
        output_scale,
        reuses_kv,
    }
}

fn floats(words: HostWords) -> Vec<f32> {
    from_words(words.into_vec())
}

/// Builds a projection on the device; `latent` is that to a latent vector, with its norm.
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

/// Builds a cross-attention on the device, as [`parts`] splits it.
fn cross_attention<M: Ops>(
    (norm, output_norm): (M::Norm, Option<M::Norm>),
    [query, key_value, output]: [M::Linear; 3],
) -> CrossAttention<M> {
    CrossAttention {
        norm,
        output_norm,
        query,
        key_value,
        output,
    }
}

fn device_gate<M: Ops>(norm: M::Norm, [gate, projection]: [M::Linear; 2]) -> DeviceTokenGate<M> {
    DeviceTokenGate {
        gate,
        projection,
        norm,
    }
}

/// Splits what changes the streams into norms and factors, linear layers, and coefficients.
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

/// Splits a cross-attention into its norms and its linear layers.
fn parts(cross: CrossWeights) -> ((NormWeights, Option<NormWeights>), [LinearWeights; 3]) {
    let norms = (cross.norm, cross.output_norm);
    (norms, [cross.query, cross.key_value, cross.output])
}
