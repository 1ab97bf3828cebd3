//! What the attention of `XLNet` adds to that of other encoders (Yang et al. 2019, section 2.5, after Dai et al. 2019,
//! "Transformer-XL"): queries get one bias when they meet keys, another when they meet distances, a third when they meet segments.
//!
//! The first bias is that of the query projection. What the second adds beyond it depends on the distance only, and what the third
//! adds on the token only, and on whether the other one has another segment.

use crate::architectures::layers::Layers;
use crate::checkpoint::LoadError;
use crate::ops::{DistanceScores, Ops};

/// Parts of a block's attention.
pub(in crate::architectures) struct Relative<O: Ops> {
    /// What depends on the distance only: a table of a [`RelativeBias`](crate::ops::RelativeBias).
    pub position_bias: O::Matrix,
    /// Layer from the projections of a token to its scores with tokens of another segment.
    pub kinds: O::Linear,
}

impl<O: Ops> Relative<O> {
    /// Takes the bias of the queries that meet keys.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn query_bias(
        layers: &mut Layers<'_, O>,
        at: &dyn Fn(&str) -> String,
        [heads, width]: [usize; 2],
    ) -> Result<Vec<f32>, LoadError> {
        let shape = [heads, width / heads.max(1)];
        // The other biases are stated by their difference from this one.
        layers.weights.copy(&at("rel_attn.r_w_bias"), &shape)
    }

    /// Takes the rest; `distances` are the keys of the distances, `scale` is that of the scores.
    ///
    /// # Errors
    /// As [`Weights::take`](crate::checkpoint::Weights::take).
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
        // The scores with tokens of the same segment are those of all, which change no probability.
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

/// Returns the weight of a layer whose outputs are the products of heads and the parts of a vector, `[width, heads]`.
fn by_head(vector: &[f32], heads: usize, scale: f32) -> Vec<f32> {
    let head_dim = (vector.len() / heads.max(1)).max(1);
    let rows = vector.iter().enumerate().flat_map(|(element, value)| {
        let own = element / head_dim;
        (0..heads).map(move |head| if head == own { scale * value } else { 0.0 })
    });
    rows.collect()
}

/// Returns the products of the keys of the distances and a layer with an output per head, as a table by distance.
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
    // The table begins with keys after their queries by a negative distance, the keys of the distances with the longest.
    let places = (0..heads).flat_map(|head| (0..count).rev().map(move |row| row * heads + head));
    ops.with_width(ops.select(&products, &places.collect::<Vec<_>>()), count)
}
