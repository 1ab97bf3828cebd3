//! Relative attention of `XLNet` (Yang et al. 2019, section 2.5, after Dai et al. 2019, "Transformer-XL"): queries
//! have separate biases for keys, distances and segments.
//!
//! The bias for keys is that of the query projection. The additional terms of the other two depend only on the
//! distance, and only on the token and whether the other token has another segment.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{DistanceScores, Ops};

/// Additional parts of a block's attention.
pub(in crate::architectures) struct Relative<O: Ops> {
    /// Term that depends only on the distance: table of a [`RelativeBias`](crate::ops::RelativeBias).
    pub position_bias: O::Matrix,
    /// Layer from the projections of a token to its scores with tokens of another segment.
    pub kinds: O::Linear,
}

impl<O: Ops> Relative<O> {
    /// Takes the query bias for keys.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn query_bias(
        layers: &mut Layers<'_, O>,
        at: &dyn Fn(&str) -> String,
        [heads, width]: [usize; 2],
    ) -> Result<Vec<f32>, LoadError> {
        let shape = [heads, width / heads.max(1)];
        // Copied, because the other biases are expressed as the difference from this one.
        layers.weights.copy(&at("rel_attn.r_w_bias"), &shape)
    }

    /// Takes the other biases; `distances` are the keys of the distances, `scale` is the factor of the scores.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        at: &dyn Fn(&str) -> String,
        [heads, width]: [usize; 2],
        scale: f32,
        distances: &DistanceScores<O::Matrix>,
    ) -> Result<Self, LoadError> {
        let head_dim = width / heads.max(1);
        let shape = [heads, head_dim];
        let base = layers.weights.take(&at("rel_attn.r_w_bias"), &shape)?;
        let mut beyond = |name: &str| {
            let own = layers.weights.take(&at(name), &shape)?;
            let both = own.iter().zip(&base);
            Ok::<Vec<f32>, LoadError>(both.map(|(own, base)| own - base).collect())
        };
        let of_distances = beyond("rel_attn.r_r_bias")?;
        let of_segments = beyond("rel_attn.r_s_bias")?;
        let segments = layers
            .weights
            .take(&at("rel_attn.seg_embed"), &[2, heads, head_dim])?;
        let (same, other) = segments.split_at(segments.len() / 2);
        // Scores with tokens of the same segment are subtracted from all scores, which changes no probability.
        let segment: Vec<f32> = other.iter().zip(same).map(|(other, same)| other - same).collect();
        let mut weight = by_head(&segment, heads, scale);
        weight.resize(3 * width * heads, 0.0);
        let products = segment
            .iter()
            .zip(&of_segments)
            .map(|(value, beyond)| scale * value * beyond);
        let products: Vec<f32> = products.collect();
        let bias = products.chunks(head_dim.max(1)).map(|head| head.iter().sum());
        let kinds = layers.upload_folded(weight, bias.collect(), 3 * width, heads);
        let of_distances = by_head(&of_distances, heads, scale);
        let of_distances = layers.upload_folded(of_distances, Vec::new(), width, heads);
        Ok(Self {
            position_bias: by_distance(layers.ops, &of_distances, heads, distances),
            kinds,
        })
    }
}

/// Returns the weight `[width, heads]` of a layer whose outputs are the dot products of each head with its part of a
/// vector.
fn by_head(vector: &[f32], heads: usize, scale: f32) -> Vec<f32> {
    let head_dim = (vector.len() / heads.max(1)).max(1);
    let rows = vector.iter().enumerate().flat_map(|(element, value)| {
        let own = element / head_dim;
        (0..heads).map(move |head| if head == own { scale * value } else { 0.0 })
    });
    rows.collect()
}

/// Returns the products of the distance keys with a layer with one output per head, as a table by distance.
fn by_distance<O: Ops>(
    ops: &O,
    layer: &O::Linear,
    heads: usize,
    distances: &DistanceScores<O::Matrix>,
) -> O::Matrix {
    let Some(keys) = &distances.keys else {
        return ops.zeros(heads, 1);
    };
    let count = distances.rows.count();
    let products = ops.with_width(ops.multiply(keys, layer), 1);
    // The table begins with keys before their queries, while the distance keys begin with the longest distance.
    let places = (0..heads).flat_map(|head| (0..count).rev().map(move |row| row * heads + head));
    ops.with_width(ops.select(&products, &places.collect::<Vec<_>>()), count)
}
