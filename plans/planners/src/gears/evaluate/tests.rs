use super::*;
use crate::device::DeviceSpec;
use kaskade_policy::plan::{Batching, Edge, Exit, PlannedVariant, Replica, Sharing, Stage, Wiring};
use kaskade_stated::workloads::llama;

/// One variant on one device, in batches of one.
fn alone(variant: &str) -> Plan {
    let batching = Batching {
        min_queue: 1,
        max_batch: 1,
        max_wait_us: 0,
    };
    Plan {
        sharing: Sharing::Exclusive,
        ..Plan::one_gear(
            "llama",
            vec![PlannedVariant {
                name: variant.into(),
                calibration: None,
            }],
            vec![Replica::whole("r", variant, "w0", "cuda:0")],
            Wiring {
                entry: Edge::to(variant),
                ensemble: vec![],
                stages: vec![Stage::new(variant, variant, Exit::Reply, batching)],
            },
        )
    }
}

fn simulated(slo: Slo, speed: f64) -> Simulated {
    let mut devices = DeviceSpec::fleet(1, 1);
    devices[0].speed = speed;
    Simulated::new(&llama().profile(), &GearOptions::new(slo, 1.0, devices))
}

const LOOSE: Slo = Slo::Latency { p95_us: 1_000_000 };

#[test]
fn a_light_load_takes_a_batch_and_two_hops() {
    // 24 ms for one request of the smallest model, and 100 us each way.
    let outcome = simulated(LOOSE, 1.0).gear(&alone("llama-3b"), 0.5).unwrap();
    assert!((24_000..24_900).contains(&outcome.p95_us), "{outcome:?}");
    assert!(outcome.keeps_up && outcome.utilisation < 0.02);
    let faster = simulated(LOOSE, 2.0).gear(&alone("llama-3b"), 0.5).unwrap();
    assert!((12_000..12_600).contains(&faster.p95_us), "{faster:?}");
}

#[test]
fn messages_take_as_long_as_at_the_rate_of_the_load() {
    let row = |qps, factor| kaskade_policy::profile::HopAtRate {
        qps,
        factor,
        quantiles: None,
    };
    let mut options = GearOptions::new(LOOSE, 1.0, DeviceSpec::fleet(1, 1));
    options.hop_us = 1_000;
    options.hop_by_rate = vec![row(1.0, 5.0), row(20.0, 1.0)];
    let simulated = Simulated::new(&llama().profile(), &options);
    let least = |qps: u64| {
        let simulator = Simulator::new(&alone("llama-3b"), &simulated.profile, &simulated.config).unwrap();
        let report = simulator.run((0..2_000).map(|n| n * 1_000_000 / qps), &mut ());
        report.latency.quantile(0.5).unwrap()
    };
    // 24 ms for the model, and two messages.
    assert!((33_500..34_500).contains(&least(1)), "{}", least(1));
    assert!((25_500..26_500).contains(&least(20)), "{}", least(20));
    assert!((options.least_hop_us() - 1_000.0).abs() < 1e-9);
}

#[test]
fn the_backlog_grows_beyond_the_capacity_and_not_below() {
    // 41.7 requests/s is what 24 ms each allow.
    for slo in [LOOSE, Slo::Accuracy { at_least: 0.0 }] {
        for (qps, keeps_up) in [(25.0, true), (36.0, true), (45.0, false), (80.0, false)] {
            let outcome = simulated(slo, 1.0).gear(&alone("llama-3b"), qps).unwrap();
            assert_eq!(outcome.keeps_up, keeps_up, "{qps} {outcome:?}");
        }
    }
}

#[test]
fn queueing_is_as_the_theory_has_it() {
    // M/D/1 at utilisation 0.6: mean wait is 0.6 / (2 * 0.4) of a service.
    let simulated = simulated(Slo::Accuracy { at_least: 0.0 }, 1.0);
    let simulator = Simulator::new(&alone("llama-3b"), &simulated.profile, &simulated.config).unwrap();
    let report = simulator.run(poisson(25.0, 4_000_000_000, 3), &mut ());
    let mean_ms = report.latency.mean().unwrap() / 1e3;
    assert!((mean_ms - (24.2 + 24.0 * 0.75)).abs() < 1.0, "{mean_ms}");
}

#[test]
fn the_same_gear_fares_the_same() {
    let gear = || simulated(LOOSE, 1.0).gear(&alone("llama-7b"), 20.0).unwrap();
    assert_eq!(gear(), gear());
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let error = simulated(LOOSE, 1.0).gear(&alone("gpt"), 1.0).unwrap_err();
    assert!(error.contains("gpt"), "{error}");
}
