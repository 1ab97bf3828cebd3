//! BERT (Devlin et al. 2019) as it is trained: the network that `kaskade_models::architectures` serves, with dropout.

use burn::module::Module;
use burn::nn::{
    DropoutConfig, Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::{gelu, softmax, tanh};
use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::recipes::Shape;

/// Layer norms' epsilon.
pub(crate) const EPSILON: f64 = 1e-12;
/// Standard deviation of first weights, as BERT has it.
const SPREAD: f64 = 0.02;
/// Added to the score of a token that must not be seen: its exponential is 0.
const HIDDEN: f32 = -1e9;

/// Extents of a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extents {
    /// Of its blocks.
    pub shape: Shape,
    /// Number of token ids.
    pub vocabulary: usize,
    /// The longest sequence, tokens.
    pub context: usize,
    /// Number of classes.
    pub labels: usize,
    /// Share of the elements of vectors that are dropped.
    pub dropout: f64,
}

/// Sequences of token ids, filled up to the longest at their end.
#[derive(Debug, Clone)]
pub(crate) struct Sequences {
    /// `[batch, sequence]`.
    pub ids: Tensor<2, Int>,
    /// 1 where a token is there, 0 where it fills up, `[batch, sequence]`.
    pub mask: Tensor<2>,
}

/// A BERT with a head that classifies sequences.
#[derive(Module, Debug)]
pub(crate) struct Bert {
    words: Embedding,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
    pooler: Linear,
    classifier: Linear,
    dropout: f64,
}

/// Attention, then a feed-forward layer, each with a residual connection and a norm after it.
#[derive(Module, Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    up: Linear,
    down: Linear,
    fed_norm: LayerNorm,
    heads: usize,
    dropout: f64,
}

impl Extents {
    /// The network with random weights.
    pub(crate) fn init(&self, device: &Device) -> Bert {
        let width = self.shape.width;
        Bert {
            words: embedding(self.vocabulary, width, device),
            positions: embedding(self.context, width, device),
            // One type: a sentence has no second one.
            types: embedding(1, width, device),
            norm: norm(width, device),
            layers: (0..self.shape.layers).map(|_| self.layer(device)).collect(),
            pooler: linear(width, width, device),
            classifier: linear(width, self.labels, device),
            dropout: self.dropout,
        }
    }

    fn layer(&self, device: &Device) -> Layer {
        let (width, inner) = (self.shape.width, self.shape.inner());
        Layer {
            query: linear(width, width, device),
            key: linear(width, width, device),
            value: linear(width, width, device),
            attended: linear(width, width, device),
            attended_norm: norm(width, device),
            up: linear(width, inner, device),
            down: linear(inner, width, device),
            fed_norm: norm(width, device),
            heads: self.shape.heads,
            dropout: self.dropout,
        }
    }
}

impl Bert {
    /// Logits `[batch, labels]`.
    pub(crate) fn forward(&self, sequences: &Sequences) -> Tensor<2> {
        let states = self.states(sequences);
        let [batch, _, width] = states.dims();
        let first = states.slice_dim(1, 0..1).reshape([batch, width]);
        let pooled = tanh(self.pooler.forward(first));
        self.classifier.forward(dropped(pooled, self.dropout))
    }

    /// The last hidden states, `[batch, sequence, width]`.
    fn states(&self, sequences: &Sequences) -> Tensor<3> {
        let [batch, length] = sequences.ids.dims();
        let device = sequences.ids.device();
        let positions = TensorData::new((0..).take(length).collect::<Vec<i64>>(), [1, length]);
        let embedded = self.words.forward(sequences.ids.clone())
            + self.positions.forward(Tensor::from_data(positions, &device))
            + self.types.forward(Tensor::zeros([1, 1], &device));
        let unseen = (sequences.mask.clone() * -1.0 + 1.0) * HIDDEN;
        let unseen = unseen.reshape([batch, 1, 1, length]);
        let embedded = dropped(self.norm.forward(embedded), self.dropout);
        self.layers
            .iter()
            .fold(embedded, |x, layer| layer.forward(x, &unseen))
    }
}

impl Layer {
    /// `x` is `[batch, sequence, width]`, `unseen` is added to the scores, `[batch, 1, 1, sequence]`.
    fn forward(&self, x: Tensor<3>, unseen: &Tensor<4>) -> Tensor<3> {
        let attended = dropped(self.attend(&x, unseen), self.dropout);
        let x = self.attended_norm.forward(x + attended);
        let fed = self.down.forward(gelu(self.up.forward(x.clone())));
        self.fed_norm.forward(x + dropped(fed, self.dropout))
    }

    fn attend(&self, x: &Tensor<3>, unseen: &Tensor<4>) -> Tensor<3> {
        let [batch, sequence, width] = x.dims();
        let depth = width / self.heads;
        let split = |projection: &Linear| {
            let projected = projection.forward(x.clone());
            projected
                .reshape([batch, sequence, self.heads, depth])
                .swap_dims(1, 2)
        };
        let scores = split(&self.query).matmul(split(&self.key).swap_dims(2, 3)) / (depth as f64).sqrt();
        let shares = dropped(softmax(scores + unseen.clone(), 3), self.dropout);
        let attended = shares.matmul(split(&self.value)).swap_dims(1, 2);
        self.attended.forward(attended.reshape([batch, sequence, width]))
    }
}

/// Drops elements where gradients are computed, and nowhere else.
fn dropped<const D: usize>(x: Tensor<D>, share: f64) -> Tensor<D> {
    DropoutConfig::new(share).init().forward(x)
}

fn embedding(rows: usize, width: usize, device: &Device) -> Embedding {
    EmbeddingConfig::new(rows, width)
        .with_initializer(spread())
        .init(device)
}

/// With a bias of 0, as BERT begins.
fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let mut linear = LinearConfig::new(inputs, outputs)
        .with_initializer(spread())
        .init(device);
    linear.bias = Some(Initializer::Zeros.init([outputs], device));
    linear
}

fn norm(width: usize, device: &Device) -> LayerNorm {
    LayerNormConfig::new(width).with_epsilon(EPSILON).init(device)
}

fn spread() -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: SPREAD,
    }
}
