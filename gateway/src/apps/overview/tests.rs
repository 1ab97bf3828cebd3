use kaskade_actors::wire::ModelEnergy;
use kaskade_actors::wire::ReplicaBeat;

use super::*;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the report of a process of 20 W whose models were busy for these seconds, with 10 requests in 5 batches
/// each.
fn report(node: &str, wall_s: f64, busy: &[(&str, f64)]) -> EnergyReport {
    let model = |(name, busy_s): &(&str, f64)| {
        let model = ModelEnergy {
            requests: (busy_s * 10.0) as u64,
            batches: (busy_s * 5.0) as u64,
            busy_s: *busy_s,
            tokens: Tokens {
                count: (busy_s * 100.0) as u64,
                first: (busy_s * 10.0) as u64,
                to_first_us: (busy_s * 10.0 * 3e3) as u64,
                between_us: (busy_s * 90.0 * 2e3) as u64,
            },
            ..ModelEnergy::default()
        };
        ((*name).to_owned(), model)
    };
    EnergyReport {
        node: node.into(),
        source: "modelled".into(),
        counter: None,
        joules: Some(20.0 * wall_s),
        requests: 0,
        joules_per_request: None,
        busy_core_s: wall_s / 2.0,
        wall_s,
        models: busy.iter().map(model).collect(),
        forwarded: BTreeMap::from([(
            "small".to_owned(),
            BTreeMap::from([("large".to_owned(), (wall_s * 3.0) as u64)]),
        )]),
    }
}

fn counted(arrived: u64, answered: u64) -> Counts {
    Counts {
        arrived,
        answered,
        errors: arrived - answered,
        retried: 0,
        processing: Duration::from_millis(10 * answered),
        latencies: vec![0, answered],
    }
}

/// Prices every request of a model in a report at half a unit, except the last `unknown` ones.
fn priced(mut report: EnergyReport, model: &str, unknown: u64) -> EnergyReport {
    let model = report.models.get_mut(model).unwrap();
    model.priced = model.requests - unknown;
    model.spent.billionths = 500_000_000 * model.priced;
    model.spent.source = (model.priced > 0).then_some(CostSource::Priced);
    report
}

#[test]
fn money_is_known_only_if_that_of_every_request_is() {
    let snapshot = |unknown: u64| {
        let mut overview = Overview::default();
        for (second, busy) in [(1, 1.0), (3, 2.0)] {
            let told = report("one", second as f64, &[("small", busy), ("large", busy)]);
            let unknown = if second == 3 { unknown } else { 0 };
            overview.energy(at(second), priced(priced(told, "small", 0), "large", unknown));
            overview.counts(at(second), "i", counted(10 * second, 10 * second));
        }
        overview.snapshot("app", at(3))
    };
    let known = snapshot(0);
    assert_eq!(known.money_source, Some(CostSource::Priced));
    // Five requests of each model and ten answers per second.
    assert!((known.money_per_request.unwrap() - 0.5).abs() < 1e-9, "{known:?}");
    let row = known.models.iter().find(|row| row.variant == "large").unwrap();
    assert!((row.money_per_request().unwrap() - 0.5).abs() < 1e-9);
    let unknown = snapshot(1);
    assert_eq!((unknown.money_per_request, unknown.money_source), (None, None));
    let small = unknown.models.iter().find(|row| row.variant == "small").unwrap();
    assert!(small.money_per_request().is_some(), "{small:?}");
}

#[test]
fn edges_and_latencies_are_those_of_the_window() {
    let mut overview = Overview::default();
    for second in [1, 3] {
        for node in ["one", "two"] {
            overview.energy(at(second), report(node, second as f64, &[("small", 1.0)]));
        }
        overview.counts(at(second), "i", counted(10 * second, 10 * second));
    }
    let snapshot = overview.snapshot("app", at(3));
    let edge = snapshot.edges.first().unwrap();
    assert_eq!((edge.from.as_str(), edge.to.as_str()), ("small", "large"));
    assert!((edge.per_s - 6.0).abs() < 1e-9, "{edge:?}");
    let rates = snapshot.ingresses.unwrap();
    assert!(
        (rates.p50_s.unwrap() - 1.3e-6).abs() < 1e-7 && rates.p99_s == rates.p50_s,
        "{rates:?}"
    );
}

#[test]
fn tokens_are_counted_by_second_and_by_joule_over_all_processes() {
    let mut overview = Overview::default();
    for (second, busy) in [(1, 1.0), (3, 2.0)] {
        for node in ["one", "two"] {
            overview.energy(at(second), report(node, second as f64, &[("gpt", busy)]));
        }
    }
    let snapshot = overview.snapshot("app", at(3));
    let row = snapshot.models.first().unwrap();
    assert!((row.tokens_per_s - 100.0).abs() < 1e-9, "{row:?}");
    assert!((row.joules_per_token().unwrap() - 0.4).abs() < 1e-9, "{row:?}");
    assert!((row.made.to_first_s().unwrap() - 3e-3).abs() < 1e-9);
    assert!((row.made.between_s().unwrap() - 2e-3).abs() < 1e-9);
}

