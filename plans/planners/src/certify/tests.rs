use super::sample_split::shuffled;
use super::*;
use crate::thresholds::{Search, synthetic};

const ENERGIES: [f64; 4] = [1.0, 4.0, 12.0, 40.0];

fn family(samples: usize, seed: u64) -> Family {
    synthetic::family(&[1.0, 1.6, 2.2, 2.6], &ENERGIES, 4.0, samples, seed)
}

fn search(seed: u64) -> Search {
    Search {
        seed,
        exact_steps: 200_000,
    }
}

fn max_loss(loss: f64) -> CertifyOptions {
    CertifyOptions::new(AccuracyTarget::MaxLoss { loss })
}

#[test]
fn a_certified_cascade_is_cheaper_and_says_what_was_counted() {
    let family = family(4_000, 1);
    let certified = certify(&family, &max_loss(0.02), true).unwrap();
    let Certificate {
        samples,
        lost,
        gained,
        p_value,
        ..
    } = certified.certificate;
    assert_eq!(samples, 2_400);
    assert!(p_value <= 0.05);
    let largest = certified.certification.columns().last().unwrap();
    let difference = certified.outcome.accuracy - count(&largest.correct) as f64 / 2_400.0;
    let counted = (gained.unwrap() as f64 - lost.unwrap() as f64) / 2_400.0;
    assert!((difference - counted).abs() < 1e-12);
    assert!(
        certified.outcome.energy_j < 20.0,
        "{}",
        certified.outcome.energy_j
    );
    assert!(certified.tested.passed >= 2);
}

#[test]
fn the_same_samples_certify_the_same_cascade() {
    let family = family(1_500, 2);
    let certify = || certify(&family, &max_loss(0.05), true).unwrap();
    assert_eq!(certify(), certify());
}

#[test]
fn too_few_samples_are_refused_with_the_number_that_would_do() {
    let refused = certify(&family(300, 1), &max_loss(0.01), true).unwrap_err();
    let CertifyError::TooFewSamples { samples, needed } = refused else {
        panic!("{refused}");
    };
    assert_eq!(samples, 300);
    assert!((498..=700).contains(&needed), "{needed}");
    assert!(certify(&family(needed, 1), &max_loss(0.01), true).is_ok());
}

/// A cascade whose estimated loss is just below the allowed one needed millions of samples.
#[test]
fn the_samples_that_the_next_cascade_needs_are_a_number_that_the_estimate_supports() {
    let mut stated = 0;
    for seed in 0..60 {
        let certified = certify(&family(800, seed), &max_loss(0.03), true);
        if let Some(needed) = certified.ok().and_then(|certified| certified.tested.next_needs) {
            assert!((801..=16_000).contains(&needed), "{seed}: {needed}");
            stated += 1;
        }
    }
    assert!(stated > 5, "{stated}");
}

#[test]
fn an_accuracy_target_is_certified_or_out_of_reach() {
    let family = family(3_000, 5);
    let ask = |accuracy| {
        let options = CertifyOptions::new(AccuracyTarget::MinAccuracy { accuracy });
        certify(&family, &options, true)
    };
    let largest = family.accuracy(3);
    let reached = ask(largest - 0.05).unwrap();
    assert!(reached.outcome.energy_j < 20.0);
    assert_eq!(reached.certificate.lost, None);
    let refused = ask(largest + 0.01).unwrap_err();
    assert!(
        matches!(
            refused,
            CertifyError::OutOfReach {
                samples: 1_800,
                needed: None,
                ..
            }
        ),
        "{refused}"
    );
    // More samples do not help a variant that is less accurate than asked for.
    assert!(!refused.to_string().contains("more samples"), "{refused}");
}

#[test]
fn an_accuracy_that_is_not_proven_yet_says_how_many_samples_would_do() {
    let mut named = 0;
    for seed in 0..20 {
        let family = family(300, seed);
        let accuracy = family.accuracy(3) - 0.02;
        let options = CertifyOptions::new(AccuracyTarget::MinAccuracy { accuracy });
        let Err(refused) = certify(&family, &options, true) else {
            continue;
        };
        if let CertifyError::OutOfReach {
            needed: Some(needed), ..
        } = refused
        {
            assert!((301..=6_000).contains(&needed), "{seed}: {needed}");
            assert!(
                refused
                    .to_string()
                    .contains(&format!("about {needed} validation samples"))
            );
            named += 1;
        }
    }
    assert!(named > 3, "{named}");
}

