use proptest::prelude::*;

use super::*;
use kaskade_policy::plan::LoadRange;

fn ladder(accuracies: &[f64]) -> Vec<Cascade> {
    let cascade = |(variant, accuracy): (usize, &f64)| Cascade {
        variants: vec![variant],
        thresholds: vec![],
        accuracy: *accuracy,
        reach: vec![1.0],
    };
    accuracies.iter().enumerate().map(cascade).collect()
}

fn violation(range: usize, kind: ViolationKind) -> Violation {
    Violation {
        range,
        load: LoadRange::ALL,
        bottleneck: String::new(),
        kind,
    }
}

const BUSY: ViolationKind = ViolationKind::Utilisation { utilisation: 2.0 };
const FULL: ViolationKind = ViolationKind::Memory {
    needed_bytes: 2,
    device_bytes: 1,
};

#[test]
fn the_range_that_a_fault_names_is_downgraded() {
    let mut workload = Workload::new(ladder(&[0.7, 0.8, 0.9]), vec![0.5, 0.3, 0.2]);
    let start = workload.most_accurate().unwrap();
    assert_eq!(start, [2, 2, 2]);
    assert_eq!(workload.rule_out(&start, &violation(1, BUSY), 0), Some((1, 2)));
    assert_eq!(workload.most_accurate().unwrap(), [2, 1, 2]);
    assert_eq!(
        workload.rule_out(&[2, 1, 2], &violation(1, BUSY), 0),
        Some((1, 1))
    );
    let lowest = workload.most_accurate().unwrap();
    assert_eq!(workload.rule_out(&lowest, &violation(1, BUSY), 0), None);
}

#[test]
fn a_lack_of_memory_falls_on_whoever_uses_the_model_and_loses_least() {
    let mut workload = Workload::new(ladder(&[0.7, 0.8, 0.9]), vec![0.5, 0.1, 0.4]);
    // Ranges 0 and 2 use model 2; range 2 is rarer. Range 1 is the rarest, but does not use it.
    assert_eq!(
        workload.rule_out(&[2, 1, 2], &violation(1, FULL), 2),
        Some((2, 2))
    );
}

#[test]
fn what_was_ruled_out_stays_out_and_what_is_new_comes_in() {
    let mut workload = Workload::new(ladder(&[0.7, 0.9]), vec![1.0]);
    workload.rule_out(&[1], &violation(0, BUSY), 0);
    let fresh = Cascade {
        variants: vec![0, 1],
        thresholds: vec![0.5],
        accuracy: 0.8,
        reach: vec![1.0, 0.5],
    };
    workload.add(&[fresh.clone(), fresh]);
    assert_eq!(workload.pareto_cascades.len(), 3);
    assert_eq!(workload.most_accurate().unwrap(), [1]);
}

/// Latency grows with the cascade, and more so in high ranges.
#[expect(clippy::unnecessary_wraps, reason = "the signature of the callback")]
fn latency(range: usize, cascade: &Cascade) -> Result<f64, ()> {
    let level = cascade.variants[0] as f64;
    Ok(1.0 + level * level * (1.0 + range as f64))
}

#[test]
fn accuracy_is_bought_where_it_is_cheap() {
    let workload = Workload::new(ladder(&[0.7, 0.8, 0.9]), vec![0.6, 0.3, 0.1]);
    let chosen = workload.fastest(0.8, latency).unwrap().unwrap();
    assert!(workload.accuracy(&chosen) >= 0.8 - 1e-9);
    assert!(chosen[0] >= chosen[1] && chosen[1] >= chosen[2], "{chosen:?}");
    assert_eq!(workload.fastest(0.91, latency), Ok(None));
    assert_eq!(workload.fastest(0.0, latency), Ok(Some(vec![0, 0, 0])));
}

#[test]
fn what_does_not_keep_up_is_not_chosen() {
    let workload = Workload::new(ladder(&[0.7, 0.8, 0.9]), vec![0.5, 0.5]);
    let slow_high = |range: usize, cascade: &Cascade| -> Result<f64, ()> {
        Ok(if range == 1 && cascade.variants[0] > 0 {
            f64::INFINITY
        } else {
            1.0
        })
    };
    assert_eq!(workload.fastest(0.8, slow_high), Ok(Some(vec![2, 0])));
}

proptest! {
    #[test]
    fn near_the_best_of_all_assignments(
        steps in prop::collection::vec(0.01..0.1_f64, 3),
        costs in prop::collection::vec(prop::collection::vec(0.1..3.0_f64, 4), 3),
        share in 0.05..1.0_f64,
    ) {
        let mut accuracies = vec![0.5];
        for step in &steps {
            accuracies.push(accuracies.last().unwrap() + step);
        }
        let weights = vec![0.5, 0.3, 0.2];
        let workload = Workload::new(ladder(&accuracies), weights.clone());
        // Latency ascends with the cascade.
        let cost = |range: usize, level: usize| costs[range][..=level].iter().sum::<f64>();
        let mean = |levels: &[usize]| -> f64 { (0..3).map(|range| weights[range] * cost(range, levels[range])).sum() };
        let at_least = 0.5 + share * (accuracies[3] - 0.5);
        let chosen = workload.fastest(at_least, |range, cascade| Ok::<f64, ()>(cost(range, cascade.variants[0]))).unwrap().unwrap();
        prop_assert!(workload.accuracy(&chosen) >= at_least - 1e-8);
        let mut best = f64::INFINITY;
        for code in 0..64 {
            let levels = [code % 4, code / 4 % 4, code / 16];
            // The knapsack counts accuracy in units, so an assignment that just reaches it may be missed.
            if workload.accuracy(&levels) >= at_least + 4.0 * 0.3 / UNITS as f64 {
                best = best.min(mean(&levels));
            }
        }
        prop_assert!(mean(&chosen) <= best + 1e-9, "{} {}", mean(&chosen), best);
    }
}
