//! Invariants for every plan, load and failure.

use proptest::prelude::*;

use super::*;

/// Two gears of two and one stages on three devices, with a few requests, shifts and failures thrown in.
fn service(sharing: Sharing, batching: Batching) -> (Plan, Profile) {
    let edge = |name: &str, shares: &[(&str, f64)], backup: &[&str]| Edge {
        shares: shares.iter().map(|(id, share)| ((*id).into(), *share)).collect(),
        backup: backup.iter().map(|id| (*id).into()).collect(),
        ..Edge::to(name)
    };
    let on = edge("t", &[("t-0", 0.4), ("t-1", 0.6)], &["s-0"]);
    let child = Child {
        to: on.clone(),
        multiplicity: 1.5,
    };
    let mut cascade = gear(
        0.0,
        Some(300.0),
        vec![
            stage("s", unsure(on), batching),
            stage("t", Exit::Reply, batching),
        ],
    );
    cascade.wiring.entry = edge("s", &[("s-0", 1.0)], &["s-1"]);
    let tree = Exit::FanOut {
        children: vec![child],
    };
    let pipeline = gear(
        300.0,
        Some(900.0),
        vec![stage("s", tree, batching), stage("t", Exit::Reply, BATCHING)],
    );
    let mut ensemble = gear(
        900.0,
        None,
        vec![
            stage("s", Exit::Reply, BATCHING),
            stage("t", Exit::Reply, batching),
        ],
    );
    ensemble.wiring.ensemble = vec![Edge::to("t")];
    let replicas = ["s-0@a", "t-0@a", "s-1@b", "t-1@b"];
    let profile = profile(vec![
        variant("s", 300, 50, &[(1, 0.9, true), (1, 0.1, false), (2, 0.4, true)]),
        variant(
            "t",
            2_000,
            400,
            &[(1, 0.9, true), (1, 0.9, true), (3, 0.2, false)],
        ),
    ]);
    (
        plan(&replicas, sharing, vec![cascade, pipeline, ensemble]),
        profile,
    )
}

fn changes() -> impl Strategy<Value = Vec<ReplicaEvent>> {
    let replica = prop::sample::select(vec!["s-0", "s-1", "t-0", "t-1"]);
    let change = prop::sample::select(vec![Change::Starts, Change::Stops, Change::Fails]);
    let event = (0..2_000_000_u64, replica, change).prop_map(|(at_us, replica, change)| ReplicaEvent {
        at_us,
        replica: replica.into(),
        change,
    });
    prop::collection::vec(event, 0..12)
}

fn batchings() -> impl Strategy<Value = Batching> {
    (1..9_u32, 8..20_u32, 0..30_000_u64).prop_map(|(min_queue, max_batch, max_wait_us)| Batching {
        min_queue,
        max_batch,
        max_wait_us,
    })
}

fn configs() -> impl Strategy<Value = SimConfig> {
    let budget = prop::option::of(2_000..100_000_u64);
    let capacity = prop::sample::select(vec![2, 20, usize::MAX]);
    (
        any::<u64>(),
        budget,
        capacity,
        changes(),
        0..200_u64,
        any::<bool>(),
    )
        .prop_map(
            |(seed, budget_us, queue_capacity, timeline, hop_us, shifts)| SimConfig {
                seed,
                budget_us,
                queue_capacity,
                timeline,
                hop_us,
                entry_hop_us: hop_us,
                detection_us: 50_000,
                shift: shifts.then(ShiftConfig::default),
                initially_down: if hop_us % 2 == 0 {
                    vec!["t-1".into()]
                } else {
                    Vec::new()
                },
                admission: budget_us
                    .filter(|budget| budget % 2 == 0)
                    .map(|_| kaskade_policy::admission::AdmissionConfig::default()),
                ..SimConfig::default()
            },
        )
}

/// Stretches of different load.
fn arrivals() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec((1..300_usize, 100..20_000_u64), 1..6).prop_map(|stretches| {
        let mut at = 0;
        let mut arrivals = Vec::new();
        for (count, gap) in stretches {
            for number in 0..count as u64 {
                at += gap * (number * 7 % 5) / 2;
                arrivals.push(at);
            }
        }
        arrivals
    })
}

fn sharings() -> impl Strategy<Value = Sharing> {
    prop::sample::select(vec![Sharing::Concurrent, Sharing::Exclusive])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_request_has_one_outcome_whatever_happens(
        sharing in sharings(),
        batching in batchings(),
        config in configs(),
        arrivals in arrivals(),
    ) {
        let (plan, profile) = service(sharing, batching);
        let count = arrivals.len() as u64;
        let (report, seen) = simulate(&plan, &profile, &config, arrivals.iter().copied());
        prop_assert_eq!(report.requests, count);
        prop_assert_eq!(report.lost, 0);
        prop_assert_eq!(report.answered + report.expired + report.refused + report.failed, count);
        prop_assert_eq!(seen.answered.len() as u64, report.answered);
        prop_assert_eq!(report.latency.count(), report.answered);
        prop_assert_eq!(report.variants.iter().map(|variant| variant.answered).sum::<u64>(), report.answered);
        prop_assert!(report.right <= report.answered);
        prop_assert!(report.max_in_flight <= count as usize);
        // Copies of older attempts may outlive their request, so places may be a few more than requests.
        prop_assert!(report.max_places <= arrivals.len());
        prop_assert!(seen.answered.is_sorted_by_key(|answered| answered.at_us));
        if let Some(budget) = config.budget_us {
            prop_assert!(seen.answered.iter().all(|answered| answered.latency_us < budget));
        }
        for device in &report.devices {
            prop_assert!(device.busy_us <= device.up_us, "{device:?}");
            prop_assert!((0.0..=1.0).contains(&device.utilisation));
        }
    }

    #[test]
    fn a_device_taken_in_turns_runs_one_batch_at_a_time(
        batching in batchings(),
        config in configs(),
        arrivals in arrivals(),
    ) {
        let (plan, profile) = service(Sharing::Exclusive, batching);
        let (_, seen) = simulate(&plan, &profile, &config, arrivals);
        for device in 0..2 {
            let mut runs: Vec<Run> = seen.runs.iter().copied().filter(|run| run.device == device).collect();
            runs.sort_by_key(|run| run.from_us);
            for pair in runs.windows(2) {
                prop_assert!(pair[0].to_us <= pair[1].from_us, "{pair:?}");
            }
        }
        prop_assert!(seen.runs.iter().all(|run| run.batch >= 1 && run.batch <= batching.max_batch.max(8) as usize));
    }

    #[test]
    fn the_same_seed_gives_the_same_report(
        sharing in sharings(),
        batching in batchings(),
        config in configs(),
        arrivals in arrivals(),
    ) {
        let (plan, profile) = service(sharing, batching);
        let simulator = Simulator::new(&plan, &profile, &config).unwrap();
        let first = simulator.run(arrivals.iter().copied(), &mut ());
        prop_assert_eq!(first, simulator.run(arrivals.iter().copied(), &mut ()));
    }
}

#[test]
fn another_seed_draws_otherwise() {
    let (plan, profile) = service(Sharing::Exclusive, BATCHING);
    let run = |seed| {
        let config = SimConfig {
            seed,
            start_gear: 1,
            ..SimConfig::default()
        };
        simulate(&plan, &profile, &config, (0..500).map(|n| n * 3_000)).0
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
