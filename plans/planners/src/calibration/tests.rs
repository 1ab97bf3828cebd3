use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Rows of logits whose truth is drawn from their softmax at this temperature.
fn drawn(samples: usize, classes: usize, temperature: f64, seed: u64) -> Vec<(Vec<f32>, usize)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..samples)
        .map(|_| {
            let logits: Vec<f32> = (0..classes).map(|_| rng.random_range(-6.0..6.0)).collect();
            let weights: Vec<f64> = logits
                .iter()
                .map(|z| (f64::from(*z) / temperature).exp())
                .collect();
            let mut left = rng.random_range(0.0..weights.iter().sum());
            let truth = weights.iter().position(|weight| {
                left -= weight;
                left <= 0.0
            });
            (logits, truth.unwrap_or(classes - 1))
        })
        .collect()
}

fn classes(rows: &[(Vec<f32>, usize)]) -> Vec<Labelled<'_>> {
    rows.iter()
        .map(|(logits, class)| Labelled {
            scores: Scores::Logits(logits),
            label: Label::Class(*class),
        })
        .collect()
}

#[test]
fn finds_the_temperature_that_the_truth_was_drawn_with() {
    for temperature in [0.5, 1.0, 3.0] {
        let rows = drawn(8_000, 5, temperature, 1);
        let fit = fit_temperature(&classes(&rows)).unwrap();
        assert!(
            (fit.temperature / temperature - 1.0).abs() < 0.06,
            "{temperature}: {fit:?}"
        );
        assert!(fit.nll.after <= fit.nll.before);
    }
}

#[test]
fn the_calibration_error_shrinks_on_an_overconfident_model() {
    let rows = drawn(8_000, 5, 3.0, 2);
    let calibrated = calibrate(Estimator::MaxSquared, &classes(&rows)).unwrap();
    assert!(calibrated.ece.before > 0.15, "{:?}", calibrated.ece);
    assert!(calibrated.ece.after < 0.03, "{:?}", calibrated.ece);
    let right = rows.iter().map(|(z, class)| argmax(z) == Some(*class));
    assert!(right.eq(calibrated.correct));
}

#[test]
fn spans_and_tokens_share_one_temperature_over_their_choices() {
    let rows = drawn(8_000, 6, 2.0, 3);
    let by_class = fit_temperature(&classes(&rows)).unwrap().temperature;
    let spans: Vec<_> = rows
        .chunks_exact(2)
        .map(|pair| Labelled {
            scores: Scores::Span {
                start: &pair[0].0,
                end: &pair[1].0,
            },
            label: Label::Span {
                start: pair[0].1,
                end: pair[1].1,
            },
        })
        .collect();
    let flat: Vec<(Vec<f32>, Vec<usize>)> = rows
        .chunks_exact(4)
        .map(|four| {
            (
                four.iter().flat_map(|row| row.0.clone()).collect(),
                four.iter().map(|row| row.1).collect(),
            )
        })
        .collect();
    let tokens: Vec<_> = flat
        .iter()
        .map(|(logits, label)| Labelled {
            scores: Scores::Tokens {
                logits,
                vocabulary: 6,
            },
            label: Label::Tokens(label),
        })
        .collect();
    for samples in [&spans, &tokens] {
        let fit = fit_temperature(samples).unwrap();
        assert!((fit.temperature / by_class - 1.0).abs() < 1e-6);
    }
    assert!(calibrate(Estimator::Span, &spans).unwrap().ece.after < 0.05);
    assert!(calibrate(Estimator::TopK { k: 4 }, &tokens).unwrap().ece.after < 0.05);
}

#[test]
fn a_set_without_a_mistake_keeps_confidences_apart() {
    let rows: Vec<_> = (0..500_u16)
        .map(|i| (vec![0.0, 1.0 + f32::from(i) / 100.0], 1))
        .collect();
    let calibrated = calibrate(Estimator::MaxSquared, &classes(&rows)).unwrap();
    assert!(calibrated.calibration.temperature < 1.0);
    let distinct = calibrated
        .confidences
        .windows(2)
        .filter(|pair| pair[0] < pair[1])
        .count();
    assert!(
        distinct > 300,
        "{distinct} of 499 at T = {}",
        calibrated.calibration.temperature
    );
}

#[test]
fn a_model_that_knows_nothing_becomes_unsure() {
    let rows: Vec<_> = (0..1_000)
        .map(|i| (vec![8.0, 0.0], usize::from(i % 2 == 0)))
        .collect();
    let calibrated = calibrate(Estimator::MaxSquared, &classes(&rows)).unwrap();
    assert!(calibrated.calibration.temperature > 20.0);
    assert!(calibrated.confidences.iter().all(|confidence| *confidence < 0.35));
}

