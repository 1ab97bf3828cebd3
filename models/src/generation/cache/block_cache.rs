//! Storage of the cache's blocks: pools in host memory, which the transfer thread reads, and pools on the device.
//!
//! A physical block has the same number in every layer. The host pools are locked per layer: the compute thread writes
//! a layer's new tokens while the transfer thread reads older ones, never the same rows.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use kaskade_policy::hybrid_cache::{Block, BlockCopy, BlockCounts, Capacity, Kind, Place};

use crate::decoder::weights::{LayerWeights, ModelConfig};
use crate::ops::{Ops, OpsError, Span};

/// Segment of a request's tokens. In the block table, the source comes first, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Prompt of an encoder-decoder, which the encoder reads and the cross-attention attends to.
    Source,
    /// Tokens of the decoder.
    Target,
}

/// Tokens of one segment in one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockSlice {
    pub(crate) block: Block,
    pub(crate) part: Segment,
    /// First token, relative to the block.
    pub(crate) from: usize,
    pub(crate) tokens: usize,
    /// Position of the first token within its segment.
    pub(crate) position: usize,
}

/// Returns the block slices of the first `tokens` tokens of a block table; up to `source` of them belong to the
/// source.
pub(crate) fn slices(table: &[Block], block_tokens: usize, source: usize, tokens: usize) -> Vec<BlockSlice> {
    let source = source.min(tokens);
    let mut slices = cut(table, block_tokens, 0..source, Segment::Source);
    slices.extend(cut(table, block_tokens, source..tokens, Segment::Target));
    slices
}

fn cut(table: &[Block], block_tokens: usize, tokens: Range<usize>, part: Segment) -> Vec<BlockSlice> {
    let blocks = (0..).step_by(block_tokens.max(1)).zip(table);
    let overlaps = blocks.map(|(begins, block)| BlockSlice {
        block: *block,
        part,
        from: tokens.start.saturating_sub(begins),
        tokens: (begins + block_tokens)
            .min(tokens.end)
            .saturating_sub(tokens.start.max(begins)),
        position: begins.saturating_sub(tokens.start),
    });
    overlaps.filter(|slice| slice.tokens > 0).collect()
}

/// Blocks of a layer in host memory.
#[derive(Debug, Default)]
struct HostBlocks {
    act: Vec<f32>,
    kv: Vec<f32>,
}

/// Cache entries of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerEntries {
    /// Whether the layer has entries, which is the case if it has attention.
    pub(crate) cached: bool,
    /// Whether entries have the width of local layers.
    pub(crate) local: bool,
}

impl From<&LayerWeights> for LayerEntries {
    fn from(layer: &LayerWeights) -> Self {
        Self {
            cached: layer.has_attention(),
            local: layer.local,
        }
    }
}

/// Pools in host memory.
#[derive(Debug)]
pub(crate) struct HostCache {
    layers: Vec<RwLock<HostBlocks>>,
    /// Whether each layer is local.
    local: Vec<bool>,
    widths: EntryWidths,
}

/// Blocks of a layer on the device: one matrix per kind with the tokens of all blocks, created by the first write.
struct DeviceBlocks<M: Ops> {
    act: Option<M::Matrix>,
    kv: Option<M::Matrix>,
}

/// Pools on the device.
pub(crate) struct DeviceCache<M: Ops> {
    layers: Vec<DeviceBlocks<M>>,
    /// Blocks per layer with attention.
    capacity: BlockCounts,
    /// Whether each layer is local.
    local: Vec<bool>,
    widths: EntryWidths,
}

/// Widths of the entries, and tokens per block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryWidths {
    act: usize,
    /// Width in global layers, then in local layers, elements.
    kv: [usize; 2],
    block_tokens: usize,
}

impl EntryWidths {
    pub(crate) fn new(model_config: &ModelConfig, block_tokens: usize) -> Self {
        Self {
            act: model_config.act_width(),
            kv: [false, true].map(|local| model_config.kv_width_of(local)),
            block_tokens,
        }
    }

    /// Returns the elements per token in a layer.
    pub(crate) fn of(self, kind: Kind, local: bool) -> usize {
        let [others, own] = self.kv;
        match kind {
            Kind::Act => self.act,
            Kind::Kv if local => own,
            Kind::Kv => others,
        }
    }

    /// Returns the maximum bytes of a block in one layer.
    pub(crate) fn block_bytes(self, kind: Kind) -> u64 {
        let widest = self.of(kind, false).max(self.of(kind, true));
        (widest * self.block_tokens * size_of::<f32>()) as u64
    }
}

/// Returns the element range of a block's tokens in a pool with entries of this width.
fn elements(width: usize, first: usize, tokens: Range<usize>) -> Range<usize> {
    (first + tokens.start) * width..(first + tokens.end) * width
}

