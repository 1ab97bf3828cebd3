use std::collections::BTreeMap;

use super::*;
use kaskade_stated::pipelines::stated;

const SECOND: u64 = 1_000_000;

fn fed(counts: &[u64]) -> DemandEstimator {
    let mut estimator = DemandEstimator::new(DemandOptions::PAPER, 0);
    for (second, count) in counts.iter().enumerate() {
        estimator.observe(*count, (second as u64 + 1) * SECOND);
    }
    estimator
}

#[test]
fn arrivals_count_in_the_steps_that_they_came_in() {
    let mut estimator = DemandEstimator::new(DemandOptions::default(), 0);
    estimator.observe(100, SECOND / 2);
    // Half of them came in the first second, and what comes at its end is not of the second.
    estimator.observe(100, 3 * SECOND / 2);
    estimator.observe(50, 2 * SECOND);
    assert_eq!(estimator.steps, [150.0, 100.0]);
    let mut every_fifth = DemandEstimator::new(DemandOptions::default(), 0);
    for tick in 1..=101 {
        every_fifth.observe(40, tick * SECOND / 5);
        let present = every_fifth.present_qps();
        assert!(tick < 5 || (present - 200.0).abs() < 1e-6, "{tick}: {present}");
    }
    estimator.observe(10_000, 1_002 * SECOND);
    assert!(
        estimator
            .steps
            .iter()
            .all(|requests| (requests - 10.0).abs() < 1e-9)
    );
}

#[test]
fn the_average_weighs_as_in_the_artefact() {
    // pandas.Series([100, 200, 400]).ewm(com=1.6).mean().iloc[-1]
    let keep = 1.6 / 2.6;
    let expected = (400.0 + keep * 200.0 + keep * keep * 100.0) / (1.0 + keep + keep * keep);
    assert!((fed(&[100, 200, 400]).estimate_qps() - expected).abs() < 1e-9);
    assert!((fed(&[300; 50]).estimate_qps() - 300.0).abs() < 1e-9);
}

#[test]
fn only_the_window_counts_and_never_less_than_the_floor() {
    let long: Vec<u64> = std::iter::repeat_n(1_000_000, 5).chain([10; 20]).collect();
    assert!((fed(&long).estimate_qps() - 10.0).abs() < 1e-9);
    assert!((fed(&[]).estimate_qps() - 1.0).abs() < 1e-9);
    let mut silent = fed(&[500; 20]);
    silent.observe(0, 100_000 * SECOND);
    assert!((silent.estimate_qps() - 1.0).abs() < 1e-9);
}

#[test]
fn planned_is_first_then_by_the_period_and_on_change() {
    let mut estimator = DemandEstimator::new(DemandOptions::PAPER, 0);
    assert_eq!(estimator.due(10), None, "nothing is known yet");
    estimator.observe(100, 900_000);
    assert_eq!(estimator.due(SECOND), Some(PlanReason::First));
    estimator.planned(estimator.estimate_qps(), SECOND);
    for second in 1..10_u64 {
        estimator.observe(100, (second + 1) * SECOND);
        assert_eq!(estimator.due((second + 1) * SECOND), None, "{second}");
    }
    estimator.observe(100, 11 * SECOND);
    assert_eq!(estimator.due(11 * SECOND), Some(PlanReason::Period));
    estimator.planned(100.0, 11 * SECOND);
    estimator.observe(1_000, 12 * SECOND);
    assert_eq!(estimator.due(12 * SECOND), None);
    estimator.observe(1_000, 13 * SECOND);
    assert_eq!(estimator.due(13 * SECOND), Some(PlanReason::Change));
}

fn made(cars: u64, faces: u64) -> BTreeMap<String, u64> {
    BTreeMap::from([("car".to_owned(), cars), ("face".to_owned(), faces)])
}

#[test]
fn factors_are_summed_over_the_replicas_of_a_variant() {
    let mut estimator = FactorEstimator::new(FactorOptions::default());
    estimator.record("a", "detect-n", 60, &made(120, 60));
    estimator.record("a", "detect-n", 100, &made(220, 80));
    estimator.record("b", "detect-n", 100, &made(180, 120));
    let mut pipeline = stated();
    assert!(estimator.apply(&mut pipeline));
    let variant = &pipeline.tasks[0].variants[0];
    assert!((variant.multiplicity("car") - 2.0).abs() < 1e-9);
    assert!((variant.multiplicity("face") - 1.0).abs() < 1e-9);
    assert!((variant.multiplicative_factor - 3.0).abs() < 1e-9);
    pipeline.validate().unwrap();
    assert!(!estimator.apply(&mut pipeline), "they are the same as before");
}

#[test]
fn a_little_is_no_evidence() {
    let mut estimator = FactorEstimator::new(FactorOptions::default());
    estimator.record("a", "detect-n", 99, &made(0, 0));
    let mut pipeline = stated();
    assert!(!estimator.apply(&mut pipeline));
    assert_eq!(pipeline, stated());
}

#[test]
fn a_new_start_or_another_variant_counts_from_nothing() {
    let mut estimator = FactorEstimator::new(FactorOptions::default());
    estimator.record("a", "detect-n", 1_000, &made(2_000, 500));
    estimator.record("a", "detect-n", 100, &made(200, 50));
    estimator.record("a", "detect-s", 200, &made(990, 110));
    estimator.record("b", "detect-n", 0, &made(0, 0));
    estimator.forget_replica("b");
    let mut pipeline = stated();
    estimator.apply(&mut pipeline);
    assert_eq!(pipeline, stated(), "all of it is as profiled");
}

#[test]
fn a_variant_that_finds_nothing_has_a_factor_of_nothing() {
    let mut estimator = FactorEstimator::new(FactorOptions::default());
    estimator.record("a", "detect-n", 500, &made(0, 0));
    let mut pipeline = stated();
    assert!(estimator.apply(&mut pipeline));
    pipeline.validate().unwrap();
    assert!(pipeline.tasks[0].variants[0].multiplicity("car").abs() < 1e-12);
}