#[test]
fn a_given_confidence_is_taken_as_it_is() {
    let samples: Vec<_> = [(0.9, true), (0.8, false)]
        .map(|(value, right)| Labelled {
            scores: Scores::Given(value),
            label: Label::Correct(right),
        })
        .to_vec();
    let calibrated = calibrate(Estimator::Given, &samples).unwrap();
    assert_eq!(calibrated.confidences, [0.9, 0.8]);
    assert_eq!((calibrated.calibration.temperature, calibrated.nll), (1.0, None));
}

#[test]
fn probabilities_fit_as_their_logits_do() {
    let rows = drawn(2_000, 4, 2.0, 5);
    let softmaxed: Vec<(Vec<f32>, usize)> = rows
        .iter()
        .map(|(z, class)| {
            let total: f32 = z.iter().map(|z| z.exp()).sum();
            (z.iter().map(|z| z.exp() / total).collect(), *class)
        })
        .collect();
    let samples: Vec<_> = softmaxed
        .iter()
        .map(|(p, class)| Labelled {
            scores: Scores::Probabilities(p),
            label: Label::Class(*class),
        })
        .collect();
    let by_logits = fit_temperature(&classes(&rows)).unwrap().temperature;
    let by_probabilities = fit_temperature(&samples).unwrap().temperature;
    assert!((by_logits / by_probabilities - 1.0).abs() < 1e-4);
}

#[test]
fn unusable_samples_are_named() {
    assert_eq!(fit_temperature(&[]), Err(ConfidenceError::Empty));
    let good = Labelled {
        scores: Scores::Logits(&[0.0, 1.0]),
        label: Label::Class(1),
    };
    let nan = Labelled {
        scores: Scores::Logits(&[0.0, f32::NAN]),
        label: Label::Class(1),
    };
    let beyond = Labelled {
        label: Label::Class(2),
        ..good
    };
    let other = Labelled {
        label: Label::Tokens(&[0]),
        ..good
    };
    assert!(matches!(
        fit_temperature(&[good, nan]),
        Err(ConfidenceError::BadSample { sample: 1, .. })
    ));
    assert!(matches!(
        fit_temperature(&[good, beyond]),
        Err(ConfidenceError::BadLabel { sample: 1, .. })
    ));
    assert!(matches!(
        calibrate(Estimator::MaxSquared, &[other]),
        Err(ConfidenceError::BadLabel { sample: 0, .. })
    ));
    assert!(calibrate(Estimator::Span, &[good]).is_err());
}

#[test]
fn the_calibration_error_is_the_gap_between_stated_and_right() {
    assert!((expected_calibration_error(&[1.0, 1.0], &[true, false], 10).unwrap() - 0.5).abs() < 1e-12);
    assert!(expected_calibration_error(&[0.0, 1.0], &[false, true], 10).unwrap() < 1e-12);
    let mixed =
        expected_calibration_error(&[0.95, 0.95, 0.15, 0.15], &[true, true, true, false], 10).unwrap();
    assert!((mixed - (0.5 * 0.05 + 0.5 * 0.35)).abs() < 1e-12);
    assert!(
        expected_calibration_error(&[], &[], 10).is_err()
            && expected_calibration_error(&[0.5], &[true], 0).is_err()
    );
    assert!(
        expected_calibration_error(&[0.5], &[], 10).is_err()
            && expected_calibration_error(&[f64::NAN], &[true], 10).is_err()
    );
}

proptest! {
    #[test]
    fn a_fit_never_changes_a_prediction_and_never_worsens_the_likelihood(
        rows in prop::collection::vec((prop::collection::vec(-30.0..30.0_f32, 3..8), 0..3_usize), 1..40),
    ) {
        let samples = classes(&rows);
        let fit = fit_temperature(&samples).unwrap();
        prop_assert!(fit.temperature.is_finite() && fit.temperature > 0.0);
        prop_assert!(fit.nll.after <= fit.nll.before + 1e-9);
        let calibration = Calibration { estimator: Estimator::MaxSquared, temperature: fit.temperature };
        for (z, _) in &rows {
            let scaled: Vec<f64> = z.iter().map(|z| f64::from(*z) / fit.temperature).collect();
            let best = (0..z.len()).max_by(|a, b| scaled[*a].total_cmp(&scaled[*b]).then(b.cmp(a)));
            prop_assert_eq!(argmax(z), best);
            // What a caller sees of it: the order of two replies' classes is untouched, so the stated probability is that
            // of the class which was the strongest before.
            let p = calibration.probability(&Scores::Logits(z)).unwrap();
            prop_assert!(p >= 1.0 / z.len() as f64 - 1e-12);
        }
    }

    #[test]
    fn no_other_temperature_is_likelier(
        rows in prop::collection::vec((prop::collection::vec(-9.0..9.0_f32, 4), 0..4_usize), 2..30),
        other in -3.0..3.0_f64,
    ) {
        let samples = classes(&rows);
        let choices = choices(&samples).unwrap();
        let loss = |b: f64| choices.iter().map(|choice| choice.at(b).nll).sum::<f64>() + b - 1.0 - b.ln();
        let fitted = likeliest(&choices);
        prop_assert!(loss(fitted) <= loss(other.exp()) + 1e-7);
    }
}
