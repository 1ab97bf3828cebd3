//! Compares simulated waiting times with those of queueing theory.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;
use kaskade_policy::profile::LatencyQuantiles;

const SERVICE_US: u64 = 1_000;

fn single(sharing: Sharing) -> (Plan, Profile) {
    let alone = Batching {
        min_queue: 1,
        max_batch: 1,
        max_wait_us: 0,
    };
    let gear = gear(0.0, None, vec![stage("s", Exit::Reply, alone)]);
    let profile = profile(vec![variant("s", SERVICE_US, 0, &[(1, 0.9, true)])]);
    (plan(&["s-0@a"], sharing, vec![gear]), profile)
}

/// Arrivals of a Poisson process, microseconds.
fn poisson(rate: f64, count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut at = 0.0;
    (0..count).map(move |_| {
        at -= (1.0 - rng.random::<f64>()).ln() / rate * 1e6;
        at as u64
    })
}

/// Pollaczek and Khinchine: with service time `s` and utilisation `u`, one waits `u s / 2 (1 - u)` on average.
#[test]
fn one_server_with_random_arrivals_keeps_its_clients_waiting_as_theory_says() {
    for sharing in [Sharing::Concurrent, Sharing::Exclusive] {
        let (plan, profile) = single(sharing);
        for utilisation in [0.3, 0.6, 0.8] {
            let arrivals = poisson(utilisation / SERVICE_US as f64 * 1e6, 400_000, 3);
            let (report, _) = simulate(&plan, &profile, &SimConfig::default(), arrivals);
            let waited = report.latency.mean().unwrap() - SERVICE_US as f64;
            let theory = utilisation * SERVICE_US as f64 / (2.0 * (1.0 - utilisation));
            assert!(
                (waited / theory - 1.0).abs() < 0.04,
                "{utilisation}: {waited} for {theory}"
            );
            assert!((report.max_utilisation() - utilisation).abs() < 0.01);
        }
    }
}

#[test]
fn run_times_are_drawn_from_the_quantiles_of_the_profile() {
    let (plan, mut profile) = single(Sharing::Exclusive);
    let quantiles = LatencyQuantiles {
        p10: 0.8,
        p90: 1.5,
        p95: 2.0,
        p99: 4.0,
    };
    for cost in &mut profile.variants[0].costs {
        cost.quantiles = Some(quantiles);
    }
    // Far apart, so that no request waits.
    let arrivals = (0..20_000).map(|request| request * 100 * SERVICE_US);
    let (report, _) = simulate(&plan, &profile, &SimConfig::default(), arrivals);
    for (share, multiple) in [(0.5, 1.0), (0.9, 1.5), (0.95, 2.0), (0.99, 4.0)] {
        let found = report.latency.quantile(share).unwrap() as f64 / SERVICE_US as f64;
        assert!((found / multiple - 1.0).abs() < 0.1, "{share}: {found}");
    }
}

#[test]
fn hops_are_drawn_from_the_quantiles_of_the_profile() {
    let (plan, profile) = single(Sharing::Exclusive);
    let quantiles = LatencyQuantiles {
        p10: 0.5,
        p90: 2.0,
        p95: 4.0,
        p99: 10.0,
    };
    let config = SimConfig {
        entry_hop_us: 2_000,
        hop_quantiles: Some(quantiles),
        ..SimConfig::default()
    };
    // Far apart, so that no request waits.
    let arrivals = || (0..20_000).map(|request| request * (100 * SERVICE_US + 100_000));
    let (report, _) = simulate(&plan, &profile, &config, arrivals());
    // Two draws of 1 ms: the mean of the piecewise linear quantiles is that of their integral.
    let knots = [
        (0.0, 0.5),
        (0.1, 0.5),
        (0.5, 1.0),
        (0.9, 2.0),
        (0.95, 4.0),
        (0.99, 10.0),
        (1.0, 10.0),
    ];
    let mean: f64 = knots
        .windows(2)
        .map(|ends| (ends[1].0 - ends[0].0) * f64::midpoint(ends[0].1, ends[1].1))
        .sum();
    let hops = report.latency.mean().unwrap() - SERVICE_US as f64;
    assert!(
        (hops / (2_000.0 * mean) - 1.0).abs() < 0.02,
        "{hops}, expected {}",
        2_000.0 * mean
    );
    let most = report.latency.max().unwrap() - SERVICE_US;
    assert!((15_000..=20_000).contains(&most), "{most}");
    // The same seed gives the same hops, another seed others.
    let again = simulate(&plan, &profile, &config, arrivals()).0;
    assert_eq!(again.latency.mean(), report.latency.mean());
    let other = SimConfig { seed: 1, ..config };
    assert_ne!(
        simulate(&plan, &profile, &other, arrivals()).0.latency.mean(),
        report.latency.mean()
    );
}

