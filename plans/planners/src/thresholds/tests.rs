use proptest::prelude::*;

use super::*;

fn family_of(columns: &[(f64, &[(f64, bool)])]) -> Family {
    let columns = columns
        .iter()
        .enumerate()
        .map(|(index, (energy, answers))| Column {
            name: format!("v{index}"),
            energy_j: *energy,
            confidences: answers.iter().map(|answer| answer.0).collect(),
            correct: answers.iter().map(|answer| answer.1).collect(),
        })
        .collect();
    Family::new(columns).unwrap()
}

/// Ten thousand samples had thousands of points, each evaluated on all of them: planning took minutes.
#[test]
fn a_frontier_has_a_thousand_points_at_most() {
    let places = 0..6_000_u32;
    let small: Vec<(f64, bool)> = places
        .clone()
        .map(|place| (f64::from(place) / 6_000.0, place % 2 == 1))
        .collect();
    let large: Vec<(f64, bool)> = places.map(|_| (0.5, true)).collect();
    let found = frontier(&family_of(&[(1.0, &small), (10.0, &large)]), &Search::default());
    assert_eq!(found.points.len(), MAX_POINTS);
    assert!(!found.exact, "a part of it");
    let accuracy = |point: Option<&Point>| point.unwrap().accuracy;
    assert!((accuracy(found.points.first()) - 0.5).abs() < 1e-9);
    assert!((accuracy(found.points.last()) - 1.0).abs() < 1e-9);
}

/// Every combination of every threshold that could matter.
fn brute_force(family: &Family) -> Vec<(f64, f64)> {
    let mut lists: Vec<Vec<f64>> = vec![vec![]];
    for column in family.columns().iter().take(family.columns().len() - 1) {
        let mut cuts: Vec<f64> = column.confidences.to_vec();
        cuts.extend([0.0, FORWARD_ALL]);
        lists = lists
            .iter()
            .flat_map(|list| cuts.iter().map(move |cut| [list.as_slice(), &[*cut]].concat()))
            .collect();
    }
    let mut all: Vec<(f64, f64)> = lists
        .iter()
        .map(|list| {
            let outcome = evaluate(family, &threshold_exits(list));
            (outcome.accuracy, outcome.energy_j)
        })
        .collect();
    all.sort_by(|a, b| a.1.total_cmp(&b.1).then(b.0.total_cmp(&a.0)));
    let mut frontier: Vec<(f64, f64)> = Vec::new();
    for (accuracy, energy) in all {
        if frontier.last().is_none_or(|last| accuracy > last.0 + 1e-9) {
            // Sums of the same energies in another order may differ in their last bit: the better of two that cost the same counts.
            frontier.pop_if(|last| energy - last.1 < 1e-9);
            frontier.push((accuracy, energy));
        }
    }
    frontier
}

