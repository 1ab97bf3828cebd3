//! Cached tokens of a mini-batch in one layer: device blocks, transferred blocks, and keys and values recomputed from
//! ACT blocks.

use std::ops::Range;

use kaskade_policy::hybrid_cache::{Kind, Place};

use super::block_cache::{BlockSlice, DeviceCache, Segment};
use super::transfer::StagedBlocks;
use crate::decoder::weights::ModelConfig;
use crate::generation::layers::cross_attention::CrossAttention;
use crate::ops::{AttentionSpans, Ops, Span};

/// A request in a forward pass.
#[derive(Debug, Clone)]
pub(crate) struct BatchEntry {
    pub(crate) request: u64,
    /// Number of leading tokens in the block table that an encoder reads.
    pub(crate) source: usize,
    /// Number of cached tokens in the block table: zero, or at least `source`.
    pub(crate) cached: usize,
    /// Number of tokens that the decoder computes.
    pub(crate) new: usize,
    /// Locations of the cached tokens.
    pub(crate) slices: Vec<BlockSlice>,
}

impl BatchEntry {
    /// Returns the number of tokens that the encoder reads in this pass.
    pub(crate) fn encoded(&self) -> usize {
        if self.cached == 0 { self.source } else { 0 }
    }

    /// Returns the positions of the decoder's new tokens in the block table.
    pub(crate) fn places(&self) -> Range<usize> {
        let first = self.cached.max(self.source);
        first..first + self.new
    }
}

/// Cached tokens of a mini-batch in a layer.
pub(crate) struct CachedContext<'b, M: Ops> {
    pub(crate) entries: &'b [BatchEntry],
    /// Transferred blocks.
    pub(crate) staged: Option<&'b StagedBlocks<M>>,
    pub(crate) device: &'b DeviceCache<M>,
    /// Index of the layer in the cache.
    pub(crate) layer: usize,
}

impl<'b, M: Ops> CachedContext<'b, M> {
    /// Computes keys and values from all ACT blocks of a segment (KV Gen), on the device and transferred, in request
    /// order. `project` computes them from the gathered entries, `width` wide, and their positions.
    pub(crate) fn generate(
        &self,
        ops: &M,
        width: usize,
        part: Segment,
        project: impl FnOnce(&M::Matrix, &[usize]) -> M::Matrix,
    ) -> Option<M::Matrix> {
        let (mut acts, mut positions, mut next) = (Vec::new(), Vec::new(), 0);
        for slice in self.entries.iter().flat_map(|entry| &entry.slices) {
            if slice.block.kind != Kind::Act {
                continue;
            }
            let count = slice.tokens;
            let span = match slice.block.place {
                Place::Device => self.on_device(slice),
                Place::Host => {
                    next += count;
                    span(self.staged.map(|staged| &staged.act), next - count, count)
                }
            };
            if slice.part != part {
                continue;
            }
            acts.extend(span);
            positions.extend(slice.position..slice.position + count);
        }
        if acts.is_empty() {
            return None;
        }
        Some(project(&ops.gather(&acts, width), &positions))
    }

    /// Returns the keys and values of a segment per request, in token order: from transferred blocks, device blocks,
    /// and `generated`.
    pub(crate) fn spans<'c>(
        &self,
        part: Segment,
        generated: Option<&'c M::Matrix>,
    ) -> Vec<Vec<Span<'c, M::Matrix>>>
    where
        'b: 'c,
    {
        let (mut next_loaded, mut next_generated) = (0, 0);
        let mut of = |slice: &BlockSlice| {
            let count = slice.tokens;
            let span = match (slice.block.kind, slice.block.place) {
                (Kind::Act, _) if slice.part != part => return None,
                (Kind::Act, _) => {
                    next_generated += count;
                    span(generated, next_generated - count, count)
                }
                (Kind::Kv, Place::Device) => self.on_device(slice),
                (Kind::Kv, Place::Host) => {
                    next_loaded += count;
                    span(self.staged.map(|staged| &staged.kv), next_loaded - count, count)
                }
            };
            span.filter(|_| slice.part == part)
        };
        let entries = self.entries.iter();
        entries
            .map(|entry| entry.slices.iter().filter_map(&mut of).collect())
            .collect()
    }

    fn on_device(&self, slice: &BlockSlice) -> Option<Span<'b, M::Matrix>> {
        let (matrix, first) = self.device.block(self.layer, slice.block)?;
        span(Some(matrix), first + slice.from, slice.tokens)
    }

    /// Computes the keys and values of prompts that are not cached as such: for whole prompts if `encoded` is the
    /// encoder's new output, else from ACT blocks.
    pub(crate) fn prompt_kv(
        &self,
        ops: &M,
        model_config: &ModelConfig,
        cross: &CrossAttention<M>,
        encoded: Option<&M::Matrix>,
    ) -> Option<M::Matrix> {
        match encoded {
            Some(encoded) => Some(ops.multiply(encoded, &cross.key_value)),
            None => self.generate(ops, model_config.act_width(), Segment::Source, |acts, _| {
                ops.multiply(acts, &cross.key_value)
            }),
        }
    }

    /// Returns the prompt that each request's new tokens attend to. `prompt_kv` is the result of
    /// [`CachedContext::prompt_kv`]; `encoded` states whether it covers whole prompts.
    pub(crate) fn prompts<'c>(
        &self,
        prompt_kv: Option<&'c M::Matrix>,
        encoded: bool,
    ) -> Vec<AttentionSpans<'c, M::Matrix>>
    where
        'b: 'c,
    {
        let mut next = 0;
        let whole = |count: usize, next: &mut usize| {
            *next += count;
            let from = *next - count;
            prompt_kv
                .map(|matrix| Span { matrix, from, count })
                .into_iter()
                .collect()
        };
        let cached: Vec<Vec<Span<'c, M::Matrix>>> = if encoded {
            let entries = self.entries.iter();
            entries.map(|entry| whole(entry.encoded(), &mut next)).collect()
        } else {
            self.spans(Segment::Source, prompt_kv)
        };
        let entries = self.entries.iter().zip(cached);
        entries
            .map(|(entry, cached)| AttentionSpans {
                queries: entry.new,
                cached,
                new_kv: None,
            })
            .collect()
    }
}

fn span<X>(matrix: Option<&X>, from: usize, count: usize) -> Option<Span<'_, X>> {
    matrix.map(|matrix| Span { matrix, from, count })
}
