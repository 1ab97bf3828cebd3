//! Span-based dynamic convolutions (Jiang et al. 2020, "`ConvBERT`", section 3.2): every token sums its neighbours
//! with weights computed from its query and its neighbours.

use crate::architectures::layers::Layers;
use crate::checkpoint::{LoadError, transposed};
use crate::ops::{AttentionSpans, Heads, Ops, ScoreRules, Span};
use crate::precision::WeightType;

/// A dynamic convolution on a device.
pub(in crate::architectures) struct DynamicConvolution<O: Ops> {
    /// Depthwise weights per neighbour position.
    depthwise: Vec<O::Norm>,
    pointwise: O::Linear,
    /// Layer that computes the logits of a token's neighbour weights, per head.
    weights: O::Linear,
    values: O::Linear,
    /// Layers that select the weight of one neighbour and repeat it for each element of a head.
    repeated: Vec<O::Linear>,
    /// Identity keys and values, with which each query attends to its own elements.
    identity: O::Matrix,
    heads: usize,
    head_dim: usize,
}

impl<O: Ops> DynamicConvolution<O> {
    /// Takes a convolution with `heads` heads of size `head_dim` over tokens of size `width`; `kernel` is the kernel
    /// size.
    ///
    /// # Errors
    /// Same as [`Weights::take`](crate::checkpoint::Weights::take).
    pub(in crate::architectures) fn take(
        layers: &mut Layers<'_, O>,
        at: &dyn Fn(&str) -> String,
        [width, heads, head_dim]: [usize; 3],
        kernel: usize,
    ) -> Result<Self, LoadError> {
        let own = |name: &str| at(&format!("attention.self.{name}"));
        let outputs = heads * head_dim;
        let name = own("key_conv_attn_layer.depthwise.weight");
        let by_place = transposed(&layers.weights.take(&name, &[width, 1, kernel])?, kernel);
        let places = by_place.chunks(width.max(1));
        let depthwise = places.map(|factors| layers.ops.norm(factors.to_vec(), None, 0.0));
        let depthwise = depthwise.collect();
        let name = own("key_conv_attn_layer.pointwise.weight");
        let weight = transposed(&layers.weights.take(&name, &[outputs, width, 1])?, width);
        let bias = layers
            .weights
            .take(&own("key_conv_attn_layer.bias"), &[outputs, 1])?;
        let ops = layers.ops;
        let repeated = (0..kernel).map(|place| {
            let row = |other| vec![if other == place { 1.0 } else { 0.0 }; head_dim];
            let weight = (0..kernel).flat_map(row).collect();
            let prepared = ops.prepare(weight, kernel, head_dim, WeightType::F32);
            ops.linear(prepared, Vec::new(), kernel, head_dim)
        });
        let repeated = repeated.collect();
        let identity = (0..kernel).flat_map(|row| {
            (0..2 * kernel).map(move |column| if column % kernel == row { 1.0 } else { 0.0 })
        });
        Ok(Self {
            depthwise,
            pointwise: layers.upload(weight, bias, width, outputs),
            weights: layers.linear(&own("conv_kernel_layer"), outputs, heads * kernel)?,
            values: layers.linear(&own("conv_out_layer"), width, outputs)?,
            repeated,
            identity: ops.upload(identity.collect(), 2 * kernel),
            heads,
            head_dim,
        })
    }

    /// Concatenates the outputs of heads and convolution per token. The rows of `x` are tokens; those of `projected`
    /// begin with their queries.
    pub(in crate::architectures) fn beside(
        &self,
        ops: &O,
        x: &O::Matrix,
        projected: O::Matrix,
        attended: &O::Matrix,
        sequences: &[&[bool]],
    ) -> O::Matrix {
        let width = self.heads * self.head_dim;
        let tokens: usize = sequences.iter().map(|mask| mask.len()).sum();
        let queries: Vec<usize> = (0..tokens).map(|token| 3 * token).collect();
        let queries = ops.select(&ops.with_width(projected, width), &queries);
        let convolved = self.convolved(ops, x, &queries, sequences);
        let all = |matrix| Span {
            matrix,
            from: 0,
            count: tokens,
        };
        let both = ops.gather(&[all(attended), all(&convolved)], width);
        let rows: Vec<usize> = (0..tokens).flat_map(|token| [token, tokens + token]).collect();
        ops.with_width(ops.select(&both, &rows), 2 * width)
    }

    fn convolved(&self, ops: &O, x: &O::Matrix, queries: &O::Matrix, sequences: &[&[bool]]) -> O::Matrix {
        let tokens: usize = sequences.iter().map(|mask| mask.len()).sum();
        let kernel = self.depthwise.len();
        let neighbours: Vec<Vec<usize>> = (0..kernel)
            .map(|place| neighbours(sequences, place, kernel / 2))
            .collect();
        let mut keys: Option<O::Matrix> = None;
        for (rows, factors) in neighbours.iter().zip(&self.depthwise) {
            let mut shifted = ops.select(x, rows);
            ops.scale(&mut shifted, factors);
            keys = Some(sum(ops, keys, shifted));
        }
        let keys = keys.unwrap_or_else(|| ops.zeros(0, 1));
        let mut keys = ops.multiply(&keys, &self.pointwise);
        ops.times(&mut keys, queries);
        let weights = ops.with_width(ops.multiply(&keys, &self.weights), kernel);
        let weights = self.shares(ops, &weights, tokens * self.heads);
        let values = ops.multiply(x, &self.values);
        let mut convolved: Option<O::Matrix> = None;
        for (rows, layer) in neighbours.iter().zip(&self.repeated) {
            let mut shifted = ops.with_width(ops.select(&values, rows), self.head_dim);
            ops.times(&mut shifted, &ops.multiply(&weights, layer));
            convolved = Some(sum(ops, convolved, shifted));
        }
        let convolved = convolved.unwrap_or_else(|| ops.zeros(0, 1));
        ops.with_width(convolved, self.heads * self.head_dim)
    }

    /// Returns the softmax of every row, computed as attention with identity keys and values.
    fn shares(&self, ops: &O, rows: &O::Matrix, count: usize) -> O::Matrix {
        let kernel = self.depthwise.len();
        let identity = Span {
            matrix: &self.identity,
            from: 0,
            count: kernel,
        };
        let request = AttentionSpans {
            queries: count,
            cached: vec![identity],
            new_kv: None,
        };
        let heads = Heads {
            queries: 1,
            keys: 1,
            head_dim: kernel,
            scale: 1.0,
        };
        ops.attend(rows, &[request], &heads, ScoreRules::default())
    }
}

/// Returns the row of each token's neighbour at a position, where `middle` is the token itself; positions outside its
/// sequence have no row.
fn neighbours(sequences: &[&[bool]], place: usize, middle: usize) -> Vec<usize> {
    let mut first = 0;
    let mut rows = Vec::new();
    for mask in sequences {
        let length = mask.len();
        rows.extend((0..length).map(|token| {
            let neighbour = (token + place).checked_sub(middle);
            let neighbour = neighbour.filter(|neighbour| *neighbour < length);
            neighbour.map_or(usize::MAX, |neighbour| first + neighbour)
        }));
        first += length;
    }
    rows
}

fn sum<O: Ops>(ops: &O, summed: Option<O::Matrix>, summand: O::Matrix) -> O::Matrix {
    match summed {
        Some(mut summed) => {
            ops.add(&mut summed, &summand);
            summed
        }
        None => summand,
    }
}
