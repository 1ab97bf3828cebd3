//! Cross-attention: a decoder's layers attend to what an encoder made of the prompt.
//!
//! What the encoder made lies in the request's own blocks, before those of its answer: keys and values of a layer where a block is
//! KV, and the encoder's output where it is ACT. The output is as wide as an activation, and a projection alone makes keys and values of it, so it
//! is an ACT entry like any other. Admission, refusals, offloading, packing, preemption and freeing thus hold for prompts
//! too, and every mode treats them as it treats answers. The price is that ACT blocks repeat the output in every layer, which is
//! still half of what keys and values would take there. Where nothing is cached the encoder reads the prompt again in every step.

use super::math::{Attended, Math, Span};
use super::model::Spec;
use super::reach::{Part, Reach};

/// A layer's cross-attention on the device.
pub(super) struct Cross<M: Math> {
    pub(super) norm: M::Norm,
    pub(super) query: M::Linear,
    pub(super) key_value: M::Linear,
    pub(super) output: M::Linear,
}

impl<M: Math> Cross<M> {
    /// Keys and values of prompts that are not as such in the cache: all of those that the encoder has just read, which is then
    /// `encoded`, or else those of ACT blocks.
    pub(super) fn bring(
        &self,
        math: &M,
        spec: &Spec,
        reach: &Reach<'_, M>,
        encoded: Option<&M::Matrix>,
    ) -> Option<M::Matrix> {
        match encoded {
            Some(encoded) => Some(math.multiply(encoded, &self.key_value)),
            None => reach.generate(math, spec.act_width(), Part::Source, |acts, _| {
                math.multiply(acts, &self.key_value)
            }),
        }
    }

    /// Adds to the vectors `x` of the decoder's new tokens what they get from their prompts.
    pub(super) fn forward(
        &self,
        math: &M,
        spec: &Spec,
        x: &mut M::Matrix,
        prompts: &[Attended<'_, M::Matrix>],
    ) {
        let query = math.multiply(&math.normalise(x, &self.norm), &self.query);
        // Distances between the texts mean nothing, so scores gain nothing by them.
        let attended = math.attend(&query, prompts, &spec.heads, None);
        math.add(x, &math.multiply(&attended, &self.output));
    }
}

/// Each request's prompt, as its new tokens attend to it. `brought` is what [`Cross::bring`] gave, and `encoded` whether that is whole
/// prompts.
pub(super) fn prompts<'c, 'b: 'c, M: Math>(
    reach: &Reach<'b, M>,
    brought: Option<&'c M::Matrix>,
    encoded: bool,
) -> Vec<Attended<'c, M::Matrix>> {
    let mut next = 0;
    let whole = |count: usize, next: &mut usize| {
        *next += count;
        let from = *next - count;
        brought
            .map(|matrix| Span { matrix, from, count })
            .into_iter()
            .collect()
    };
    let cached: Vec<Vec<Span<'c, M::Matrix>>> = if encoded {
        let runs = reach.runs.iter();
        runs.map(|run| whole(run.encoded(), &mut next)).collect()
    } else {
        reach.spans(Part::Source, brought)
    };
    let runs = reach.runs.iter().zip(cached);
    runs.map(|(run, cached)| Attended {
        queries: run.new,
        cached,
        fresh: None,
    })
    .collect()
}