#[test]
fn joules_per_request_include_idle_processes() {
    let mut overview = Overview::default();
    for (second, busy) in [(1, 1.0), (3, 2.0)] {
        overview.energy(
            at(second),
            report("worker", second as f64, &[("large", 3.0 * busy), ("small", busy)]),
        );
        overview.energy(at(second), report("idle", second as f64, &[]));
    }
    overview.counts(at(1), "ingress", counted(0, 0));
    overview.counts(at(3), "ingress", counted(12, 10));
    let snapshot = overview.snapshot("app", at(3));
    assert_eq!(snapshot.watts, Some(40.0));
    assert_eq!(snapshot.joules_per_request, Some(8.0));
    let rates = snapshot.ingresses.unwrap();
    assert_eq!((rates.arrived_per_s, rates.errors_per_s), (6.0, 1.0));
    assert!((rates.mean_latency_s.unwrap() - 0.01).abs() < 1e-9);
    let large = snapshot.models.iter().find(|row| row.variant == "large").unwrap();
    assert_eq!(large.watts, Some(15.0));
    assert_eq!(large.batch(), Some(2.0));
    assert_eq!(large.joules_per_request(), Some(1.0));
}

#[test]
fn one_unknown_power_makes_the_sum_unknown() {
    let mut overview = Overview::default();
    for second in [1, 2] {
        overview.energy(at(second), report("known", second as f64, &[]));
        let unknown = EnergyReport {
            joules: None,
            ..report("unknown", second as f64, &[("small", second as f64)])
        };
        overview.energy(at(second), unknown);
    }
    let snapshot = overview.snapshot("app", at(2));
    assert_eq!(snapshot.watts, None);
    assert_eq!(snapshot.models[0].watts, None);
    assert_eq!(
        snapshot.nodes.iter().filter(|node| node.watts.is_some()).count(),
        1
    );
}

#[test]
fn restarted_and_silent_processes_are_discarded() {
    let mut overview = Overview::default();
    overview.energy(at(1), report("worker", 100.0, &[("small", 50.0)]));
    overview.energy(at(2), report("worker", 0.5, &[("small", 0.1)]));
    let snapshot = overview.snapshot("app", at(2));
    assert_eq!(snapshot.nodes[0].watts, None, "one report says nothing of a rate");
    assert!(snapshot.models.is_empty());
    overview.energy(at(3), report("worker", 1.5, &[("small", 0.6)]));
    let snapshot = overview.snapshot("app", at(3));
    assert!((snapshot.nodes[0].watts.unwrap() - 20.0).abs() < 1e-9);
    assert!((snapshot.models[0].busy - 0.5).abs() < 1e-9);
    assert!(overview.snapshot("app", at(8)).nodes.is_empty());
}

#[test]
fn replicas_are_counted_by_their_beats() {
    let replica = |id: &str, queue: u32| ReplicaBeat {
        id: id.into(),
        variant: "small".into(),
        queue,
        ..ReplicaBeat::default()
    };
    let mut overview = Overview::default();
    for (actor, replicas) in [
        ("w0", vec![replica("a", 2), replica("b", 0)]),
        ("w1", vec![replica("c", 1)]),
    ] {
        let beat = Heartbeat {
            actor: actor.into(),
            epoch: 7,
            replicas,
            ..Heartbeat::default()
        };
        overview.beat(at(1), beat);
    }
    overview.shifted(GearShift { epoch: 7, gear: 2 });
    let snapshot = overview.snapshot("app", at(1));
    assert_eq!((snapshot.epoch, snapshot.gear), (7, Some(2)));
    assert_eq!((snapshot.models[0].replicas, snapshot.models[0].queue), (3, 3));
}

#[test]
fn rates_look_back_a_few_seconds_and_no_further() {
    let mut overview = Overview::default();
    overview.counts(at(0), "ingress", counted(0, 0));
    for second in 1..=20 {
        let arrived = if second <= 10 { 0 } else { 100 * (second - 10) };
        overview.counts(at(second), "ingress", counted(arrived, arrived));
    }
    let rate = overview.snapshot("app", at(20)).ingresses.unwrap().arrived_per_s;
    assert!((rate - 100.0).abs() < 1e-9, "{rate}");
}

#[test]
fn what_was_found_about_another_plan_is_not_shown() {
    let beat = |epoch| Heartbeat {
        actor: "worker".to_owned(),
        epoch,
        ..Heartbeat::default()
    };
    let mut overview = Overview::default();
    overview.beat(at(1), beat(3));
    overview.record_certificates(CertificateReport {
        epoch: 3,
        ..CertificateReport::default()
    });
    assert!(overview.snapshot("app", at(1)).certificates.is_some());
    overview.beat(at(2), beat(4));
    assert_eq!(overview.snapshot("app", at(2)).certificates, None);
}

/// Regression: the energy of two workers on one host, which read the same counter, was counted twice.
#[test]
fn energy_that_several_processes_read_counts_once() {
    let mut overview = Overview::default();
    for second in [1, 3] {
        for (node, counter, busy) in [
            ("busy", Some("c0ffee/cpu"), 0.75),
            ("idle", Some("c0ffee/cpu"), 0.25),
            ("elsewhere", Some("decaf/cpu"), 0.5),
            ("modelled", None, 0.5),
        ] {
            let wall_s = second as f64;
            let report = EnergyReport {
                counter: counter.map(str::to_owned),
                busy_core_s: busy * wall_s,
                ..report(node, wall_s, &[("small", busy * wall_s)])
            };
            overview.energy(at(second), report);
        }
    }
    let snapshot = overview.snapshot("digits", at(3));
    let watts: BTreeMap<&str, f64> = snapshot
        .nodes
        .iter()
        .map(|node| (node.node.as_str(), node.watts.unwrap()))
        .collect();
    assert_eq!(
        watts,
        BTreeMap::from([
            ("busy", 15.0),
            ("idle", 5.0),
            ("elsewhere", 20.0),
            ("modelled", 20.0)
        ])
    );
    assert_eq!(snapshot.watts, Some(60.0));
    let of_models: f64 = snapshot.models.iter().map(|row| row.watts.unwrap()).sum();
    assert!((of_models - 60.0).abs() < 1e-9, "{of_models}");
}
