//! Allocation of cache blocks to requests (HybridServe KAIST §4.2.1, §4.3.2).
//!
//! Every request has one table of logical blocks; an entry holds the kind of the block, its location and its physical block.
//! New blocks keep the request at the ratio of ACT to KV blocks that the allocation chose (equation 11). If a pool is
//! empty, another supplies the block: running a request takes precedence over the ratio.
//!
//! Tables of a beam search share the blocks of what their answers have in common. A shared block is full, so that none of
//! its holders writes to it.

use std::collections::BTreeMap;

use thiserror::Error;

use super::BlockCounts;

/// Content of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The inputs of every layer's projections.
    Act,
    /// Keys and values.
    Kv,
}

impl Kind {
    /// Returns the counts of one block of this kind.
    fn one(self) -> BlockCounts {
        match self {
            Self::Act => BlockCounts { act: 1, kv: 0 },
            Self::Kv => BlockCounts { act: 0, kv: 1 },
        }
    }
}

/// Location of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The device's memory.
    Device,
    /// The host's memory.
    Host,
}

/// An entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Content of the block.
    pub kind: Kind,
    /// Location of the block.
    pub place: Place,
    /// Physical number of the block among those of the same kind and place.
    pub number: usize,
}

/// Physical blocks by place and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Blocks on the device.
    pub device: BlockCounts,
    /// Blocks in the host's memory.
    pub host: BlockCounts,
}

impl Capacity {
    /// Returns the number of all blocks.
    pub fn total(self) -> usize {
        self.device.total() + self.host.total()
    }

    /// Counts these blocks.
    pub fn of(blocks: impl Iterator<Item = Block>) -> Self {
        blocks.fold(Self::default(), |mut sum, block| {
            let place = match block.place {
                Place::Device => &mut sum.device,
                Place::Host => &mut sum.host,
            };
            *place = *place + block.kind.one();
            sum
        })
    }
}

/// Shares that every request keeps to as its blocks come (equation 11), in [0, 1].
///
/// Blocks that were filled in from the device first would give the first requests no work for the link and the last ones nothing
/// else. So the device's blocks are shared out as the kinds are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shares {
    /// ACT blocks among all.
    pub act: f64,
    /// Share of the ACT blocks that are on the device.
    pub act_on_device: f64,
    /// Share of the KV blocks that are on the device.
    pub kv_on_device: f64,
}

impl Shares {
    /// This share of ACT blocks, and the device before the host.
    pub fn device_first(act: f64) -> Self {
        Self {
            act,
            act_on_device: 1.0,
            kv_on_device: 1.0,
        }
    }
}

/// There are not enough free blocks; nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("out of cache blocks: {wanted} needed, {free} free")]
pub struct Full {
    /// Blocks wanted.
    pub wanted: usize,
    /// Blocks free.
    pub free: usize,
}

/// A request's blocks.
#[derive(Debug, Clone, PartialEq)]
struct Table {
    blocks: Vec<Block>,
    held: BlockCounts,
    /// Blocks that are on the device.
    on_device: BlockCounts,
    /// Phase in the ratio's period at which the request began, so that requests of one block each keep the ratio together.
    phase: f64,
}

impl Table {
    fn push(&mut self, block: Block) {
        let one = block.kind.one();
        self.held = self.held + one;
        if block.place == Place::Device {
            self.on_device = self.on_device + one;
        }
        self.blocks.push(block);
    }
}

/// Returns whether the next of `all` and one more belongs to a share that has `have` of them so far.
fn is_due(share: f64, have: usize, all: usize, phase: f64) -> bool {
    // A share of 1 is due from the beginning, however the phase rounds.
    let due = share.clamp(0.0, 1.0) * (all + 1) as f64 + phase;
    (have as f64) < (due + 1e-9).floor()
}

/// Free numbers of one pool: returned numbers, and those that were never taken.
#[derive(Debug, Clone)]
struct Pool {
    returned: Vec<usize>,
    fresh: std::ops::Range<usize>,
}

impl Pool {
    fn free(&self) -> usize {
        self.returned.len() + self.fresh.len()
    }

    fn take(&mut self) -> Option<usize> {
        self.returned.pop().or_else(|| self.fresh.next())
    }
}

