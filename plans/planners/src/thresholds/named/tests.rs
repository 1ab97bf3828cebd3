use super::*;
use crate::thresholds::{Search, frontier, synthetic};

fn point(energy_j: f64, accuracy: f64) -> Point {
    Point {
        thresholds: vec![],
        accuracy,
        energy_j,
        reach: vec![],
        answered: vec![],
    }
}

fn bend(points: &[(f64, f64)]) -> f64 {
    let points: Vec<Point> = points
        .iter()
        .map(|(energy, accuracy)| point(*energy, *accuracy))
        .collect();
    sharpest_bend(&upper_hull(points.iter().collect(), |point| place(point))).unwrap()
}

fn made_up() -> (Family, Frontier) {
    let family = synthetic::family(&[1.0, 1.5, 2.0, 2.5], &[1.0, 4.0, 12.0, 40.0], 3.0, 1_500, 3);
    let found = frontier(&family, &Search::default());
    (family, found)
}

#[test]
fn pairs_count_what_only_one_gets_right() {
    let paired = Paired::new(&[true, true, false, false], &[true, false, true, true]);
    assert_eq!((paired.gained, paired.lost, paired.samples), (1, 2, 4));
    assert!((paired.difference() + 0.25).abs() < 1e-12);
    let same = Paired::new(&[true; 100], &[true; 100]);
    assert!(
        (same.standard_error() - 0.01).abs() < 1e-12,
        "no difference seen is not none"
    );
}

#[test]
fn the_bend_is_where_the_curve_turns() {
    assert!((bend(&[(0.0, 0.0), (25.0, 0.9), (100.0, 1.0)]) - 25.0).abs() <= 100.0 / 32.0);
    assert!((bend(&[(10.0, 0.5), (90.0, 0.9), (110.0, 0.91)]) - 90.0).abs() <= 100.0 / 32.0);
    // A dent is no bend, and a single point is its own.
    assert!((bend(&[(0.0, 0.0), (24.0, 0.1), (25.0, 0.9), (100.0, 1.0)]) - 25.0).abs() <= 100.0 / 32.0);
    assert!((bend(&[(7.0, 0.5)]) - 7.0).abs() < 1e-12);
}

#[test]
fn the_preserving_point_keeps_up_at_the_least_energy() {
    let (family, found) = made_up();
    let best = Baseline::new(&family, family.best());
    let ap = accuracy_preserving(&family, &found, &best, NonInferiorityTest::None).unwrap();
    assert!(ap.accuracy >= family.accuracy(3));
    let cheaper = found.points.iter().filter(|point| point.energy_j < ap.energy_j);
    assert!(
        cheaper
            .into_iter()
            .all(|point| point.accuracy < family.accuracy(3))
    );
    assert!(ap.energy_j < 40.0 / 2.0);
}

#[test]
fn a_guard_costs_energy_and_keeps_a_distance() {
    let (family, found) = made_up();
    let best = Baseline::new(&family, family.best());
    let energy = |z| {
        let guard = NonInferiorityTest::Bound { z, tolerance: 0.005 };
        accuracy_preserving(&family, &found, &best, guard).unwrap()
    };
    let bare = accuracy_preserving(&family, &found, &best, NonInferiorityTest::None).unwrap();
    let (weak, strong) = (energy(1.0), energy(2.5));
    assert!(bare.energy_j <= weak.energy_j && weak.energy_j < strong.energy_j);
    let outcome = evaluate(&family, &threshold_exits(&strong.thresholds));
    let paired = Paired::new(&outcome.correct, &best.correct);
    assert!(paired.difference() - 2.5 * paired.standard_error() >= -0.005);
}

#[test]
fn where_no_cascade_is_sure_the_best_variant_answers_alone() {
    let (family, found) = made_up();
    let best = Baseline::new(&family, family.best());
    let certain = NonInferiorityTest::Bound {
        z: 50.0,
        tolerance: 0.0,
    };
    let ap = accuracy_preserving(&family, &found, &best, certain).unwrap();
    assert_eq!(ap.answered, [0.0, 0.0, 0.0, 1.0]);
    let without = family.without(3);
    let smaller = frontier(&without, &Search::default());
    assert_eq!(accuracy_preserving(&without, &smaller, &best, certain), None);
}

#[test]
fn the_optimising_point_lies_between_the_floor_and_the_preserving_one() {
    let (family, found) = made_up();
    let (best, floor) = (
        Baseline::new(&family, 3),
        Baseline::new(&family, family.second_best()),
    );
    let ap = accuracy_preserving(&family, &found, &best, NonInferiorityTest::None).unwrap();
    let eo = energy_optimising(&family, &found, &floor, &ap, NonInferiorityTest::None).unwrap();
    assert!(eo.energy_j < ap.energy_j && eo.accuracy >= family.accuracy(2));
}