fn arbitrary(
    variants: std::ops::RangeInclusive<usize>,
    samples: std::ops::Range<usize>,
) -> impl Strategy<Value = Family> {
    (variants, samples).prop_flat_map(|(variants, samples)| {
        // Few distinct confidences, so that ties are common.
        let answers = prop::collection::vec((0..=8_u8, any::<bool>()), samples);
        prop::collection::vec((0..20_u8, answers), variants).prop_map(|columns| {
            let columns: Vec<(f64, Vec<(f64, bool)>)> = columns
                .into_iter()
                .map(|(energy, answers)| {
                    let answers = answers
                        .into_iter()
                        .map(|(c, right)| (f64::from(c) / 8.0, right))
                        .collect();
                    (f64::from(energy), answers)
                })
                .collect();
            let borrowed: Vec<(f64, &[(f64, bool)])> =
                columns.iter().map(|(e, a)| (*e, a.as_slice())).collect();
            family_of(&borrowed)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_exact_frontier_is_the_one_of_all_cascades(family in arbitrary(1..=4, 1..9)) {
        let mut front = ParetoFront::new(family.samples(), family.columns().len() - 1);
        let table = Table::new(&family);
        // Alone, without the sampled search's head start.
        prop_assert!(exact::search(&table, u64::MAX, &mut front));
        let alone: Vec<Vec<f64>> = front.cascades().map(|kept| table.thresholds(kept)).collect();
        let found = frontier(&family, &Search::default());
        prop_assert!(found.exact);
        let expected = brute_force(&family);
        for thresholds in [alone, found.points.iter().map(|point| point.thresholds.clone()).collect()] {
            let actual: Vec<(f64, f64)> = thresholds
                .iter()
                .map(|list| evaluate(&family, &threshold_exits(list)))
                .map(|outcome| (outcome.accuracy, outcome.energy_j))
                .collect();
            prop_assert_eq!(actual.len(), expected.len());
            for (a, e) in actual.iter().zip(&expected) {
                prop_assert!((a.0 - e.0).abs() < 1e-9 && (a.1 - e.1).abs() < 1e-9, "{:?} {:?}", actual, expected);
            }
        }
    }

    #[test]
    fn sampled_points_are_real_and_never_beat_the_exact_ones(family in arbitrary(3..=5, 3..10), seed in any::<u64>()) {
        let sampled = frontier(&family, &Search { seed, exact_steps: 0 });
        let exact = frontier(&family, &Search::default());
        for point in &sampled.points {
            let beaten = exact.points.iter().any(|other| other.accuracy >= point.accuracy - 1e-9 && other.energy_j <= point.energy_j + 1e-9);
            prop_assert!(beaten);
        }
    }
}

/// Points have the figures of their thresholds, which are counted while the search goes on.
fn assert_evaluated(family: &Family, point: &Point) {
    let outcome = evaluate(family, &threshold_exits(&point.thresholds));
    let expected = outcome.into_point(point.thresholds.clone());
    assert_eq!(*point, expected);
}

proptest! {
    #[test]
    fn points_have_the_figures_of_their_thresholds(family in arbitrary(1..=5, 1..12), seed in any::<u64>()) {
        for exact_steps in [0, u64::MAX] {
            for point in &frontier(&family, &Search { seed, exact_steps }).points {
                assert_evaluated(&family, point);
            }
        }
    }
}

/// Random cascades of 200,000 samples were tried on all of them: a frontier took ten seconds, and a plan a minute.
#[test]
fn the_search_on_some_of_many_samples_is_refined_on_all() {
    let family = synthetic::family(&[1.0, 1.4, 1.8, 2.2], &[1.0, 4.0, 12.0, 40.0], 3.0, 50_000, 5);
    let search = Search {
        seed: 0,
        exact_steps: 0,
    };
    let found = frontier(&family, &search);
    assert!(found.points.len() > 500);
    for point in found.points.iter().step_by(61) {
        assert_evaluated(&family, point);
    }
    // What random cascades on all samples find.
    let table = Table::new(&family);
    let mut front = ParetoFront::new(family.samples(), 3);
    sampled::search(&table, 0, &mut front);
    let all: Vec<Point> = front
        .cascades()
        .map(|kept| {
            let counts = Counts::of_plain(family.samples(), kept.right, kept.forwarded);
            counts.outcome(&family, Vec::new()).into_point(Vec::new())
        })
        .collect();
    let last = family.accuracy(3);
    let first = all.first().unwrap().accuracy;
    for step in 1..=20 {
        let accuracy = first + (last - first) * f64::from(step) / 20.0;
        let cheapest = |points: &[Point]| {
            let enough = points.iter().find(|point| point.accuracy >= accuracy);
            enough.unwrap().energy_j
        };
        let (some, all) = (cheapest(&found.points), cheapest(&all));
        assert!(some < 1.03 * all, "{accuracy}: {some} {all}");
    }
}

#[test]
fn the_frontier_of_two_variants_is_proven_on_many_samples() {
    let family = synthetic::family(&[1.0, 2.2], &[1.0, 10.0], 3.0, 30_000, 5);
    let mut front = ParetoFront::new(family.samples(), 1);
    assert!(exact::search(
        &Table::new(&family),
        Search::default().exact_steps,
        &mut front
    ));
    let found = frontier(&family, &Search::default());
    let proven: Vec<u32> = front.cascades().map(|kept| kept.right).collect();
    let right = |point: &Point| (point.accuracy * 30_000.0).round() as u32;
    assert!(found.points.iter().all(|point| proven.contains(&right(point))));
}

#[test]
fn equal_confidences_are_never_parted() {
    let family = family_of(&[
        (0.0, &[(0.25, false), (0.25, false)]),
        (1.0, &[(0.0, false), (0.0, false)]),
        (0.0, &[(0.0, true), (0.0, false)]),
    ]);
    for seed in 0..20 {
        let sampled = frontier(&family, &Search { seed, exact_steps: 0 });
        let reached: Vec<&[f64]> = sampled
            .points
            .iter()
            .map(|point| point.reach.as_slice())
            .collect();
        assert_eq!(reached, [&[1.0, 0.0, 0.0], &[1.0, 1.0, 1.0]]);
    }
}
