//! A layer: its weights in the host's memory and on the device, and what it computes.

use std::sync::Arc;

use super::cross_attention::Cross;
use crate::decoder::weights::{CrossWeights, Dense, LayerWeights, Scale, Spec};
use crate::ops::{Attended, Math};

/// What a layer is computed with.
pub(super) struct Means<'a, M: Math> {
    pub(super) math: &'a M,
    pub(super) spec: &'a Spec,
    /// What scores gain by distance, where positions are relative.
    pub(super) gains: Option<&'a M::Matrix>,
}

impl<M: Math> Clone for Means<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: Math> Copy for Means<'_, M> {}

/// A layer on the device.
pub(super) struct Layer<M: Math> {
    attention_norm: M::Norm,
    query: M::Linear,
    key_value: M::Linear,
    output: M::Linear,
    feed_forward_norm: Option<M::Norm>,
    up: M::Linear,
    down: M::Linear,
    pub(super) cross: Option<Cross<M>>,
}

/// A layer's weights as they lie in the host's memory: prepared for the device, one vector per tensor in the order in which
/// [`Stored::layer`] takes them.
#[derive(Debug)]
pub(super) struct Stored {
    tensors: Vec<Arc<[f32]>>,
    shape: Arc<Shape>,
}

/// What makes a layer of tensors: extents of the linear layers, and which norms and biases there are.
#[derive(Debug)]
struct Shape {
    linears: [(usize, usize); 5],
    /// Those of the cross-attention, if there is one.
    cross: Option<[(usize, usize); 3]>,
    feed_forward_norm: bool,
    shifts: bool,
    epsilon: f32,
}

impl Stored {
    pub(super) fn new<M: Math>(math: &M, weights: LayerWeights, epsilon: f32) -> Self {
        let mut tensors: Vec<Arc<[f32]>> = Vec::new();
        let shifts = weights.attention_norm.beta.is_some();
        let feed_forward_norm = weights.feed_forward_norm.is_some();
        let (cross_norm, cross) = weights.cross.map(parts).unzip();
        let norms = [
            Some(weights.attention_norm),
            weights.feed_forward_norm,
            cross_norm,
        ];
        for Scale { gamma, beta } in norms.into_iter().flatten() {
            tensors.push(gamma.into());
            tensors.extend(beta.map(Arc::from));
        }
        let linears = [
            weights.query,
            weights.key_value,
            weights.output,
            weights.up,
            weights.down,
        ];
        let mut store = |dense| {
            let Dense {
                weight,
                bias,
                inputs,
                outputs,
            } = dense;
            tensors.push(math.prepare(weight, inputs, outputs).into());
            tensors.push(bias.into());
            (inputs, outputs)
        };
        let linears = linears.map(&mut store);
        let cross = cross.map(|linears| linears.map(&mut store));
        Self {
            tensors,
            shape: Arc::new(Shape {
                linears,
                cross,
                feed_forward_norm,
                shifts,
                epsilon,
            }),
        }
    }

    /// What it takes, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| size_of_val::<[f32]>(tensor) as u64)
            .sum()
    }

    /// The tensors one by one, as they are sent.
    pub(super) fn tensors(&self) -> &[Arc<[f32]>] {
        &self.tensors
    }

    /// The layer on the device, of a copy of its tensors.
    pub(super) fn layer<M: Math>(&self, math: &M, tensors: Vec<Vec<f32>>) -> Layer<M> {
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().unwrap_or_default();
        let Shape {
            linears,
            cross,
            feed_forward_norm,
            shifts,
            epsilon,
        } = *self.shape;
        let mut norm = || {
            let gamma = next();
            let beta = shifts.then(&mut next);
            math.norm(gamma, beta, epsilon)
        };
        let attention_norm = norm();
        let feed_forward_norm = feed_forward_norm.then(&mut norm);
        let cross = cross.map(|linears| (norm(), linears));
        let mut linear = |(inputs, outputs)| {
            let weight = next();
            math.linear(weight, next(), inputs, outputs)
        };
        let [query, key_value, output, up, down] = linears.map(&mut linear);
        let cross = cross.map(|(norm, linears)| {
            let [query, key_value, output] = linears.map(&mut linear);
            Cross {
                norm,
                query,
                key_value,
                output,
            }
        });
        Layer {
            attention_norm,
            query,
            key_value,
            output,
            feed_forward_norm,
            up,
            down,
            cross,
        }
    }

    /// The layer on the device, to stay there.
    pub(super) fn resident<M: Math>(&self, math: &M) -> Layer<M> {
        self.layer(math, self.tensors.iter().map(|tensor| tensor.to_vec()).collect())
    }
}

/// The norm of a cross-attention, and its linear layers.
fn parts(cross: CrossWeights) -> (Scale, [Dense; 3]) {
    (cross.norm, [cross.query, cross.key_value, cross.output])
}

/// What the new tokens leave in the cache.
pub(super) struct Fresh<M: Math> {
    /// Inputs of the projections: what ACT blocks hold.
    pub(super) act: M::Matrix,
    /// Keys, turned by their positions, and values.
    pub(super) kv: M::Matrix,
}

impl<M: Math> Layer<M> {
    /// KV Gen (equation 7): keys and values out of activations, by the projection alone.
    pub(super) fn generate(&self, means: Means<'_, M>, acts: &M::Matrix, positions: &[usize]) -> M::Matrix {
        let Means { math, spec, .. } = means;
        let mut kv = math.multiply(acts, &self.key_value);
        if let Some(rotary) = &spec.rotary {
            math.rotate(&mut kv, spec.heads.keys, spec.heads.extent, rotary, positions);
        }
        kv
    }

    /// What the new tokens of a mini-batch bring: their activations, keys and values.
    pub(super) fn project(&self, means: Means<'_, M>, x: &M::Matrix, positions: &[usize]) -> Fresh<M> {
        let act = means.math.normalise(x, &self.attention_norm);
        let kv = self.generate(means, &act, positions);
        Fresh { act, kv }
    }

    /// The rest of the layer (equations 2 to 6) over the vectors `x` of the new tokens, in place. `act` is what [`Layer::project`] made
    /// of them, `own` what they attend to, request by request, and `prompts` what their cross-attention does; without prompts there
    /// is none.
    pub(super) fn forward(
        &self,
        means: Means<'_, M>,
        x: &mut M::Matrix,
        positions: &[usize],
        act: &M::Matrix,
        own: &[Attended<'_, M::Matrix>],
        prompts: &[Attended<'_, M::Matrix>],
    ) {
        let Means { math, spec, gains } = means;
        let mut query = math.multiply(act, &self.query);
        if let Some(rotary) = &spec.rotary {
            math.rotate(
                &mut query,
                spec.heads.queries,
                spec.heads.extent,
                rotary,
                positions,
            );
        }
        let attended = math.attend(&query, own, &spec.heads, gains);
        math.add(x, &math.multiply(&attended, &self.output));
        if let Some(cross) = self.cross.as_ref().filter(|_| !prompts.is_empty()) {
            cross.forward(math, spec, x, prompts);
        }
        let normed = self
            .feed_forward_norm
            .as_ref()
            .map(|norm| math.normalise(x, norm));
        // Where the feed-forward layer is parallel it reads what the attention read.
        let inner = math.multiply(normed.as_ref().unwrap_or(act), &self.up);
        let inner = math.activate(inner, spec.activation, spec.gated);
        math.add(x, &math.multiply(&inner, &self.down));
    }
}