/// All blocks and all tables.
#[derive(Debug, Clone)]
pub struct BlockSpace {
    block_tokens: usize,
    capacity: Capacity,
    /// Shares that every request keeps; `None`: nothing is cached, and tables are empty.
    shares: Option<Shares>,
    pools: [Pool; 4],
    tables: BTreeMap<u64, Table>,
    /// Blocks of several tables, with the number of tables beyond the first.
    shared: BTreeMap<Block, usize>,
    begun: u64,
}

/// A block whose content a new table needs in a block of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The block to read.
    pub from: Block,
    /// The block to write, of the same kind.
    pub to: Block,
    /// Tokens to copy, the first of the block.
    pub tokens: usize,
}

/// The golden ratio's fraction: its multiples spread evenly over [0, 1) however many there are.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

const POOLS: [(Kind, Place); 4] = [
    (Kind::Act, Place::Device),
    (Kind::Kv, Place::Device),
    (Kind::Act, Place::Host),
    (Kind::Kv, Place::Host),
];

impl BlockSpace {
    /// A space of blocks of `block_tokens` tokens each (at least 1), all free, of which every request keeps
    /// these shares.
    pub fn new(block_tokens: usize, capacity: Capacity, shares: Shares) -> Self {
        let sizes = POOLS.map(|(kind, place)| {
            let mix = match place {
                Place::Device => capacity.device,
                Place::Host => capacity.host,
            };
            match kind {
                Kind::Act => mix.act,
                Kind::Kv => mix.kv,
            }
        });
        Self {
            block_tokens: block_tokens.max(1),
            capacity,
            shares: Some(shares),
            pools: sizes.map(|size| Pool {
                returned: Vec::new(),
                fresh: 0..size,
            }),
            tables: BTreeMap::new(),
            shared: BTreeMap::new(),
            begun: 0,
        }
    }

    /// A space for engines that cache nothing and compute every token again: no request ever takes a block.
    pub fn without_cache() -> Self {
        Self {
            shares: None,
            ..Self::new(1, Capacity::default(), Shares::device_first(0.0))
        }
    }

    /// Changes what requests keep to as further blocks come; those that they have stay as they are.
    pub fn keep(&mut self, shares: Shares) {
        self.shares = self.shares.and(Some(shares));
    }

    /// Tokens in a block.
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// All physical blocks, free or not.
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Free blocks.
    pub fn free(&self) -> usize {
        self.pools.iter().map(Pool::free).sum()
    }

    /// Blocks that this many tokens take.
    pub(crate) fn blocks_for(&self, tokens: usize) -> usize {
        match self.shares {
            Some(_) => tokens.div_ceil(self.block_tokens),
            None => 0,
        }
    }

    /// Blocks that a request lacks to hold `tokens` tokens.
    pub fn lacking(&self, request: u64, tokens: usize) -> usize {
        let held = self.table(request).len();
        self.blocks_for(tokens).saturating_sub(held)
    }

    /// A request's blocks in the order of its tokens; empty for one that has none.
    pub fn table(&self, request: u64) -> &[Block] {
        self.tables.get(&request).map_or(&[], |table| &table.blocks)
    }

    /// A request's blocks by kind.
    pub fn held(&self, request: u64) -> BlockCounts {
        self.tables
            .get(&request)
            .map_or(BlockCounts::default(), |table| table.held)
    }

    /// Requests that hold blocks.
    #[cfg(test)]
    pub(crate) fn holders(&self) -> usize {
        self.tables.len()
    }

    /// Gives a request the blocks that it lacks to hold `tokens` tokens.
    ///
    /// # Errors
    /// [`Full`] if there are not enough; then it gets none.
    pub fn reserve(&mut self, request: u64, tokens: usize) -> Result<(), Full> {
        let wanted = self.lacking(request, tokens);
        if wanted == 0 {
            return Ok(());
        }
        let free = self.free();
        if wanted > free {
            return Err(Full { wanted, free });
        }
        let mut table = self.tables.remove(&request).unwrap_or_else(|| self.begin());
        for _ in 0..wanted {
            let kind = self.next_kind(&table);
            if let Some(block) = self.take(kind, &table) {
                table.push(block);
            }
        }
        self.tables.insert(request, table);
        Ok(())
    }

    /// Takes all of a request's blocks back, but those that other tables share; how many its table had.
    pub fn release(&mut self, request: u64) -> usize {
        let Some(table) = self.tables.remove(&request) else {
            return 0;
        };
        let count = table.blocks.len();
        for block in table.blocks {
            match self.shared.get_mut(&block) {
                Some(others) if *others > 1 => *others -= 1,
                Some(_) => {
                    self.shared.remove(&block);
                }
                None => self.pool(block.kind, block.place).returned.push(block.number),
            }
        }
        count
    }

