use super::*;
use crate::thresholds::NonInferiorityTest;
use crate::thresholds::{Baseline, Column, FORWARD_ALL, Search, accuracy_preserving, frontier, synthetic};

fn made_up(skills: &[f64], energies: &[f64]) -> Family {
    synthetic::family(skills, energies, 3.0, 800, 7)
}

fn pruned(family: &Family) -> Pruned {
    let best = Baseline::new(family, family.best());
    let search = |family: &Family| frontier(family, &Search::default());
    let choose = |family: &Family, found: &Frontier| {
        accuracy_preserving(family, found, &best, NonInferiorityTest::None)
    };
    prune(family, &search(family), search, choose).unwrap()
}

#[test]
fn the_benefit_is_what_the_next_one_is_spared() {
    let family = made_up(&[1.0, 1.5, 2.0], &[1.0, 4.0, 20.0]);
    let benefit = |variant| energy_benefit(&family, &[1.0, 0.5, 0.25], variant);
    assert_eq!(benefit(0), Some(0.5 * 4.0 - 1.0));
    assert_eq!(benefit(1), Some(0.25 * 20.0 - 0.5 * 4.0));
    assert_eq!(benefit(2), None);
}

#[test]
fn a_variant_that_costs_as_much_as_the_next_is_dropped() {
    let family = made_up(&[1.0, 1.1, 2.5], &[1.0, 39.0, 40.0]);
    let before = accuracy_preserving(
        &family,
        &frontier(&family, &Search::default()),
        &Baseline::new(&family, family.best()),
        NonInferiorityTest::None,
    )
    .unwrap();
    let pruned = pruned(&family);
    let names: Vec<&str> = pruned
        .family
        .columns()
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    assert_eq!(names, ["v0", "v2"]);
    assert!(matches!(
        pruned.dropped.as_slice(),
        [Dropped { name, reason: Reason::NoEnergyBenefit { benefit, .. } }] if name == "v1" && *benefit <= 0.0
    ));
    assert!(pruned.point.energy_j <= before.energy_j);
}

#[test]
fn what_stays_pays_or_could_not_be_spared() {
    for seed in 0..12 {
        let family = synthetic::family(&[0.5, 1.0, 1.5, 2.0], &[1.0, 6.0, 9.0, 30.0], 3.0, 300, seed);
        let pruned = pruned(&family);
        assert!(pruned.point.accuracy >= family.accuracy(family.best()));
        for dropped in &pruned.dropped {
            if let Reason::NoEnergyBenefit {
                benefit,
                energy_before,
                energy_after,
            } = dropped.reason
            {
                assert!(benefit <= 0.0 && energy_after <= energy_before);
            }
        }
        let gone = pruned.dropped.len() + pruned.family.columns().len();
        assert_eq!(gone, 4);
    }
}

#[test]
fn a_variant_behind_one_that_answers_everything_is_never_reached() {
    // The largest is no better than the middle one, so nothing is sent to it.
    let column = |name: &str, energy_j: f64, correct: &[bool]| Column {
        name: name.into(),
        energy_j,
        confidences: correct
            .iter()
            .map(|right| if *right { 0.9 } else { 0.1 })
            .collect(),
        correct: correct.into(),
    };
    let family = Family::new(vec![
        column("tiny", 1.0, &[true, true, false, false]),
        column("middle", 4.0, &[true, true, true, false]),
        column("large", 40.0, &[true, true, true, false]),
    ])
    .unwrap();
    let pruned = pruned(&family);
    let dropped: Vec<&str> = pruned
        .dropped
        .iter()
        .map(|dropped| dropped.name.as_str())
        .collect();
    assert_eq!(dropped, ["large"]);
    assert_eq!(pruned.point.thresholds.len(), 1);
}

fn bands(exits: &Exits, variant: usize) -> Vec<(f64, Option<usize>)> {
    exits[variant].iter().map(|band| (band.from, band.to)).collect()
}

#[test]
fn the_lowest_confidences_go_to_the_largest() {
    let family = made_up(&[1.0, 1.3, 1.6, 2.0], &[1.0, 4.0, 12.0, 40.0]);
    let even = split_exits(&family, &[0.6, 0.5, 0.4], Split::Even);
    assert_eq!(
        bands(&even, 0),
        [(0.0, Some(3)), (0.2, Some(2)), (0.4, Some(1)), (0.6, None)]
    );
    assert_eq!(bands(&even, 1), [(0.0, Some(3)), (0.25, Some(2)), (0.5, None)]);
    assert_eq!(bands(&even, 2), [(0.0, Some(3)), (0.4, None)]);
    let log = split_exits(&family, &[0.6, 0.5, 0.4], Split::LogUniform);
    let (low, high) = (log[0][1].from, log[0][2].from);
    let least = family.columns()[0]
        .confidences
        .iter()
        .copied()
        .fold(1.0, f64::min);
    assert!((high / low - (0.6 / least).powf(1.0 / 3.0)).abs() < 0.1 * high / low);
    assert!(low < 0.2 && split_exits(&family, &[0.0, 0.5, FORWARD_ALL], Split::Even)[0].len() == 1);
}

#[test]
fn skips_are_taken_only_where_they_save_and_are_accepted() {
    // Samples that are unsure at the first need the last: the middle one adds only cost.
    let column = |name: &str, energy_j: f64, answers: &[(f64, bool)]| Column {
        name: name.into(),
        energy_j,
        confidences: answers.iter().map(|answer| answer.0).collect(),
        correct: answers.iter().map(|answer| answer.1).collect(),
    };
    let family = Family::new(vec![
        column("tiny", 1.0, &[(0.9, true), (0.1, false), (0.5, false)]),
        column("middle", 10.0, &[(0.9, true), (0.1, false), (0.9, true)]),
        column("large", 40.0, &[(0.9, true), (0.9, true), (0.9, true)]),
    ])
    .unwrap();
    let taken = add_skips(&family, &[0.6, 0.6], |outcome| outcome.accuracy >= 1.0);
    assert_eq!(taken.split, Split::Even);
    assert!((taken.outcome.energy_j - (3.0 + 10.0 + 40.0) / 3.0).abs() < 1e-9);
    assert_eq!(taken.tried.len(), 3);
    let refused = add_skips(&family, &[0.6, 0.6], |_| false);
    assert_eq!(
        (refused.split, refused.exits),
        (Split::None, threshold_exits(&[0.6, 0.6]))
    );
}
