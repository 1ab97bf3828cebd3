use kaskade_policy::profile::{Profile, Validation};
use rand::Rng;

use super::*;
use crate::thresholds::Minimise;

/// Two variants: the first is right with probability `confidence`, or never about class 1, of which its confidence tells nothing.
fn profile(samples: usize, blind_class: bool, seed: u64) -> Profile {
    let mut profile = kaskade_stated::families::t5().profile();
    profile.variants.truncate(2);
    profile.samples = samples;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut columns = [Validation::default(), Validation::default()];
    for _ in 0..samples {
        let confidence = rng.random::<f64>();
        let class = rng.random_range(0..3_u32);
        let blind = blind_class && class == 1;
        let right = rng.random::<f64>() < if blind { 0.1 } else { 0.3 + 0.7 * confidence };
        let answers = [(confidence, right), (0.9, rng.random::<f64>() < 0.9)];
        for (column, (confidence, right)) in columns.iter_mut().zip(answers) {
            column.predictions.push(class);
            column.confidences.push(confidence);
            column.correct.push(right);
        }
    }
    for (variant, column) in profile.variants.iter_mut().zip(columns) {
        variant.validation = column;
    }
    profile
}

fn family(profile: &Profile) -> Family {
    Family::with_observations(profile, 16, Minimise::Energy)
        .unwrap()
        .0
}

#[test]
fn a_class_that_the_confidence_is_blind_to_is_learned() {
    let family = family(&profile(800, true, 1));
    let choices = choose(&family);
    let score = choices[0].score.as_ref().unwrap();
    let reads_class = score
        .terms()
        .any(|term| matches!(term.feature, Feature::Answer(_)));
    assert!(reads_class && !score.reads_earlier(), "{score:?}");
    // On samples that it was not fitted on, half of the escalations by the score correct more than by the confidence.
    let unseen = self::family(&profile(4_000, true, 2));
    let gained = |family: &Family| {
        let column = &family.columns()[0];
        let mut order: Vec<usize> = (0..family.samples()).collect();
        order.sort_by(|a, b| column.confidences[*a].total_cmp(&column.confidences[*b]));
        let wrong = order
            .iter()
            .take(2_000)
            .filter(|sample| !column.correct[**sample]);
        wrong.count()
    };
    let scores: Vec<_> = choices.into_iter().map(|choice| choice.score).collect();
    let (by_score, by_confidence) = (gained(&unseen.scored(&scores)), gained(&unseen));
    assert!(by_score > by_confidence + 100, "{by_score} {by_confidence}");
}

/// Fits to 80,000 samples took most of the time of a certificate.
#[test]
fn scores_are_fitted_on_some_of_many_samples() {
    let family = family(&profile(MAX_SAMPLES + 5_000, true, 1));
    let some = family.of_samples(&drawn(family.samples(), MAX_SAMPLES));
    assert_eq!(some.samples(), MAX_SAMPLES);
    let chosen = choose(&family);
    assert!(chosen[0].score.is_some());
    assert_eq!(chosen, choose(&some));
}

#[test]
fn a_confidence_that_says_all_is_kept() {
    let kept = (0..20).filter(|seed| {
        let family = family(&profile(600, false, 100 + seed));
        scores(&family) == [None]
    });
    // Each candidate passes two standard errors by luck in 2 % of the draws.
    let kept = kept.count();
    assert!(kept >= 17, "{kept} of 20");
}

#[test]
fn nothing_is_fitted_on_few_samples_or_without_answers() {
    let few = family(&profile(99, true, 1));
    assert_eq!(choose(&few), [Choice::default()]);
    let unobserved = family(&profile(800, true, 1)).without_observations();
    assert_eq!(choose(&unobserved), [Choice::default()]);
}

#[test]
fn degenerate_samples_leave_the_confidence() {
    let sound = profile(200, true, 3);
    let with = |change: &dyn Fn(&mut Validation)| {
        let mut profile = sound.clone();
        profile
            .variants
            .iter_mut()
            .for_each(|variant| change(&mut variant.validation));
        scores(&family(&profile))
    };
    let none = vec![None];
    assert_eq!(with(&|answers| answers.correct.fill(true)), none);
    assert_eq!(with(&|answers| answers.correct.fill(false)), none);
    // All confidences equal, and one class: nothing tells samples apart.
    let flat = |answers: &mut Validation| {
        answers.confidences.fill(0.5);
        answers.predictions.fill(0);
    };
    assert_eq!(with(&flat), none);
}

#[test]
fn the_agreement_of_an_earlier_stage_is_learned() {
    let mut profile = kaskade_stated::families::t5().profile();
    profile.variants.truncate(3);
    profile.samples = 800;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut columns = [
        Validation::default(),
        Validation::default(),
        Validation::default(),
    ];
    for _ in 0..800 {
        // The second variant is mostly right where the first agrees; its own confidence tells nothing.
        let agrees = rng.random::<f64>() < 0.5;
        let right = rng.random::<f64>() < if agrees { 0.95 } else { 0.3 };
        let answers = [
            (rng.random::<f64>(), 5, right && agrees),
            (rng.random::<f64>(), if agrees { 5 } else { 6 }, right),
            (0.9, 7, rng.random::<f64>() < 0.95),
        ];
        for (column, (confidence, answer, right)) in columns.iter_mut().zip(answers) {
            column.confidences.push(confidence);
            column.predictions.push(answer);
            column.correct.push(right);
        }
    }
    for (variant, column) in profile.variants.iter_mut().zip(columns) {
        variant.validation = column;
    }
    // The class tells the same here, so it is hidden: more classes than get a term of their own.
    for sample in 0..800_u32 {
        for variant in &mut profile.variants {
            variant.validation.predictions[sample as usize] += 10 * (sample % 40);
        }
    }
    let choices = choose(&family(&profile));
    let score = choices[1].score.as_ref().unwrap();
    assert!(score.reads_earlier(), "{score:?}");
    assert!(
        choices[1]
            .tried
            .iter()
            .any(|tried| tried.candidate == Candidate::Isotonic)
    );
}

#[test]
fn isotonic_regression_rises_and_pools_violators() {
    let mut profile = profile(120, false, 5);
    let answers = &mut profile.variants[0].validation;
    for sample in 0..120_usize {
        answers.confidences[sample] = [0.1, 0.4, 0.6, 0.9][sample % 4];
        // Right in 0, 2/3, 1/3 and all of the cases: the middle two are pooled.
        answers.correct[sample] = match sample % 4 {
            0 => false,
            1 => sample / 4 % 3 > 0,
            2 => (sample / 4).is_multiple_of(3),
            _ => true,
        };
    }
    let family = family(&profile);
    let rows = Rows::at(&family, 0).unwrap();
    let knots = isotonic::fit(&rows).unwrap();
    let found: Vec<(f64, f64)> = knots.iter().map(|knot| (knot.confidence, knot.right)).collect();
    let expected = [(0.1, 0.0), (0.5, 0.5), (0.9, 1.0)];
    assert_eq!(found.len(), 3, "{found:?}");
    for ((a, b), (c, d)) in found.iter().zip(expected) {
        assert!((a - c).abs() < 1e-9 && (b - d).abs() < 1e-9, "{found:?}");
    }
}