#[test]
fn regular_arrivals_do_not_wait_below_capacity_and_pile_up_above() {
    let (plan, profile) = single(Sharing::Exclusive);
    let (report, _) = simulate(
        &plan,
        &profile,
        &SimConfig::default(),
        (0..1_000).map(|n| n * SERVICE_US),
    );
    assert_eq!(report.latency.max(), Some(SERVICE_US));
    assert_eq!((report.max_queue, report.max_in_flight), (1, 1));
    assert!((report.max_utilisation() - 1.0).abs() < 1e-9);
    // Twice as many as it can serve: request n waits for n more half services.
    let (report, seen) = simulate(
        &plan,
        &profile,
        &SimConfig::default(),
        (0..1_000).map(|n| n * SERVICE_US / 2),
    );
    assert!(
        (0..1_000)
            .zip(&seen.answered)
            .all(|(n, answered)| answered.latency_us == SERVICE_US + n * SERVICE_US / 2)
    );
    assert_eq!(report.max_in_flight, report.max_places);
    assert!((report.answered as f64 / report.duration_us as f64 * 1e6 - 1_000.0).abs() < 1.0);
}

#[test]
fn a_long_run_needs_no_more_memory_than_a_short_one() {
    let (plan, profile) = single(Sharing::Exclusive);
    let places = |count| {
        let (report, _) = simulate(&plan, &profile, &SimConfig::default(), poisson(500.0, count, 5));
        assert_eq!(report.max_places, report.max_in_flight);
        report.max_places
    };
    assert!(places(200_000) <= 2 * places(20_000));
}

#[test]
fn shares_divide_the_load_and_a_queue_group_divides_it_evenly() {
    let (_, profile) = single(Sharing::Concurrent);
    let replicas = ["s-0@a", "s-1@b", "s-2@c", "s-3@d"];
    let mut gear = gear(0.0, None, vec![stage("s", Exit::Reply, BATCHING)]);
    let runs = |gear: &Gear| {
        let plan = plan(&replicas, Sharing::Concurrent, vec![gear.clone()]);
        let (report, _) = simulate(
            &plan,
            &profile,
            &SimConfig::default(),
            (0..10_000).map(|n| n * 5_000),
        );
        let busy = report.devices.iter().map(|device| device.busy_us / SERVICE_US);
        busy.collect::<Vec<u64>>()
    };
    assert!(
        runs(&gear).iter().all(|runs| (2_300..2_700).contains(runs)),
        "{:?}",
        runs(&gear)
    );
    for (id, share) in [("s-0", 0.5), ("s-1", 0.3), ("s-3", 0.2)] {
        gear.wiring.entry.shares.insert(id.into(), share);
    }
    for (runs, expected) in runs(&gear).into_iter().zip([5_000, 3_000, 0, 2_000_u64]) {
        assert!(runs.abs_diff(expected) <= 10, "{runs} for {expected}");
    }
}