    /// Gives the table of `from` to `to`, which has none.
    pub fn rename(&mut self, from: u64, to: u64) {
        if let Some(table) = self.tables.remove(&from) {
            self.tables.insert(to, table);
        }
    }

    /// Gives `to`, which has no blocks, a table for the first `tokens` tokens of `from`. It shares the blocks that these
    /// tokens fill. A last block that they do not fill is another one of the same kind; the copy that it needs is
    /// returned.
    ///
    /// # Errors
    /// [`Full`] if no block of that kind is free; then `to` gets none.
    pub fn fork(&mut self, from: u64, to: u64, tokens: usize) -> Result<Option<BlockCopy>, Full> {
        let Some(source) = self.tables.get(&from) else {
            return Ok(None);
        };
        let (full, rest) = (tokens / self.block_tokens, tokens % self.block_tokens);
        let shared = source.blocks.get(..full).unwrap_or(&source.blocks).to_vec();
        let partial = source.blocks.get(full).copied().filter(|_| rest > 0);
        let copy = partial.map(|from| {
            let to = self.take_of_kind(from);
            to.map(|to| BlockCopy {
                from,
                to,
                tokens: rest,
            })
        });
        let Some(copy) = copy.map_or(Some(None), |copy| copy.map(Some)) else {
            return Err(Full { wanted: 1, free: 0 });
        };
        let mut table = self.begin();
        for block in shared {
            *self.shared.entry(block).or_default() += 1;
            table.push(block);
        }
        if let Some(copy) = copy {
            table.push(copy.to);
        }
        self.tables.insert(to, table);
        Ok(copy)
    }

    fn begin(&mut self) -> Table {
        let phase = (self.begun as f64 * GOLDEN).fract();
        self.begun += 1;
        Table {
            blocks: Vec::new(),
            held: BlockCounts::default(),
            on_device: BlockCounts::default(),
            phase,
        }
    }

    /// ACT if the request would otherwise have fewer than its share.
    fn next_kind(&self, table: &Table) -> Kind {
        let share = self.shares.map_or(0.0, |shares| shares.act);
        if is_due(share, table.held.act, table.blocks.len(), table.phase) {
            Kind::Act
        } else {
            Kind::Kv
        }
    }

    /// A block of this kind, in the place whose turn it is if there is room; else in the other place, else of the other kind.
    fn take(&mut self, kind: Kind, table: &Table) -> Option<Block> {
        let other = match kind {
            Kind::Act => Kind::Kv,
            Kind::Kv => Kind::Act,
        };
        let places = [kind, other].map(|kind| self.places(kind, table).map(|place| (kind, place)));
        places.into_iter().flatten().find_map(|(kind, place)| {
            let number = self.pool(kind, place).take()?;
            Some(Block { kind, place, number })
        })
    }

    /// A block of the kind of `like`, in its place if there is room, else in the other.
    fn take_of_kind(&mut self, like: Block) -> Option<Block> {
        let other = match like.place {
            Place::Device => Place::Host,
            Place::Host => Place::Device,
        };
        [like.place, other].into_iter().find_map(|place| {
            let number = self.pool(like.kind, place).take()?;
            Some(Block {
                place,
                number,
                ..like
            })
        })
    }

    /// Returns the preferred place of the next block of a kind, and the other one.
    fn places(&self, kind: Kind, table: &Table) -> [Place; 2] {
        let (share, on_device, held) = match (kind, self.shares) {
            (_, None) => (0.0, 0, 0),
            (Kind::Act, Some(shares)) => (shares.act_on_device, table.on_device.act, table.held.act),
            (Kind::Kv, Some(shares)) => (shares.kv_on_device, table.on_device.kv, table.held.kv),
        };
        if is_due(share, on_device, held, table.phase) {
            [Place::Device, Place::Host]
        } else {
            [Place::Host, Place::Device]
        }
    }

    fn pool(&mut self, kind: Kind, place: Place) -> &mut Pool {
        let [device_act, device_kv, host_act, host_kv] = &mut self.pools;
        match (kind, place) {
            (Kind::Act, Place::Device) => device_act,
            (Kind::Kv, Place::Device) => device_kv,
            (Kind::Act, Place::Host) => host_act,
            (Kind::Kv, Place::Host) => host_kv,
        }
    }
}

#[cfg(test)]
mod tests;