/// A larger model that is worse ended the search, with the advice to add a larger one.
#[test]
fn a_variant_that_is_better_than_the_largest_is_named() {
    let family = synthetic::family(&[1.0, 3.0, 1.0], &[1.0, 4.0, 12.0], 4.0, 2_000, 5);
    let options = CertifyOptions::new(AccuracyTarget::MinAccuracy { accuracy: 0.9 });
    assert!(family.accuracy(1) > 0.95 && family.accuracy(2) < 0.85);
    let refused = certify(&family, &options, true).unwrap_err().to_string();
    assert!(
        refused.contains("selection samples `v1` answers")
            && refused.contains("without the variants after `v1`"),
        "{refused}"
    );
    let without = certify(&family.of_variants(&["v0", "v1"]), &options, true);
    assert!(without.is_ok());
    // With too few samples for any proof, more of them are no advice.
    let few = family.of_samples(&(0..60).collect::<Vec<_>>());
    let options = CertifyOptions::new(AccuracyTarget::MinAccuracy { accuracy: 0.99 });
    let refused = certify(&few, &options, true).unwrap_err();
    assert!(matches!(refused, CertifyError::OutOfReach { .. }), "{refused}");
}

/// A local model costs no money beside a paid one. The ratio of the steps was that to a cost of 0: of the cascades between, none was tested.
#[test]
fn a_variant_that_costs_nothing_is_worth_as_much_as_one_that_costs_little() {
    let certified = |cost: f64| {
        let energies = [cost, 4.0, 12.0, 40.0];
        let family = synthetic::family(&[1.0, 1.6, 2.2, 2.6], &energies, 4.0, 4_000, 1);
        certify(&family, &max_loss(0.02), true).unwrap()
    };
    let (free, cheap) = (certified(0.0), certified(0.01));
    assert!(free.tested.candidates > 20, "{:?}", free.tested);
    assert!(
        free.outcome.energy_j < 1.1 * cheap.outcome.energy_j,
        "{} {}",
        free.outcome.energy_j,
        cheap.outcome.energy_j
    );
    let all_free = synthetic::family(&[1.0, 1.6], &[0.0, 0.0], 4.0, 4_000, 1);
    assert!(
        certify(&all_free, &max_loss(0.02), true)
            .unwrap()
            .cascade
            .is_largest_alone
    );
}

/// At a least accuracy that the largest variant just misses, the probability to certify it is summed over all outcomes, with masses that are
/// computed by a recurrence of their own. Nothing is certified where the largest variant alone is not, so that bounds every wrong certificate there.
#[test]
fn a_least_accuracy_that_is_just_missed_is_certified_at_most_at_the_level() {
    let mut closest = 0.0_f64;
    for samples in [60_usize, 240, 720, 2_400] {
        for accuracy in [0.8, 0.9, 0.947, 0.98] {
            let options = CertifyOptions::new(AccuracyTarget::MinAccuracy { accuracy });
            let passes = |right: usize| {
                let column = crate::thresholds::Column {
                    name: "only".to_owned(),
                    energy_j: 1.0,
                    confidences: vec![1.0; samples].into(),
                    correct: (0..samples).map(|sample| sample < right).collect(),
                };
                let family = Family::new(vec![column]).unwrap();
                let alone = sequence::candidates(&family, options.target, samples, false);
                let outcome = alone[0].outcome(&family);
                Judge::new(&family, &options).test(&alone[0], &outcome).is_some()
            };
            // The mass of no wrong answer, then of one more each.
            let (mut mass, mut certified) = (accuracy.powi(i32::try_from(samples).unwrap()), 0.0);
            for wrong in 0..samples {
                if !passes(samples - wrong) {
                    break;
                }
                certified += mass;
                mass *= (samples - wrong) as f64 / (wrong + 1) as f64 * (1.0 - accuracy) / accuracy;
            }
            assert!(certified <= 0.05 + 1e-9, "{samples} {accuracy}: {certified}");
            closest = closest.max(certified);
        }
    }
    assert!(closest > 0.04, "the test has no power: {closest}");
}

#[test]
fn values_outside_their_range_are_named() {
    let family = family(100, 1);
    for loss in [0.0, 1.0, -0.1, f64::NAN] {
        let refused = certify(&family, &max_loss(loss), true).unwrap_err();
        assert!(
            refused.to_string().starts_with("the largest loss is"),
            "{refused}"
        );
    }
    let options = CertifyOptions {
        confidence: 1.0,
        ..max_loss(0.1)
    };
    assert!(certify(&family, &options, true).is_err());
}

