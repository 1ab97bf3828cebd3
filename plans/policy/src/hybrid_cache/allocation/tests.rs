use proptest::prelude::*;

use super::*;
use crate::linear_fit::LinearFit;

fn line(intercept: f64, slope: f64) -> LinearFit {
    LinearFit {
        intercept,
        slope,
        r2: 1.0,
    }
}

fn costs(load_weights_s: f64, kv_gen: f64, load_kv: f64) -> Costs {
    Costs {
        load_weights_s,
        kv_gen: line(0.0, kv_gen),
        load_kv: line(0.0, load_kv),
        load_act: line(0.0, load_kv / 2.0),
        forward: line(0.0, 0.0),
        head_s: 0.0,
    }
}

const MEMORY: Memory = Memory {
    host_bytes: 1_000,
    weight_bytes: 200,
    device_bytes: 20,
    kv_block_bytes: 2,
    act_block_bytes: 1,
};

#[test]
fn weights_that_load_long_are_filled_with_act_blocks() {
    let given = allocate(&MEMORY, 20, &costs(50.0, 1.0, 2.0));
    assert_eq!(given.initial, BlockCounts { act: 30, kv: 0 });
    // 770 bytes: a + 2k = 770 and a = 2k.
    assert_eq!(given.remaining, BlockCounts { act: 385, kv: 192 });
}

#[test]
fn a_device_that_computes_long_is_filled_with_kv_blocks() {
    let given = allocate(&MEMORY, 20, &costs(5.0, 1.0, 3.0));
    assert_eq!(given.initial, BlockCounts { act: 0, kv: 5 });
}

#[test]
fn the_initial_blocks_never_exceed_the_memory() {
    let given = allocate(&MEMORY, 0, &costs(1e9, 1.0, 3.0));
    assert_eq!(given.host(), BlockCounts { act: 800, kv: 0 });
}

#[test]
fn the_ratio_follows_the_costs() {
    let given = allocate(&MEMORY, 0, &costs(0.0, 1.0, 1.0)).host();
    assert_eq!(given, BlockCounts { act: 266, kv: 267 });
    let free_link = allocate(&MEMORY, 0, &costs(0.0, 1.0, 0.0)).host();
    assert_eq!(free_link, BlockCounts { act: 0, kv: 400 });
    let free_device = allocate(&MEMORY, 0, &costs(0.0, 0.0, 1.0)).host();
    assert_eq!(free_device, BlockCounts { act: 800, kv: 0 });
}

#[test]
fn a_load_that_fits_nowhere_has_no_split() {
    assert_eq!(split(10_000, &MEMORY, &costs(1.0, 1.0, 1.0)), None);
    // As KV blocks these would not fit; as ACT blocks they do.
    let tight = split(600, &MEMORY, &costs(0.0, 1.0, 0.0)).unwrap();
    assert!(tight.device.act + tight.host.act >= 380);
}

#[test]
fn the_ends_are_found_where_they_are_best() {
    let fast_link = split(100, &MEMORY, &costs(0.0, 1.0, 1e-6)).unwrap();
    assert!(fast_link.shares().act < 1e-3);
    let fast_device = split(100, &MEMORY, &costs(0.0, 1e-6, 1.0)).unwrap();
    assert!((fast_device.shares().act - 1.0).abs() < 1e-9);
}

proptest! {
    #[test]
    fn algorithm_1_fits_and_balances(
        weights in 0.0..100.0_f64,
        gen_s in 0.01..10.0_f64,
        load in 0.01..10.0_f64,
        device in 0..500_usize,
        host in 300..100_000_u64,
        act_bytes in 1..8_u64,
    ) {
        let memory = Memory { host_bytes: host, act_block_bytes: act_bytes, kv_block_bytes: 2 * act_bytes, ..MEMORY };
        let costs = costs(weights, gen_s, load);
        let given = allocate(&memory, device, &costs);
        let bytes = given.host().act as u64 * act_bytes + given.host().kv as u64 * 2 * act_bytes;
        prop_assert!(bytes <= memory.host_blocks_bytes());
        prop_assert!(bytes + 2 * act_bytes > memory.host_blocks_bytes(), "less than a block is left over");
        // T_kv_gen(a) = T_load_kv(k), to a block of either kind, and one that the rounding moved.
        let off = (given.remaining.act as f64 * gen_s - given.remaining.kv as f64 * load).abs();
        prop_assert!(off <= gen_s + 2.0 * load, "{given:?}: {off}");
    }

    /// No mixture is better, the two ends included.
    #[test]
    fn no_end_beats_the_split(
        weights in 0.0..20.0_f64,
        gen_s in 0.0..4.0_f64,
        load in 0.0..4.0_f64,
        forward in 0.0..2.0_f64,
        blocks in 1..300_usize,
        acts in 0..300_usize,
        device in 0..400_u64,
    ) {
        let memory = Memory { device_bytes: device, ..MEMORY };
        let costs = Costs { forward: line(1.0, forward), ..costs(weights, gen_s, load) };
        let best = split(blocks, &memory, &costs).unwrap();
        prop_assert_eq!((best.device + best.host).total(), blocks);
        prop_assert!(best.device.act as u64 + 2 * best.device.kv as u64 <= device);
        let (shares, act) = (best.shares(), best.device.act + best.host.act);
        let part = |of: usize, share: f64| (of as f64 * share).round() as usize;
        prop_assert_eq!(part(blocks, shares.act), act);
        prop_assert_eq!(part(act, shares.act_on_device), best.device.act);
        prop_assert_eq!(part(blocks - act, shares.kv_on_device), best.device.kv);
        for acts in [0, blocks, acts.min(blocks)] {
            let other = split_of(acts, blocks, &memory, &costs).unwrap();
            prop_assert!(best.layer_s() <= other.layer_s());
        }
    }
}