#[test]
fn a_result_goes_to_a_replica_of_its_process_while_that_has_room_in_its_next_batch() {
    let batching = Batching {
        max_batch: 2,
        ..BATCHING
    };
    let stages = vec![
        stage("s", unsure(Edge::to("l")), BATCHING),
        stage("l", Exit::Reply, batching),
    ];
    // The sender's process has one of three replicas of the larger model.
    let placed = ["s-0@a", "l-0@b", "l-1@a", "l-2@c"];
    let mut plan = plan(&placed, Sharing::Concurrent, vec![gear(0.0, None, stages)]);
    for replica in &mut plan.placement {
        replica.worker.clone_from(&replica.device);
    }
    let profile = profile(vec![
        variant("s", 90, 10, &[(1, 0.1, true)]),
        variant("l", 900, 100, &[(1, 0.9, true)]),
    ]);
    let at = |arrivals: &[u64]| {
        let config = SimConfig::default();
        let (_, seen) = simulate(&plan, &profile, &config, arrivals.iter().copied());
        let larger = seen.runs.iter().filter(|run| run.replica != 0);
        larger.map(|run| run.replica).collect::<Vec<_>>()
    };
    // One after the other: all of them are near.
    assert_eq!(at(&[0, 10_000, 20_000, 30_000]), [2, 2, 2, 2]);
    // Eight at once: one starts a batch of the near one, two wait for its next, and the queue group takes the others.
    let many = at(&[0; 8]);
    assert!(
        many.contains(&2) && many.iter().any(|replica| *replica != 2),
        "{many:?}"
    );
}

#[test]
fn the_ingress_gives_a_request_to_the_least_busy_replica_of_its_process() {
    let (_, profile) = single(Sharing::Concurrent);
    let alone = Batching {
        min_queue: 1,
        max_batch: 1,
        max_wait_us: 0,
    };
    let placed = ["s-0@a", "s-1@b"];
    let mut plan = plan(
        &placed,
        Sharing::Concurrent,
        vec![gear(0.0, None, vec![stage("s", Exit::Reply, alone)])],
    );
    // Pairs far from each other: the second of each finds the other replica idle.
    let pairs = (0..200).flat_map(|pair| [pair * 10 * SERVICE_US, pair * 10 * SERVICE_US + 10]);
    let (report, _) = simulate(&plan, &profile, &SimConfig::default(), pairs.clone());
    assert_eq!(report.latency.max(), Some(SERVICE_US));
    // At once: one runs at each, and 16 wait at each.
    let (report, _) = simulate(&plan, &profile, &SimConfig::default(), [0; 34]);
    let busy = report.devices.iter().map(|device| device.busy_us / SERVICE_US);
    assert_eq!(busy.collect::<Vec<u64>>(), [17, 17]);
    // Of two processes with one replica each, an ingress knows its own: the second of a pair often waits behind the first.
    plan.placement[1].worker = "v".into();
    let (report, _) = simulate(&plan, &profile, &SimConfig::default(), pairs);
    assert!(report.latency.max() > Some(SERVICE_US));
}

#[test]
fn a_slow_message_delays_no_other_one() {
    let (plan, profile) = single(Sharing::Exclusive);
    let quantiles = LatencyQuantiles {
        p10: 1.0,
        p90: 1.0,
        p95: 1.0,
        p99: 1_000.0,
    };
    let config = SimConfig {
        entry_hop_us: 2_000,
        hop_quantiles: Some(quantiles),
        ..SimConfig::default()
    };
    // A hundred come while the slowest is on its way.
    let arrivals = (0..20_000).map(|request| request * 10 * SERVICE_US);
    let (report, _) = simulate(&plan, &profile, &config, arrivals);
    assert_eq!(report.lost, 0);
    let p90 = report.latency.quantile(0.85).unwrap();
    assert!(p90 < 3 * SERVICE_US + 2_000, "{p90}");
}
