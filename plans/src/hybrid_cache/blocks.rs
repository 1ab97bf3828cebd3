//! The block space: which blocks of the cache are whose (HybridServe KAIST §4.2.1, §4.3.2).
//!
//! Every request has one table of logical blocks; an entry says of which kind the block is, where it lies and which physical block
//! it is. New blocks keep the request at the ratio of ACT to KV blocks that the allocation chose (equation 11). A pool that is
//! empty is made up for by another: a request that could run is worth more than the ratio.

use std::collections::BTreeMap;

use thiserror::Error;

use super::Mix;

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The inputs of every layer's projections.
    Act,
    /// Keys and values.
    Kv,
}

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// In the device's memory.
    Device,
    /// In the host's.
    Host,
}

/// An entry of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// What it holds.
    pub kind: Kind,
    /// Where it lies.
    pub place: Place,
    /// Its physical number among those of its kind and place.
    pub number: usize,
}

/// Physical blocks by place and kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// On the device.
    pub device: Mix,
    /// In the host's memory.
    pub host: Mix,
}

impl Capacity {
    /// All of them.
    pub fn total(self) -> usize {
        self.device.total() + self.host.total()
    }
}

/// There are not enough free blocks; nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{wanted} more cache blocks are wanted and {free} are free; requests must end or make room first")]
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
    held: Mix,
    /// Where in the ratio's rhythm it began, so that requests of one block each keep the ratio together.
    phase: f64,
}

