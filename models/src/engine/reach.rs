//! Where the cached tokens of a mini-batch are when a layer is computed: in blocks on the device, in those that the link has brought,
//! and in keys and values that were generated from either.

use std::ops::Range;

use kaskade_policy::hybrid_cache::{Block, Kind, Place};

use super::cache::DeviceCache;
use super::math::{Math, Span};
use super::pass::Run;
use super::stream::Staged;

/// Which of a request's tokens. Its table begins with the source, if it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A prompt that an encoder reads and the decoder's cross-attention attends to.
    Source,
    /// What the decoder itself reads and writes.
    Own,
}

/// Tokens of one part in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) block: Block,
    pub(super) part: Part,
    /// The first of them within the block.
    pub(super) from: usize,
    pub(super) tokens: usize,
    /// Position of the first within its part.
    pub(super) position: usize,
}

/// The pieces that the first `tokens` tokens of a table lie in, `source` of them, if there are as many, those of the source.
pub(super) fn pieces(table: &[Block], block_tokens: usize, source: usize, tokens: usize) -> Vec<Piece> {
    let source = source.min(tokens);
    let mut pieces = cut(table, block_tokens, 0..source, Part::Source);
    pieces.extend(cut(table, block_tokens, source..tokens, Part::Own));
    pieces
}

fn cut(table: &[Block], block_tokens: usize, tokens: Range<usize>, part: Part) -> Vec<Piece> {
    let blocks = (0..).step_by(block_tokens.max(1)).zip(table);
    let overlaps = blocks.map(|(begins, block)| Piece {
        block: *block,
        part,
        from: tokens.start.saturating_sub(begins),
        tokens: (begins + block_tokens)
            .min(tokens.end)
            .saturating_sub(tokens.start.max(begins)),
        position: begins.saturating_sub(tokens.start),
    });
    overlaps.filter(|piece| piece.tokens > 0).collect()
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_a_prompt_and_an_answer_share_is_cut() {
        let block = |number| Block {
            kind: Kind::Kv,
            place: Place::Host,
            number,
        };
        let table = [block(7), block(3), block(5)];
        let of = |source, tokens| -> Vec<(usize, Part, usize, usize, usize)> {
            let pieces = pieces(&table, 4, source, tokens);
            let figures = |piece: &Piece| {
                let Piece {
                    block,
                    part,
                    from,
                    tokens,
                    position,
                } = *piece;
                (block.number, part, from, tokens, position)
            };
            pieces.iter().map(figures).collect()
        };
        assert_eq!(of(0, 5), [(7, Part::Own, 0, 4, 0), (3, Part::Own, 0, 1, 4)]);
        assert_eq!(
            of(5, 9),
            [
                (7, Part::Source, 0, 4, 0),
                (3, Part::Source, 0, 1, 4),
                (3, Part::Own, 1, 3, 0),
                (5, Part::Own, 0, 1, 3)
            ]
        );
        assert_eq!(of(4, 5), [(7, Part::Source, 0, 4, 0), (3, Part::Own, 0, 1, 0)]);
        assert_eq!(of(4, 0), []);
    }
}
