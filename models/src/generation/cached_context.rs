//! Where the cached tokens of a mini-batch are when a layer is computed: in blocks on the device, in those that the link has brought,
//! and in keys and values that were generated from either.

use std::ops::Range;

use kaskade_plans::hybrid_cache::{Kind, Place};

use super::block_cache::{BlockSlice, DeviceCache, Segment};
use super::cross_attention::CrossAttention;
use super::transfer::StagedBlocks;
use crate::decoder::weights::ModelConfig;
use crate::ops::{AttentionSpans, Ops, Span};

/// A request's part in a pass.
#[derive(Debug, Clone)]
pub(super) struct BatchEntry {
    pub(super) request: u64,
    /// Tokens that its table begins with and an encoder reads.
    pub(super) source: usize,
    /// Tokens of its table that are in the cache: none, or the source among them.
    pub(super) cached: usize,
    /// Tokens that the decoder is to compute.
    pub(super) new: usize,
    /// Where the cached ones are.
    pub(super) slices: Vec<BlockSlice>,
}

impl BatchEntry {
    /// Tokens that the encoder is to read.
    pub(super) fn encoded(&self) -> usize {
        if self.cached == 0 { self.source } else { 0 }
    }

    /// Places of the decoder's new tokens in the table.
    pub(super) fn places(&self) -> Range<usize> {
        let first = self.cached.max(self.source);
        first..first + self.new
    }
}

/// A mini-batch's cached tokens in a layer.
pub(super) struct CachedContext<'b, M: Ops> {
    pub(super) entries: &'b [BatchEntry],
    /// What the link brought.
    pub(super) staged: Option<&'b StagedBlocks<M>>,
    pub(super) device: &'b DeviceCache<M>,
    /// The layer of the cache.
    pub(super) layer: usize,
}

impl<'b, M: Ops> CachedContext<'b, M> {
    /// KV Gen for all ACT blocks of a part, those on the device and those that were loaded, in the requests' order: `project` makes
    /// keys and values of gathered entries, `width` wide, and their positions.
    pub(super) fn generate(
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
            let (matrix, from) = match slice.block.place {
                Place::Device => (self.on_device(slice), slice.from),
                Place::Host => {
                    next += slice.tokens;
                    (self.staged.map(|staged| &staged.act), next - slice.tokens)
                }
            };
            if slice.part != part {
                continue;
            }
            let count = slice.tokens;
            acts.extend(matrix.map(|matrix| Span { matrix, from, count }));
            positions.extend(slice.position..slice.position + count);
        }
        if acts.is_empty() {
            return None;
        }
        Some(project(&ops.gather(&acts, width), &positions))
    }

    /// Where each request's keys and values of a part are, in the order of its tokens: blocks as they were loaded, blocks on the device,
    /// and what was generated.
    pub(super) fn spans<'c>(
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
            let (matrix, from) = match (slice.block.kind, slice.block.place) {
                (Kind::Act, _) if slice.part != part => return None,
                (Kind::Act, _) => {
                    next_generated += count;
                    (generated, next_generated - count)
                }
                (Kind::Kv, Place::Device) => (self.on_device(slice), slice.from),
                (Kind::Kv, Place::Host) => {
                    next_loaded += count;
                    (self.staged.map(|staged| &staged.kv), next_loaded - count)
                }
            };
            let matrix = matrix.filter(|_| slice.part == part);
            matrix.map(|matrix| Span { matrix, from, count })
        };
        let entries = self.entries.iter();
        entries
            .map(|entry| entry.slices.iter().filter_map(&mut of).collect())
            .collect()
    }

    fn on_device(&self, slice: &BlockSlice) -> Option<&'b M::Matrix> {
        self.device.block(self.layer, slice.block)
    }

    /// Keys and values of prompts that are not as such in the cache: all of those that the encoder has just read, which is then
    /// `encoded`, or else those of ACT blocks.
    pub(super) fn prompt_kv(
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

    /// Each request's prompt, as its new tokens attend to it. `prompt_kv` is what [`CachedContext::prompt_kv`] returned, and `encoded` whether
    /// that is whole prompts.
    pub(super) fn prompts<'c>(
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
