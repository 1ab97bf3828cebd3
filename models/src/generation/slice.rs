//! A run of a decoder's layers, for a model that is cut over several devices (HybridServe Edinburgh §V: the partitions `S_i`).
//!
//! It computes whole texts and keeps nothing of them: what goes from slice to slice are hidden states, and out of the last one come the
//! logits of each text's next token.

use super::layer::{Layer, Means, Stored};
use crate::decoder::weights::{Decoder, Spec};
use crate::ops::{Attended, Math, MathError, Span};

/// Some consecutive layers of a decoder, and its head if they are the last.
pub struct DecoderSlice<M: Math> {
    math: M,
    /// Embeddings; its layers and its head are taken out.
    decoder: Decoder,
    layers: Vec<Layer<M>>,
    gains: Option<M::Matrix>,
    end: Option<End<M>>,
}

/// What makes logits of hidden states.
struct End<M: Math> {
    norm: M::Norm,
    head: M::Linear,
}

impl<M: Math> DecoderSlice<M> {
    /// The layers that `decoder` has, with its norm and head if they are the `last`.
    pub fn new(math: M, mut decoder: Decoder, last: bool) -> Self {
        let epsilon = decoder.spec.epsilon;
        let layers = std::mem::take(&mut decoder.layers).into_iter();
        let layers = layers.map(|weights| Stored::new(&math, weights, epsilon).resident(&math));
        let layers = layers.collect();
        let head = std::mem::take(&mut decoder.head);
        let end = last.then(|| {
            let norm = decoder.final_norm.clone();
            let weight = math.prepare(head.weight, head.inputs, head.outputs);
            End {
                norm: math.norm(norm.gamma, norm.beta, epsilon),
                head: math.linear(weight, head.bias, head.inputs, head.outputs),
            }
        });
        let gains = decoder.spec.relative.as_ref();
        Self {
            gains: gains.map(|gains| math.upload(gains.gains.clone(), gains.width())),
            layers,
            end,
            decoder,
            math,
        }
    }

    /// The whole model's extents.
    pub fn spec(&self) -> &Spec {
        &self.decoder.spec
    }

    /// The vectors of a text's tokens, `[tokens, width]`. Tokens are below the vocabulary.
    pub fn embed(&self, tokens: &[u32]) -> Vec<f32> {
        self.decoder.embed(tokens, 0)
    }

    /// What the layers make of the hidden states of some texts, one after the other, `[tokens of all, width]`; `lengths` says how many
    /// tokens each has.
    ///
    /// # Errors
    /// [`MathError`]: the device failed.
    pub fn forward(&self, states: Vec<f32>, lengths: &[usize]) -> Result<Vec<f32>, MathError> {
        let means = Means {
            math: &self.math,
            spec: &self.decoder.spec,
            gains: self.gains.as_ref(),
        };
        let positions: Vec<usize> = lengths.iter().flat_map(|length| 0..*length).collect();
        let mut x = self.math.upload(states, self.decoder.spec.width);
        for layer in &self.layers {
            let fresh = layer.project(means, &x, &positions);
            let mut next = 0;
            let own = lengths.iter().map(|count| {
                let from = next;
                next += count;
                Attended {
                    queries: *count,
                    cached: Vec::new(),
                    fresh: Some(Span {
                        matrix: &fresh.kv,
                        from,
                        count: *count,
                    }),
                }
            });
            let own: Vec<Attended<'_, M::Matrix>> = own.collect();
            layer.forward(means, &mut x, &positions, &fresh.act, &own, &[]);
        }
        Ok(self.math.values(&x)?.into_owned())
    }

    /// The logits that come out of hidden states `[rows, width]`, a row each; none of a slice that is not the last.
    ///
    /// # Errors
    /// [`MathError`]: the device failed.
    pub fn logits(&self, states: Vec<f32>) -> Result<Vec<Vec<f32>>, MathError> {
        let Some(End { norm, head }) = &self.end else {
            return Ok(Vec::new());
        };
        let x = self.math.upload(states, self.decoder.spec.width);
        let logits = self.math.multiply(&self.math.normalise(&x, norm), head);
        let values = self.math.values(&logits)?;
        let rows = values.chunks(self.decoder.spec.vocabulary.max(1));
        Ok(rows.map(<[f32]>::to_vec).collect())
    }
}
