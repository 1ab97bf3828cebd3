//! Weights and cache of a decoder's layer, counted from its dimensions.

use serde::Serialize;
use thiserror::Error;

/// A decoder's dimensions. Norms, biases and positions are left out: together under a thousandth of the weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Name of the decoder.
    pub name: String,
    /// Layers.
    pub layers: usize,
    /// Length of a token's hidden state, and of what an ACT block holds of it.
    pub width: usize,
    /// Length of a token's keys, and of its values: `width` where every head has its own.
    pub kv_width: usize,
    /// Length of the feed-forward network's inner state.
    pub inner: usize,
    /// Whether the feed-forward network has a gate, a third matrix (Llama).
    pub gated: bool,
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of a request, at most.
    pub context: usize,
    /// Bytes of a weight and of a cached number: 2 for 16-bit floats.
    pub element_bytes: usize,
}

/// A dimension that no decoder has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name}: `{dimension}` is {value}; a decoder has from 1 to {most}")]
pub struct BadShape {
    /// The decoder's name.
    pub name: String,
    /// The dimension.
    pub dimension: &'static str,
    /// Value of the dimension.
    pub value: usize,
    /// The maximum.
    pub most: usize,
}

/// No dimension of a decoder is larger; beyond, all layers' bytes would not fit 64 bits.
const MAX_DIMENSION: usize = 1 << 20;

/// No context or vocabulary is.
const MAX_TOKENS: usize = 1 << 24;

/// No decoder has more layers: each is simulated.
const MAX_LAYERS: usize = 4096;

impl Shape {
    /// Refuses dimensions of 0 and those that no decoder has.
    ///
    /// # Errors
    /// [`BadShape`], naming the dimension.
    pub fn check(&self) -> Result<(), BadShape> {
        let dimensions = [
            ("layers", self.layers, MAX_LAYERS),
            ("width", self.width, MAX_DIMENSION),
            ("kv_width", self.kv_width, MAX_DIMENSION),
            ("inner", self.inner, MAX_DIMENSION),
            ("vocabulary", self.vocabulary, MAX_TOKENS),
            ("context", self.context, MAX_TOKENS),
            ("element_bytes", self.element_bytes, 8),
        ];
        let bad = dimensions
            .into_iter()
            .find(|(_, value, most)| *value == 0 || value > most);
        bad.map_or(Ok(()), |(dimension, value, most)| {
            Err(BadShape {
                name: self.name.clone(),
                dimension,
                value,
                most,
            })
        })
    }

    /// Weights that make keys and values out of activations: what KV Gen multiplies by (equation 7).
    pub(crate) fn kv_gen_weights(&self) -> u64 {
        (2 * self.width * self.kv_width) as u64
    }

    /// Weights of a layer: queries, keys and values, the output projection and the feed-forward network.
    pub(crate) fn layer_weights(&self) -> u64 {
        let matrices = if self.gated { 3 } else { 2 };
        self.kv_gen_weights() + (2 * self.width * self.width + matrices * self.width * self.inner) as u64
    }

    /// Bytes of a layer's weights.
    pub fn layer_bytes(&self) -> u64 {
        self.layer_weights() * self.element_bytes as u64
    }

    /// Bytes of the embeddings, which are the head too.
    pub fn head_bytes(&self) -> u64 {
        (self.vocabulary * self.width * self.element_bytes) as u64
    }

    /// Bytes of a token's keys and values in one layer.
    pub fn kv_bytes(&self) -> u64 {
        (2 * self.kv_width * self.element_bytes) as u64
    }

    /// Bytes of a token's activations in one layer.
    pub fn act_bytes(&self) -> u64 {
        (self.width * self.element_bytes) as u64
    }

    /// Number of weights, the embeddings among them.
    pub fn parameters(&self) -> u64 {
        self.layer_weights() * self.layers as u64 + (self.vocabulary * self.width) as u64
    }
}
