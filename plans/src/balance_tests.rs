use super::*;
use crate::pipeline::stated;

fn instances(of: &[(&str, &str, u32, f64)]) -> Vec<Instances> {
    let instance = |(task, variant, count, qps): &(&str, &str, u32, f64)| Instances {
        task: (*task).into(),
        variant: (*variant).into(),
        batch: 1,
        count: *count,
        latency_us: 1e6 / qps,
        qps: *qps,
        load_qps: 0.0,
    };
    of.iter().map(instance).collect()
}

/// Two detectors, two classifiers of cars, one of faces; the better ones first.
fn small() -> Vec<Instances> {
    instances(&[
        ("detect", "detect-n", 1, 100.0),
        ("detect", "detect-s", 1, 10.0),
        ("car", "car-6", 2, 25.0),
        ("car", "car-0", 1, 400.0),
        ("face", "face-19", 1, 100.0),
    ])
}

#[test]
fn the_most_accurate_are_filled_first() {
    let balanced = Balancer::new(&stated(), &small()).balance(40.0);
    let door = &balanced.tables[0];
    assert_eq!((door.from, door.to), (None, 0));
    assert_eq!(door.shares, [(1, 0.25), (0, 0.75)]);
    // Ten requests of `detect-s` make 49.5 for cars, which fill the two of `car-6` but for half a request.
    let of = |from: usize, to: usize| {
        let mut tables = balanced.tables.iter();
        tables
            .find(|table| table.from == Some(from) && table.to == to)
            .unwrap()
    };
    assert!((of(1, 1).qps - 49.5).abs() < 1e-9);
    assert_eq!(of(1, 1).shares, [(2, 1.0)]);
    let later = of(0, 1);
    assert!((later.qps - 60.0).abs() < 1e-9);
    assert!((later.shares[0].1 - 0.5 / 60.0).abs() < 1e-9 && later.shares[1].0 == 3);
    assert!(balanced.unserved_qps.abs() < 1e-9);
    assert_eq!(balanced.backups[1].len(), 1, "`car-6` is full");
    assert!((balanced.backups[1][0].1 - 340.5).abs() < 1e-9);
}

#[test]
fn overload_is_told_and_shared_out() {
    let balanced = Balancer::new(&stated(), &small()).balance(1_000.0);
    assert!(balanced.unserved_qps > 800.0);
    assert!(balanced.backups[0].is_empty());
    for table in &balanced.tables {
        let sum: f64 = table.shares.iter().map(|(_, share)| share).sum();
        assert!((sum - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_variant_that_nothing_is_sent_to_knows_where_to_send() {
    let balanced = Balancer::new(&stated(), &small()).balance(1.0);
    let idle = balanced
        .tables
        .iter()
        .find(|table| table.from == Some(0) && table.to == 1);
    assert_eq!(idle.unwrap().shares, [(2, 1.0)]);
    assert_eq!(balanced.backups[0], [(1, 9.0), (0, 100.0)]);
}

#[test]
fn the_accuracy_is_that_of_the_paths_by_their_shares() {
    let pipeline = stated();
    let one = instances(&[
        ("detect", "detect-x", 1, 10.0),
        ("car", "car-0", 1, 1e4),
        ("face", "face-11", 1, 1e4),
    ]);
    let balanced = Balancer::new(&pipeline, &one).balance(1.0);
    assert!((balanced.accuracy - f64::midpoint(0.92, 0.95)).abs() < 1e-9);
}
