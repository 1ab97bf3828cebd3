use proptest::prelude::*;

use super::*;
use kaskade_stated::pipelines::stated;

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
    let intake = &balanced.tables[0];
    assert_eq!((intake.from, intake.to), (None, 0));
    assert_eq!(intake.shares, [(1, 0.25), (0, 0.75)]);
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
fn what_was_planned_is_filled_first() {
    let mut planned = small();
    for (own, load) in planned.iter_mut().zip([36.0, 4.0, 19.8, 72.0, 20.2]) {
        own.load_qps = load;
    }
    let filled = Balancer::new(&stated(), &planned);
    let at_plan = filled.balance(40.0);
    assert_eq!(
        at_plan.tables[0].shares,
        [(1, 0.1), (0, 0.9)],
        "`detect-s` could take ten"
    );
    assert!(at_plan.unserved_qps.abs() < 1e-9);
    let more = filled.balance(50.0);
    assert_eq!(
        more.tables[0].shares,
        [(1, 0.2), (0, 0.8)],
        "beyond the plan, the best first again"
    );
    let paper = filled.by_capacity_alone().balance(40.0);
    assert_eq!(paper.tables[0].shares, [(1, 0.25), (0, 0.75)]);
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

proptest! {
    #[test]
    fn no_worker_gets_load_before_the_better_ones_are_full(
        counts in prop::collection::vec(0_u32..4, 13),
        demand in 0.1..2_000.0_f64,
    ) {
        let pipeline = stated();
        let all = pipeline.tasks.iter().flat_map(|task| task.variants.iter().map(move |variant| (task, variant)));
        let hosted: Vec<Instances> = all
            .zip(&counts)
            .filter(|(_, count)| **count > 0)
            .map(|((task, variant), count)| Instances {
                task: task.name.clone(),
                variant: variant.name.clone(),
                batch: 4,
                count: *count,
                latency_us: variant.latency_us(4).unwrap(),
                qps: 4e6 / variant.latency_us(4).unwrap(),
                load_qps: 0.0,
            })
            .collect();
        let balanced = Balancer::new(&pipeline, &hosted).balance(demand);
        let mut incoming = vec![0.0; hosted.len()];
        for table in &balanced.tables {
            let served = hosted.iter().any(|own| own.task == pipeline.tasks[table.to].name);
            let sum: f64 = table.shares.iter().map(|(_, share)| share).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9 || !served);
            for (place, share) in &table.shares {
                incoming[*place] += share * table.qps;
            }
        }
        for (place, own) in hosted.iter().enumerate() {
            let full = incoming[place] >= own.capacity_qps() * (1.0 - 1e-5);
            prop_assert!(balanced.unserved_qps > 0.0 || incoming[place] <= own.capacity_qps() * (1.0 + 1e-5));
            let left = balanced.backups.iter().flatten().any(|(backup, _)| *backup == place);
            prop_assert!(left != full, "what is not full is a backup");
            let accuracy = |own: &Instances| {
                let (task, variant) = pipeline.variant(&own.variant).unwrap();
                (task, pipeline.tasks[task].variants[variant].accuracy)
            };
            let (task, better) = accuracy(own);
            let worse = hosted.iter().zip(&incoming).filter(|(other, _)| accuracy(other).0 == task && accuracy(other).1 < better);
            for (other, got) in worse {
                prop_assert!(full || *got <= 1e-6 * demand.max(1.0), "{} before {}", other.variant, own.variant);
            }
        }
    }
}
