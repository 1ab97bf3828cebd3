use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn space(device: BlockCounts, host: BlockCounts, act_share: f64) -> BlockSpace {
    BlockSpace::new(4, Capacity { device, host }, Shares::device_first(act_share))
}

const ROOMY: BlockCounts = BlockCounts { act: 500, kv: 500 };

#[test]
fn the_next_block_keeps_the_ratio() {
    // The paper's example: 3:1, five ACT and two KV blocks, the next is ACT.
    let mut space = space(BlockCounts::default(), ROOMY, 0.75);
    space.reserve(0, 7 * 4).unwrap();
    assert_eq!(space.held(0), BlockCounts { act: 5, kv: 2 });
    space.reserve(0, 8 * 4).unwrap();
    assert_eq!(space.held(0), BlockCounts { act: 6, kv: 2 });
}

#[test]
fn the_device_comes_first() {
    let mut space = space(BlockCounts { act: 1, kv: 0 }, ROOMY, 1.0);
    space.reserve(7, 5).unwrap();
    assert_eq!(
        space.table(7).iter().map(|block| block.place).collect::<Vec<_>>(),
        [Place::Device, Place::Host]
    );
}

#[test]
fn the_device_is_shared_out_where_its_share_is_stated() {
    let shares = Shares {
        act: 0.5,
        act_on_device: 0.5,
        kv_on_device: 0.0,
    };
    let device = BlockCounts { act: 100, kv: 100 };
    let mut space = BlockSpace::new(4, Capacity { device, host: ROOMY }, shares);
    for request in 0..10 {
        space.reserve(request, 8 * 4).unwrap();
        let on_device = space
            .table(request)
            .iter()
            .filter(|block| block.place == Place::Device);
        let kinds: Vec<Kind> = on_device.map(|block| block.kind).collect();
        assert!(
            (1..=3).contains(&kinds.len()) && !kinds.contains(&Kind::Kv),
            "{kinds:?}"
        );
    }
    // What the host has no room for goes to the device all the same.
    space.reserve(99, 1_000 * 4).unwrap();
    assert!(
        space
            .table(99)
            .iter()
            .any(|block| block.place == Place::Device && block.kind == Kind::Kv)
    );
}

#[test]
fn further_blocks_bring_a_request_to_a_new_ratio() {
    let mut space = space(BlockCounts::default(), ROOMY, 0.0);
    space.reserve(0, 8 * 4).unwrap();
    space.keep(Shares::device_first(0.5));
    space.reserve(0, 12 * 4).unwrap();
    assert_eq!(
        space.held(0),
        BlockCounts { act: 4, kv: 8 },
        "all that came is ACT"
    );
    space.reserve(0, 20 * 4).unwrap();
    assert_eq!(space.held(0), BlockCounts { act: 10, kv: 10 });
    let mut none = BlockSpace::without_cache();
    none.keep(Shares::device_first(0.5));
    none.reserve(0, 100).unwrap();
    assert_eq!(none.table(0).len(), 0);
}

#[test]
fn what_does_not_fit_takes_nothing() {
    let mut space = space(BlockCounts::default(), BlockCounts { act: 1, kv: 1 }, 0.5);
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
    /// From, to, and the tokens that they share.
    Fork(u64, u64, usize),
    Rename(u64, u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..12_u64, 0..120_usize).prop_map(|(request, tokens)| Act::Reserve(request, tokens)),
        1 => (0..12_u64).prop_map(Act::Release),
        2 => (0..12_u64, 0..12_u64, 0..120_usize).prop_map(|(from, to, tokens)| Act::Fork(from, to, tokens)),
        1 => (0..12_u64, 0..12_u64).prop_map(|(from, to)| Act::Rename(from, to)),
    ];
    prop::collection::vec(act, 0..80)
}

proptest! {
    /// Only blocks that a fork shares have several owners, none is lost, and all come back.
    #[test]
    fn blocks_are_conserved(acts in acts(), device in (0..9_usize, 0..9_usize), host in (0..40_usize, 0..40_usize), share in 0.0..=1.0) {
        let mix = |(act, kv)| BlockCounts { act, kv };
        let mut space = space(mix(device), mix(host), share);
        let all = space.capacity().total();
        // Tokens of each table; as many of its blocks as forks may share.
        let mut shared: BTreeSet<Block> = BTreeSet::new();
        for act in acts {
            match act {
                Act::Fork(from, to, tokens) => {
                    if from == to || !space.table(to).is_empty() { continue; }
                    let (full, rest) = (tokens / 4, tokens % 4);
                    let source = space.table(from).to_vec();
                    let free = space.free();
                    let Ok(copy) = space.fork(from, to, tokens) else {
                        prop_assert_eq!((space.free(), space.table(to).len()), (free, 0));
                        continue;
                    };
                    let table = space.table(to);
                    let common = &source[..full.min(source.len())];
                    prop_assert!(table.starts_with(common));
                    shared.extend(common);
                    prop_assert_eq!(copy.is_some(), rest > 0 && full < source.len());
                    prop_assert_eq!(table.len(), common.len() + usize::from(copy.is_some()));
                    if let Some(copy) = copy {
                        prop_assert_eq!((copy.from, Some(&copy.to), copy.tokens), (source[full], table.last(), rest));
                        prop_assert!(copy.from.kind == copy.to.kind && copy.from != copy.to);
                    }
                }
                Act::Rename(from, to) => {
                    if from != to && space.table(to).is_empty() {
                        let table = space.table(from).to_vec();
                        space.rename(from, to);
                        prop_assert_eq!((space.table(from).len(), space.table(to)), (0, &table[..]));
                    }
                }
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
            let distinct: BTreeSet<Block> = owned.iter().copied().collect();
            let several = distinct.iter().filter(|block| owned.iter().filter(|other| other == block).count() > 1);
            for block in several {
                prop_assert!(shared.contains(block), "{block:?} has two owners without a fork");
            }
            prop_assert_eq!(distinct.len() + space.free(), all);
            shared.retain(|block| distinct.contains(block));
        }
        for request in 0..12 { space.release(request); }
        prop_assert_eq!((space.free(), space.holders()), (all, 0));
    }

    /// While no pool runs dry, every request keeps the ratio to within a block, and so do all together, however short.
    #[test]
    fn the_ratio_is_kept(lengths in prop::collection::vec(1..60_usize, 1..25), share in 0.0..=1.0) {
        let mut space = space(BlockCounts::default(), ROOMY, share);
        for (request, tokens) in (0..).zip(&lengths) {
            // In two goes, as prompt and generated tokens.
            space.reserve(request, tokens.div_ceil(2)).unwrap();
            space.reserve(request, *tokens).unwrap();
            let held = space.held(request);
            let off = held.act as f64 - share * held.total() as f64;
            prop_assert!(off.abs() <= 1.0 + 1e-9, "{held:?} for {share}");
        }
        let all = (0..lengths.len() as u64).fold(BlockCounts::default(), |sum, request| sum + space.held(request));
        let off = all.act as f64 - share * all.total() as f64;
        // Phases lie evenly, so that errors of many requests nearly cancel.
        prop_assert!(off.abs() <= 1.0 + (lengths.len() as f64).sqrt() * 1.5, "{all:?} for {share}");
    }
}
