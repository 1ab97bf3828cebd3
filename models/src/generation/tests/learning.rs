//! Tests of engines with wrong sampled costs, which steps must correct.

use kaskade_policy::hybrid_cache::{BlockCounts, Capacity, Costs, Memory, Planned, Shares};
use kaskade_policy::linear_fit::LinearFit;

use super::{greedy, model_config};
use crate::generation::*;

/// Returns a plan for `blocks` blocks with costs of `compute` and `load` seconds per block.
pub(super) fn planned(blocks: usize, compute: f64, load: f64) -> Planned {
    let line = |slope| LinearFit {
        intercept: 0.0,
        slope,
        r2: 1.0,
    };
    let (act, kv) = (20, 48);
    Planned {
        memory: Memory {
            host_bytes: u64::MAX / 2,
            weight_bytes: 0,
            device_bytes: 0,
            kv_block_bytes: kv,
            act_block_bytes: act,
        },
        blocks,
        costs: Costs {
            load_weights_s: 0.0,
            kv_gen: line(compute),
            load_kv: line(load),
            load_act: line(load * act as f64 / kv as f64),
            forward: line(compute),
            head_s: compute,
        },
    }
}

/// Creates an engine with four requests of 40 tokens over a link of one megabyte per second, initially with keys and
/// values only.
fn engine(caching: Caching, mini_batches: bool) -> Engine<Cpu> {
    let decoder = Decoder::random(model_config(false, false, 4), 2, 3);
    let plenty = BlockCounts { act: 100, kv: 100 };
    let config = EngineConfig {
        caching,
        shares: Shares::device_first(0.0),
        block_tokens: 4,
        capacity: Capacity {
            device: BlockCounts::default(),
            host: plenty,
        },
        buffer: plenty,
        mini_batches,
        link: Some(1e6),
        // The plan wrongly states that computing is a thousand times slower than loading.
        planned: Some(planned(40, 1.0, 1e-3)),
        ..EngineConfig::resident(&decoder, 0)
    };
    let mut engine = Engine::new(Cpu, decoder, None, config).unwrap();
    for request in 0..4 {
        engine.submit(request, vec![7; 40], greedy(20)).unwrap();
    }
    engine
}

#[test]
fn a_link_slower_than_sampled_shifts_new_blocks_to_activations() {
    let mut engine = engine(Caching::Hybrid, true);
    let prefill = engine.step().unwrap();
    assert_eq!((prefill.prefilled, prefill.predicted_s), (4, None));
    let first = engine.step().unwrap();
    assert!(first.predicted_s.unwrap() > 40.0, "by the sampled costs");
    assert_eq!(first.traffic.act, 0);
    let mut last = first;
    while engine.counts().1 == 4 {
        let report = engine.step().unwrap();
        if report.events.iter().all(|event| event.finish_reason.is_none()) {
            last = report;
        }
    }
    assert!(engine.config().shares.act > 0.5);
    assert!(last.traffic.act > 0);
    // At least the time of the link, and below any plausible limit for the machine.
    let link_s = last.traffic.loaded() as f64 / 1e6;
    let predicted_s = last.predicted_s.unwrap();
    assert!(
        (0.9 * link_s..10.0).contains(&predicted_s),
        "{predicted_s} {link_s}"
    );
    assert!(last.load_s >= (1.0 - 1e-6) * link_s);
}

#[test]
fn a_fixed_cache_kind_and_a_planned_mixture_do_not_change() {
    for (caching, mini_batches) in [(Caching::Kv, true), (Caching::Hybrid, false)] {
        let mut engine = engine(caching, mini_batches);
        while !engine.is_idle() {
            let report = engine.step().unwrap();
            assert_eq!(report.traffic.act, 0);
        }
        assert!(engine.config().shares.act.abs() < 1e-12);
        assert!(engine.costs().unwrap().load_kv.slope > 0.0);
    }
}
