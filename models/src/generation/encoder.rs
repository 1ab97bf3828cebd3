//! An encoder on the device: it reads prompts as a whole, every token seeing every other, when they are prefilled.
//!
//! Its layers come before the decoder's in the list of layers: a pass that prefills goes through all of them, any other through the
//! decoder's alone. They are resident or streamed by the same rule and through the same two buffers.

use super::layer::{Layer, Means};
use crate::decoder::weights::{Encoder, Spec};
use crate::ops::{Attended, Math, Span};

/// What an encoder has on the device beside its layers, and its bounds.
pub(super) struct Reader<M: Math> {
    /// Its layers, the first of all.
    pub(super) layers: usize,
    /// Most tokens of a prompt.
    pub(super) context: usize,
    /// The token that every answer begins with.
    pub(super) start: u32,
    norm: M::Norm,
    gains: M::Matrix,
    bytes: u64,
}

impl<M: Math> Reader<M> {
    /// Of an encoder whose `layers` layers have homes of their own.
    pub(super) fn new(math: &M, encoder: Encoder, layers: usize, epsilon: f32) -> Self {
        let (gains, norm) = (encoder.relative, encoder.final_norm);
        Self {
            layers,
            context: encoder.context,
            start: encoder.start,
            bytes: size_of_val(gains.gains.as_slice()) as u64,
            gains: math.upload(gains.gains.clone(), gains.width()),
            norm: math.norm(norm.gamma, norm.beta, epsilon),
        }
    }

    /// What it takes beside its layers, bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes prompts of so many tokens each, under each other, through the layer `index`; behind the last one they are normed.
    pub(super) fn read(
        &self,
        (math, spec): (&M, &Spec),
        (index, layer): (usize, &Layer<M>),
        x: &mut M::Matrix,
        counts: &[usize],
    ) {
        let means = Means {
            math,
            spec,
            gains: Some(&self.gains),
        };
        let positions: Vec<usize> = counts.iter().flat_map(|count| 0..*count).collect();
        let fresh = layer.project(means, x, &positions);
        let mut next = 0;
        let own = counts.iter().map(|count| {
            next += count;
            let whole = Span {
                matrix: &fresh.kv,
                from: next - count,
                count: *count,
            };
            Attended {
                queries: *count,
                cached: vec![whole],
                fresh: None,
            }
        });
        let own: Vec<Attended<'_, M::Matrix>> = own.collect();
        layer.forward(means, x, &positions, &fresh.act, &own, &[]);
        if index + 1 == self.layers {
            *x = math.normalise(x, &self.norm);
        }
    }
}
