//! Where the cached tokens of a mini-batch are when a layer is computed: in blocks on the device, in those that the link has brought,
//! and in keys and values that were generated from either.

use std::ops::Range;

use kaskade_plans::hybrid_cache::{Kind, Place};

use super::block_cache::{DeviceCache, Part, Piece};
use super::cross_attention::Cross;
use super::transfer::Staged;
use crate::decoder::weights::Spec;
use crate::ops::{Attended, Math, Span};

/// A request's part in a pass.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) request: u64,
    /// Tokens that its table begins with and an encoder reads.
    pub(super) source: usize,
    /// Tokens of its table that are in the cache: none, or the source among them.
    pub(super) cached: usize,
    /// Tokens that the decoder is to compute.
    pub(super) new: usize,
    /// Where the cached ones are.
    pub(super) pieces: Vec<Piece>,
}

impl Run {
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
pub(super) struct Reach<'b, M: Math> {
    pub(super) runs: &'b [Run],
    /// What the link brought.
    pub(super) staged: Option<&'b Staged<M>>,
    pub(super) device: &'b DeviceCache<M>,
    /// The layer of the cache.
    pub(super) layer: usize,
}

impl<'b, M: Math> Reach<'b, M> {
    /// KV Gen for all ACT blocks of a part, those on the device and those that were loaded, in the requests' order: `project` makes
    /// keys and values of gathered entries, `width` wide, and their positions.
    pub(super) fn generate(
        &self,
        math: &M,
        width: usize,
        part: Part,
        project: impl FnOnce(&M::Matrix, &[usize]) -> M::Matrix,
    ) -> Option<M::Matrix> {
        let (mut acts, mut positions, mut next) = (Vec::new(), Vec::new(), 0);
        for piece in self.runs.iter().flat_map(|run| &run.pieces) {
            if piece.block.kind != Kind::Act {
                continue;
            }
            let (matrix, from) = match piece.block.place {
                Place::Device => (self.on_device(piece), piece.from),
                Place::Host => {
                    next += piece.tokens;
                    (self.staged.map(|staged| &staged.act), next - piece.tokens)
                }
            };
            if piece.part != part {
                continue;
            }
            let count = piece.tokens;
            acts.extend(matrix.map(|matrix| Span { matrix, from, count }));
            positions.extend(piece.position..piece.position + count);
        }
        if acts.is_empty() {
            return None;
        }
        Some(project(&math.gather(&acts, width), &positions))
    }

    /// Where each request's keys and values of a part are, in the order of its tokens: blocks as they were loaded, blocks on the device,
    /// and what was generated.
    pub(super) fn spans<'c>(
        &self,
        part: Part,
        generated: Option<&'c M::Matrix>,
    ) -> Vec<Vec<Span<'c, M::Matrix>>>
    where
        'b: 'c,
    {
        let (mut next_loaded, mut next_generated) = (0, 0);
        let mut of = |piece: &Piece| {
            let count = piece.tokens;
            let (matrix, from) = match (piece.block.kind, piece.block.place) {
                (Kind::Act, _) if piece.part != part => return None,
                (Kind::Act, _) => {
                    next_generated += count;
                    (generated, next_generated - count)
                }
                (Kind::Kv, Place::Device) => (self.on_device(piece), piece.from),
                (Kind::Kv, Place::Host) => {
                    next_loaded += count;
                    (self.staged.map(|staged| &staged.kv), next_loaded - count)
                }
            };
            let matrix = matrix.filter(|_| piece.part == part);
            matrix.map(|matrix| Span { matrix, from, count })
        };
        let runs = self.runs.iter();
        runs.map(|run| run.pieces.iter().filter_map(&mut of).collect())
            .collect()
    }

    fn on_device(&self, piece: &Piece) -> Option<&'b M::Matrix> {
        self.device.block(self.layer, piece.block)
    }

    /// Keys and values of prompts that are not as such in the cache: all of those that the encoder has just read, which is then
    /// `encoded`, or else those of ACT blocks.
    pub(super) fn prompt_kv(
        &self,
        math: &M,
        spec: &Spec,
        cross: &Cross<M>,
        encoded: Option<&M::Matrix>,
    ) -> Option<M::Matrix> {
        match encoded {
            Some(encoded) => Some(math.multiply(encoded, &cross.key_value)),
            None => self.generate(math, spec.act_width(), Part::Source, |acts, _| {
                math.multiply(acts, &cross.key_value)
            }),
        }
    }

    /// Each request's prompt, as its new tokens attend to it. `prompt_kv` is what [`Reach::prompt_kv`] returned, and `encoded` whether
    /// that is whole prompts.
    pub(super) fn prompts<'c>(
        &self,
        prompt_kv: Option<&'c M::Matrix>,
        encoded: bool,
    ) -> Vec<Attended<'c, M::Matrix>>
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
            let runs = self.runs.iter();
            runs.map(|run| whole(run.encoded(), &mut next)).collect()
        } else {
            self.spans(Part::Source, prompt_kv)
        };
        let runs = self.runs.iter().zip(cached);
        runs.map(|(run, cached)| Attended {
            queries: run.new,
            cached,
            fresh: None,
        })
        .collect()
    }
}