#[test]
fn normal_quantiles_are_those_of_a_table() {
    for (probability, quantile) in [(0.95, 1.644_85), (0.99, 2.326_35), (0.9, 1.281_55), (0.5, 0.0)] {
        assert!(
            (normal_quantile(probability) - quantile).abs() < 1e-3,
            "{probability}"
        );
    }
}

/// On validation sets drawn anew, a certificate is wrong in at most 5 % of them: the loss is measured on a large unseen set.
#[test]
fn certificates_hold_on_unseen_samples() {
    let unseen = family(30_000, 99);
    let trials = 60_u32;
    let (mut wrong, mut cheaper) = (0_u32, 0_u32);
    for seed in 0..u64::from(trials) {
        let seen = family(700, 1_000 + seed);
        let certified = certify(&seen, &max_loss(0.03), true).unwrap();
        let outcome = certified.cascade.outcome(&unseen);
        wrong += u32::from(unseen.accuracy(3) - outcome.accuracy > 0.03);
        cheaper += u32::from(outcome.energy_j < 36.0);
    }
    // 5 % of 60 is 3; 8 is three standard errors above.
    assert!(wrong <= 8, "{wrong} of {trials}");
    assert!(cheaper > trials / 3, "{cheaper} of {trials}");
}

/// By counts, the best of thousands of cascades is a lucky one, and three of four draws of 400 samples certified nothing cheaper.
#[test]
fn few_samples_certify_more_than_the_largest_variant() {
    let drawn = |seed| synthetic::family(&[1.0, 1.5, 2.0, 2.5], &ENERGIES, 3.0, 400, seed);
    let cheaper = (0..20).filter(|seed| {
        let certified = certify(&drawn(*seed), &max_loss(0.02), true).unwrap();
        certified.outcome.energy_j < 0.9 * ENERGIES[3]
    });
    let cheaper = cheaper.count();
    assert!(cheaper >= 15, "{cheaper}");
}

/// The mean of held-out estimates over many validation sets is what the chosen cascades do on unseen samples; the in-sample one is more.
#[test]
fn held_out_estimates_are_not_too_high() {
    use crate::thresholds::{Baseline, NonInferiorityTest, accuracy_preserving, frontier, threshold_exits};
    let unseen = family(20_000, 77);
    let choose = |seen: &Family| {
        let found = frontier(seen, &search(0));
        let best = Baseline::new(seen, seen.best());
        let point = accuracy_preserving(seen, &found, &best, NonInferiorityTest::None)?;
        Some(threshold_exits(&point.thresholds))
    };
    let (mut estimated, mut in_sample, mut real) = (0.0, 0.0, 0.0);
    let trials = 24;
    for seed in 0..trials {
        let seen = family(500, 3_000 + seed);
        let exits = choose(&seen).unwrap();
        estimated += held_out(&seen, choose).unwrap().difference;
        in_sample += crate::thresholds::evaluate(&seen, &exits).accuracy - seen.accuracy(3);
        real += crate::thresholds::evaluate(&unseen, &exits).accuracy - unseen.accuracy(3);
    }
    let mean = |sum: f64| sum / trials as f64;
    assert!(
        mean(in_sample) > mean(real) + 0.004,
        "{} {}",
        mean(in_sample),
        mean(real)
    );
    assert!(
        (mean(estimated) - mean(real)).abs() < 0.006,
        "{} {}",
        mean(estimated),
        mean(real)
    );
    assert!(held_out(&family(8, 1), choose).is_none());
}

#[test]
fn the_split_is_always_the_same() {
    // The Python package fits calibrations on the same indices: `test_the_selection_part_is_the_planners`.
    assert_eq!(shuffled(12), [11, 2, 7, 4, 0, 1, 9, 3, 10, 6, 8, 5]);
    let indices = shuffled(3000);
    let sum: usize = indices
        .iter()
        .enumerate()
        .map(|(position, index)| position * index)
        .sum();
    assert_eq!(sum, 6_812_777_191);
    let sizes = [0, 1, 2, 500].map(|samples| split_samples(samples).selection.len());
    assert_eq!(sizes, [0, 1, 1, 200]);
}