impl HostCache {
    /// Creates the pools; layers without attention have none.
    pub(crate) fn new(layers: &[LayerEntries], capacity: Capacity, widths: EntryWidths) -> Self {
        let blocks = |layer: &LayerEntries| {
            if !layer.cached {
                return HostBlocks::default();
            }
            let zeros =
                |kind, blocks: usize| vec![0.0; blocks * widths.of(kind, layer.local) * widths.block_tokens];
            HostBlocks {
                act: zeros(Kind::Act, capacity.host.act),
                kv: zeros(Kind::Kv, capacity.host.kv),
            }
        };
        Self {
            layers: layers.iter().map(|layer| RwLock::new(blocks(layer))).collect(),
            local: layers.iter().map(|layer| layer.local).collect(),
            widths,
        }
    }

    pub(crate) fn widths(&self) -> EntryWidths {
        self.widths
    }

    /// Returns the elements per token in a layer.
    pub(crate) fn width(&self, kind: Kind, layer: usize) -> usize {
        self.widths
            .of(kind, self.local.get(layer).copied().unwrap_or_default())
    }

    /// Returns the bytes of a block slice in one layer.
    pub(crate) fn slice_bytes(&self, layer: usize, slice: &BlockSlice) -> u64 {
        (self.width(slice.block.kind, layer) * slice.tokens * size_of::<f32>()) as u64
    }

    /// Copies a layer's slices of one kind to `copy`, in order.
    pub(crate) fn copy(
        &self,
        layer: usize,
        kind: Kind,
        slices: &[BlockSlice],
        mut copy: Vec<f32>,
    ) -> Vec<f32> {
        let wanted = slices.iter().filter(|slice| slice.block.kind == kind);
        let width = self.width(kind, layer);
        copy.clear();
        let Some(layer) = self.layers.get(layer) else {
            return copy;
        };
        let blocks = layer.read().unwrap_or_else(PoisonError::into_inner);
        let pool = match kind {
            Kind::Act => &blocks.act,
            Kind::Kv => &blocks.kv,
        };
        for slice in wanted {
            let tokens = slice.from..slice.from + slice.tokens;
            let range = elements(width, slice.block.number * self.widths.block_tokens, tokens);
            copy.extend_from_slice(pool.get(range).unwrap_or_default());
        }
        copy
    }

    /// Writes entries into a block, starting at token `at`.
    fn write(&self, layer: usize, block: Block, at: usize, values: &[f32]) {
        let width = self.width(block.kind, layer);
        let Some(layer) = self.layers.get(layer) else {
            return;
        };
        let tokens = values.len() / width.max(1);
        let range = elements(width, block.number * self.widths.block_tokens, at..at + tokens);
        let mut blocks = layer.write().unwrap_or_else(PoisonError::into_inner);
        let pool = match block.kind {
            Kind::Act => &mut blocks.act,
            Kind::Kv => &mut blocks.kv,
        };
        if let Some(slots) = pool.get_mut(range) {
            slots.copy_from_slice(values);
        }
    }
}

impl<M: Ops> DeviceCache<M> {
    /// Creates the pools. Layers without attention are never written and have none.
    pub(crate) fn new(layers: &[LayerEntries], capacity: Capacity, widths: EntryWidths) -> Self {
        let blocks = || DeviceBlocks { act: None, kv: None };
        Self {
            layers: std::iter::repeat_with(blocks).take(layers.len()).collect(),
            capacity: capacity.device,
            local: layers.iter().map(|layer| layer.local).collect(),
            widths,
        }
    }

    /// Returns the matrix that holds a block and the block's first row, or `None` if nothing was written to the pool.
    pub(crate) fn block(&self, layer: usize, block: Block) -> Option<(&M::Matrix, usize)> {
        let blocks = self.layers.get(layer)?;
        let pool = match block.kind {
            Kind::Act => &blocks.act,
            Kind::Kv => &blocks.kv,
        };
        Some((pool.as_ref()?, self.first_row(block)))
    }

    /// Returns the number of layers.
    pub(crate) fn layers(&self) -> usize {
        self.layers.len()
    }

    fn first_row(&self, block: Block) -> usize {
        block.number * self.widths.block_tokens
    }

    /// Writes rows of `source` to rows of a layer's pool.
    fn write(&mut self, ops: &M, layer: usize, kind: Kind, source: &M::Matrix, rows: &[(usize, usize)]) {
        let local = self.local.get(layer).copied().unwrap_or_default();
        let width = self.widths.of(kind, local);
        let blocks = match kind {
            Kind::Act => self.capacity.act,
            Kind::Kv => self.capacity.kv,
        };
        let tokens = blocks * self.widths.block_tokens;
        let Some(layer) = self.layers.get_mut(layer).filter(|_| !rows.is_empty()) else {
            return;
        };
        let pool = match kind {
            Kind::Act => &mut layer.act,
            Kind::Kv => &mut layer.kv,
        };
        ops.write(pool.get_or_insert_with(|| ops.zeros(tokens, width)), source, rows);
    }
}