/// Free numbers of one pool: those given back, and those never given out.
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
    /// Share of ACT blocks that every request keeps; absent: nothing is cached, and tables are empty.
    act_share: Option<f64>,
    pools: [Pool; 4],
    tables: BTreeMap<u64, Table>,
    begun: u64,
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
    /// A space of blocks of `block_tokens` tokens each (at least 1), all free. `act_share` is the share of ACT blocks that
    /// every request keeps.
    pub fn new(block_tokens: usize, capacity: Capacity, act_share: f64) -> Self {
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
            act_share: Some(act_share.clamp(0.0, 1.0)),
            pools: sizes.map(|size| Pool {
                returned: Vec::new(),
                fresh: 0..size,
            }),
            tables: BTreeMap::new(),
            begun: 0,
        }
    }

    /// A space for engines that cache nothing and compute every token again: no request ever takes a block.
    pub fn without_cache() -> Self {
        Self {
            act_share: None,
            ..Self::new(1, Capacity::default(), 0.0)
        }
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

    /// Blocks that so many tokens take.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        match self.act_share {
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
    pub fn held(&self, request: u64) -> Mix {
        self.tables
            .get(&request)
            .map_or(Mix::default(), |table| table.held)
    }

    /// Requests that hold blocks.
    pub fn holders(&self) -> usize {
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
            if let Some(block) = self.take(self.next_kind(&table)) {
                match block.kind {
                    Kind::Act => table.held.act += 1,
                    Kind::Kv => table.held.kv += 1,
                }
                table.blocks.push(block);
            }
        }
        self.tables.insert(request, table);
        Ok(())
    }

    /// Takes all of a request's blocks back; how many there were.
    pub fn release(&mut self, request: u64) -> usize {
        let Some(table) = self.tables.remove(&request) else {
            return 0;
        };
        let count = table.blocks.len();
        for block in table.blocks {
            self.pool(block.kind, block.place).returned.push(block.number);
        }
        count
    }

    fn begin(&mut self) -> Table {
        let phase = (self.begun as f64 * GOLDEN).fract();
        self.begun += 1;
        Table {
            blocks: Vec::new(),
            held: Mix::default(),
            phase,
        }
    }

    /// ACT if the request would otherwise have fewer than its share.
    fn next_kind(&self, table: &Table) -> Kind {
        let due = self.act_share.unwrap_or_default() * (table.blocks.len() + 1) as f64 + table.phase;
        if table.held.act < due.floor() as usize {
            Kind::Act
        } else {
            Kind::Kv
        }
    }

    /// A block of this kind, on the device if there is room; else one of the other kind.
    fn take(&mut self, kind: Kind) -> Option<Block> {
        let other = match kind {
            Kind::Act => Kind::Kv,
            Kind::Kv => Kind::Act,
        };
        [kind, other]
            .into_iter()
            .flat_map(|kind| [(kind, Place::Device), (kind, Place::Host)])
            .find_map(|(kind, place)| {
                let number = self.pool(kind, place).take()?;
                Some(Block { kind, place, number })
            })
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn space(device: Mix, host: Mix, act_share: f64) -> BlockSpace {
        BlockSpace::new(4, Capacity { device, host }, act_share)
    }

    const ROOMY: Mix = Mix { act: 500, kv: 500 };

    #[test]
    fn the_next_block_keeps_the_ratio() {
        // The paper's example: 3:1, five ACT and two KV blocks, the next is ACT.
        let mut space = space(Mix::default(), ROOMY, 0.75);
        space.reserve(0, 7 * 4).unwrap();
        assert_eq!(space.held(0), Mix { act: 5, kv: 2 });
        space.reserve(0, 8 * 4).unwrap();
        assert_eq!(space.held(0), Mix { act: 6, kv: 2 });
    }

    #[test]
    fn the_device_comes_first() {
        let mut space = space(Mix { act: 1, kv: 0 }, ROOMY, 1.0);
        space.reserve(7, 5).unwrap();
        assert_eq!(
            space.table(7).iter().map(|block| block.place).collect::<Vec<_>>(),
            [Place::Device, Place::Host]
        );
    }

    #[test]
    fn what_does_not_fit_takes_nothing() {
        let mut space = space(Mix::default(), Mix { act: 1, kv: 1 }, 0.5);
        assert_eq!(space.reserve(0, 9), Err(Full { wanted: 3, free: 2 }));
        assert_eq!((space.free(), space.holders()), (2, 0));
        space.reserve(0, 8).unwrap();
        assert_eq!(space.reserve(1, 1), Err(Full { wanted: 1, free: 0 }));
        assert_eq!(space.release(0), 2);
        assert_eq!(space.release(0), 0);
        assert_eq!(space.free(), 2);
    }

    #[test]
    fn without_a_cache_nothing_is_taken() {
        let mut space = BlockSpace::without_cache();
        space.reserve(0, 1_000_000).unwrap();
        assert_eq!((space.table(0).len(), space.lacking(0, 5)), (0, 0));
    }

    #[derive(Debug, Clone)]
    enum Act {
        Reserve(u64, usize),
        Release(u64),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            4 => (0..12_u64, 0..120_usize).prop_map(|(request, tokens)| Act::Reserve(request, tokens)),
            1 => (0..12_u64).prop_map(Act::Release),
        ];
        prop::collection::vec(act, 0..80)
    }

    proptest! {
        /// No block has two owners, none is lost, and all come back.
        #[test]
        fn blocks_are_conserved(acts in acts(), device in (0..9_usize, 0..9_usize), host in (0..40_usize, 0..40_usize), share in 0.0..=1.0) {
            let mix = |(act, kv)| Mix { act, kv };
            let mut space = space(mix(device), mix(host), share);
            let all = space.capacity().total();
            for act in acts {
                match act {
                    Act::Reserve(request, tokens) => {
                        let before = (space.free(), space.table(request).to_vec());
                        let fits = space.lacking(request, tokens) <= space.free();
                        prop_assert_eq!(space.reserve(request, tokens).is_ok(), fits);
                        if fits {
                            prop_assert!(space.table(request).len() >= space.blocks_for(tokens));
                            prop_assert!(space.table(request).starts_with(&before.1), "tables only grow");
                        } else {
                            prop_assert_eq!((space.free(), space.table(request).to_vec()), before);
                        }
                    }
                    Act::Release(request) => { space.release(request); }
                }
                let owned: Vec<Block> = (0..12).flat_map(|request| space.table(request).to_vec()).collect();
                prop_assert_eq!(owned.iter().collect::<BTreeSet<_>>().len(), owned.len());
                prop_assert_eq!(owned.len() + space.free(), all);
            }
            for request in 0..12 { space.release(request); }
            prop_assert_eq!((space.free(), space.holders()), (all, 0));
        }

        /// While no pool runs dry, every request keeps the ratio to within a block, and so do all together, however short.
        #[test]
        fn the_ratio_is_kept(lengths in prop::collection::vec(1..60_usize, 1..25), share in 0.0..=1.0) {
            let mut space = space(Mix::default(), ROOMY, share);
            for (request, tokens) in (0..).zip(&lengths) {
                // In two goes, as prompt and generated tokens.
                space.reserve(request, tokens.div_ceil(2)).unwrap();
                space.reserve(request, *tokens).unwrap();
                let held = space.held(request);
                let off = held.act as f64 - share * held.total() as f64;
                prop_assert!(off.abs() <= 1.0 + 1e-9, "{held:?} for {share}");
            }
            let all = (0..lengths.len() as u64).fold(Mix::default(), |sum, request| sum + space.held(request));
            let off = all.act as f64 - share * all.total() as f64;
            // Phases lie evenly, so that errors of many requests nearly cancel.
            prop_assert!(off.abs() <= 1.0 + (lengths.len() as f64).sqrt() * 1.5, "{all:?} for {share}");
        }
    }
}
