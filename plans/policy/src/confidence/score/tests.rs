use proptest::prelude::*;

use super::*;

const SQUARED: Calibration = Calibration::uncalibrated(Estimator::MaxSquared);

fn by(estimator: Estimator, temperature: f64) -> Calibration {
    Calibration {
        estimator,
        temperature,
    }
}

fn close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 1e-9, "{actual} is not {expected}");
}

#[test]
fn squares_the_largest_probability() {
    let z = [1.0_f32, 2.0, 3.0];
    let p = 1.0 / (1.0 + (-1.0_f64).exp() + (-2.0_f64).exp());
    close(SQUARED.confidence(&Scores::Logits(&z)).unwrap(), p * p);
    close(SQUARED.probability(&Scores::Logits(&z)).unwrap(), p);
}

#[test]
fn divides_by_the_temperature() {
    let p = 1.0 / (1.0 + (-0.5_f64).exp());
    let warm = by(Estimator::MaxSquared, 2.0);
    close(warm.confidence(&Scores::Logits(&[0.0, 1.0])).unwrap(), p * p);
}

#[test]
fn takes_the_margin_of_the_first_two() {
    let margin = by(Estimator::Margin, 1.0);
    close(
        margin
            .confidence(&Scores::Probabilities(&[0.25, 0.625, 0.125]))
            .unwrap(),
        0.375,
    );
    close(margin.confidence(&Scores::Logits(&[2.0, 2.0])).unwrap(), 0.0);
}

#[test]
fn reads_probabilities_with_zeros() {
    close(
        SQUARED.confidence(&Scores::Probabilities(&[0.0, 1.0])).unwrap(),
        1.0,
    );
    let cold = by(Estimator::MaxSquared, 0.1);
    assert!(cold.confidence(&Scores::Probabilities(&[0.0, 0.4, 0.6])).unwrap() > 0.9);
}

#[test]
fn takes_the_weaker_end_of_a_span() {
    let span = by(Estimator::Span, 1.0);
    let sure = [9.0_f32, 0.0, 0.0];
    let unsure = [0.0_f32, 0.0, 0.0];
    let both = Scores::Span {
        start: &sure,
        end: &unsure,
    };
    close(span.confidence(&both).unwrap(), 1.0 / 9.0);
    let ragged = Scores::Span {
        start: &sure,
        end: &unsure[..2],
    };
    assert!(matches!(
        span.confidence(&ragged),
        Err(ConfidenceError::Ragged { .. })
    ));
}

#[test]
fn takes_the_least_sure_token_over_the_k_strongest() {
    let top = by(Estimator::TopK { k: 2 }, 1.0);
    let logits = [5.0_f32, 5.0, -9.0, 1.0, 9.0, 1.0];
    let tokens = Scores::Tokens {
        logits: &logits,
        vocabulary: 3,
    };
    close(top.confidence(&tokens).unwrap(), 0.25);
    let ragged = Scores::Tokens {
        logits: &logits,
        vocabulary: 4,
    };
    assert!(matches!(
        top.confidence(&ragged),
        Err(ConfidenceError::Ragged { .. })
    ));
    let none = Scores::Tokens {
        logits: &logits,
        vocabulary: 0,
    };
    assert!(matches!(
        top.confidence(&none),
        Err(ConfidenceError::Ragged { .. })
    ));
}

#[test]
fn refuses_what_has_no_confidence() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for scores in [[0.0, bad], [bad, bad], [bad, 1.0]] {
            let error = SQUARED.confidence(&Scores::Logits(&scores)).unwrap_err();
            assert!(matches!(error, ConfidenceError::NotFinite { .. }), "{error}");
            assert!(SQUARED.confidence(&Scores::Probabilities(&scores)).is_err());
        }
    }
    assert_eq!(
        SQUARED.confidence(&Scores::Logits(&[])),
        Err(ConfidenceError::Empty)
    );
    assert_eq!(
        SQUARED.confidence(&Scores::Logits(&[4.0])),
        Err(ConfidenceError::OneClass)
    );
    assert!(SQUARED.confidence(&Scores::Given(0.5)).is_err());
    assert!(SQUARED.confidence(&Scores::Probabilities(&[0.9, 0.9])).is_err());
    assert!(SQUARED.confidence(&Scores::Probabilities(&[-0.5, 1.5])).is_err());
    for given in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
        assert!(
            by(Estimator::Given, 1.0)
                .confidence(&Scores::Given(given))
                .is_err()
        );
    }
    for temperature in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(
            by(Estimator::MaxSquared, temperature)
                .confidence(&Scores::Logits(&[0.0, 1.0]))
                .is_err()
        );
    }
    assert!(
        by(Estimator::TopK { k: 1 }, 1.0)
            .confidence(&Scores::Logits(&[0.0, 1.0]))
            .is_err()
    );
}

proptest! {
    #[test]
    fn is_always_in_the_unit_interval(
        z in prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 2..40),
        temperature in 1e-3..1e3_f64,
        k in 2..50_u32,
    ) {
        for estimator in [Estimator::MaxSquared, Estimator::Margin, Estimator::TopK { k }] {
            let calibration = by(estimator, temperature);
            for value in [calibration.confidence(&Scores::Logits(&z)), calibration.probability(&Scores::Logits(&z))] {
                let value = value.unwrap();
                prop_assert!((0.0..=1.0).contains(&value), "{estimator:?} gave {value}");
            }
        }
    }

    #[test]
    fn on_the_stack_or_on_the_heap_the_top_k_are_the_same(
        z in prop::collection::vec(-20.0..20.0_f32, 80..200),
        k in 2..160_u32,
    ) {
        let mut sorted = z.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        sorted.truncate(k as usize);
        let expected = SQUARED.confidence(&Scores::Logits(&sorted)).unwrap();
        let actual = by(Estimator::TopK { k }, 1.0).confidence(&Scores::Logits(&z)).unwrap();
        prop_assert!((actual - expected).abs() < 1e-9);
    }

    #[test]
    fn a_shift_of_all_logits_changes_nothing(z in prop::collection::vec(-20.0..20.0_f32, 2..20), shift in -64_i8..64) {
        let shifted: Vec<f32> = z.iter().map(|z| z + f32::from(shift)).collect();
        let a = SQUARED.confidence(&Scores::Logits(&z)).unwrap();
        let b = SQUARED.confidence(&Scores::Logits(&shifted)).unwrap();
        prop_assert!((a - b).abs() < 1e-4);
    }
}