/// New tokens of a request in a mini-batch.
pub(crate) struct NewTokens<'a> {
    /// Block table of the request.
    pub(crate) table: &'a [Block],
    /// Positions of the tokens in the block table.
    pub(crate) places: Range<usize>,
}

/// Writes the cache entries of new tokens: `act` and `kv` have one row per token, ordered by request. Returns the
/// bytes written to host memory.
///
/// # Errors
/// [`OpsError`] from the device.
pub(crate) fn store<'a, M: Ops>(
    ops: &M,
    host: &HostCache,
    device: &mut DeviceCache<M>,
    layer: usize,
    requests: impl Iterator<Item = NewTokens<'a>>,
    [act, kv]: [&M::Matrix; 2],
) -> Result<u64, OpsError> {
    let block_tokens = host.widths.block_tokens;
    // Rows of new tokens, with their rows on the device.
    let (mut act_rows, mut kv_rows) = (Vec::new(), Vec::new());
    let (mut bytes, mut first) = (0, 0);
    for NewTokens { table, places } in requests {
        let mut next = places.start;
        while next < places.end {
            let Some(block) = table.get(next / block_tokens).copied() else {
                break; // Nothing is cached.
            };
            let at = next % block_tokens;
            let count = (block_tokens - at).min(places.end - next);
            let from = first + next - places.start;
            let (matrix, rows) = match block.kind {
                Kind::Act => (act, &mut act_rows),
                Kind::Kv => (kv, &mut kv_rows),
            };
            match block.place {
                Place::Device => {
                    let to = device.first_row(block) + at;
                    rows.extend((0..count).map(|token| (from + token, to + token)));
                }
                Place::Host => {
                    let width = host.width(block.kind, layer);
                    let values = ops.values(matrix)?;
                    let rows = from * width..(from + count) * width;
                    host.write(layer, block, at, values.get(rows).unwrap_or_default());
                    bytes += (count * width * size_of::<f32>()) as u64;
                }
            }
            next += count;
        }
        first += places.len();
    }
    device.write(ops, layer, Kind::Act, act, &act_rows);
    device.write(ops, layer, Kind::Kv, kv, &kv_rows);
    Ok(bytes)
}

/// Copies the entries of a block in one layer.
///
/// # Errors
/// [`OpsError`] from the device.
pub(crate) fn copy_block<M: Ops>(
    ops: &M,
    host: &HostCache,
    device: &mut DeviceCache<M>,
    layer: usize,
    copy: &BlockCopy,
) -> Result<(), OpsError> {
    let BlockCopy { from, to, tokens } = *copy;
    let width = host.width(from.kind, layer);
    let entries = match from.place {
        Place::Device => {
            let Some((matrix, first)) = device.block(layer, from) else {
                return Ok(()); // The layer has no attention.
            };
            let span = Span {
                matrix,
                from: first,
                count: tokens,
            };
            ops.gather(&[span], width)
        }
        Place::Host => {
            let slice = BlockSlice {
                block: from,
                part: Segment::Target,
                from: 0,
                tokens,
                position: 0,
            };
            ops.upload(host.copy(layer, from.kind, &[slice], Vec::new()), width)
        }
    };
    match to.place {
        Place::Device => {
            let first = device.first_row(to);
            let rows: Vec<(usize, usize)> = (0..tokens).map(|token| (token, first + token)).collect();
            device.write(ops, layer, to.kind, &entries, &rows);
        }
        Place::Host => host.write(layer, to, 0, &ops.values(&entries)?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_shared_by_prompt_and_answer_is_split() {
        let block = |number| Block {
            kind: Kind::Kv,
            place: Place::Host,
            number,
        };
        let table = [block(7), block(3), block(5)];
        let of = |source, tokens| -> Vec<(usize, Segment, usize, usize, usize)> {
            let slices = slices(&table, 4, source, tokens);
            let figures = |slice: &BlockSlice| {
                let BlockSlice {
                    block,
                    part,
                    from,
                    tokens,
                    position,
                } = *slice;
                (block.number, part, from, tokens, position)
            };
            slices.iter().map(figures).collect()
        };
        assert_eq!(
            of(0, 5),
            [(7, Segment::Target, 0, 4, 0), (3, Segment::Target, 0, 1, 4)]
        );
        assert_eq!(
            of(5, 9),
            [
                (7, Segment::Source, 0, 4, 0),
                (3, Segment::Source, 0, 1, 4),
                (3, Segment::Target, 1, 3, 0),
                (5, Segment::Target, 0, 1, 3)
            ]
        );
        assert_eq!(
            of(4, 5),
            [(7, Segment::Source, 0, 4, 0), (3, Segment::Target, 0, 1, 0)]
        );
        assert_eq!(of(4, 0), []);
    }
}
