use proptest::prelude::*;

use super::*;

fn evidence(confidence: f64, answer: u32) -> Evidence {
    Evidence {
        judged: ScoredSample { confidence, answer },
        spread: ClassSpread::from_logits(&[2.0, 1.0, -1.0], 1.0),
        input_bytes: Some(20),
    }
}

fn term(feature: Feature, weight: f64, mean: f64) -> Term {
    Term {
        feature,
        weight,
        mean,
    }
}

fn nowhere(_: &str) -> Option<ScoredSample> {
    None
}

#[test]
fn a_logistic_score_sums_its_terms() {
    let score = DeferralScore::Logistic {
        right: Linear {
            intercept: 0.5,
            terms: vec![
                term(Feature::Confidence, 2.0, 1.0),
                term(Feature::Answer(3), 1.5, 0.25),
                term(Feature::Support("tiny".to_owned()), 1.0, 0.0),
            ],
        },
    };
    let earlier = |name: &str| {
        assert_eq!(name, "tiny");
        Some(ScoredSample {
            confidence: 0.75,
            answer: 7,
        })
    };
    let odds = 0.5 + 2.0 * (9.0_f64.ln() - 1.0) + 1.5 * 0.75 - 3.0_f64.ln();
    let found = score.evaluate(&evidence(0.9, 3), earlier);
    assert!((found - sigmoid(odds)).abs() < 1e-12, "{found}");
    // A stage that was not passed counts as average.
    let odds = odds + 3.0_f64.ln();
    assert!((score.evaluate(&evidence(0.9, 3), nowhere) - sigmoid(odds)).abs() < 1e-12);
    assert!(score.reads_earlier());
}

#[test]
fn a_benefit_is_high_where_escalation_helps_little() {
    let flat = |intercept| Linear {
        intercept,
        terms: Vec::new(),
    };
    let benefit = |rescue: f64, harm: f64| DeferralScore::Benefit {
        rescue: flat(log_odds(rescue)),
        harm: flat(log_odds(harm)),
    };
    let of = |rescue, harm| benefit(rescue, harm).evaluate(&evidence(0.5, 0), nowhere);
    assert!((of(0.4, 0.1) - 0.35).abs() < 1e-9);
    assert!((of(0.1, 0.1) - 0.5).abs() < 1e-9);
    assert!((of(0.0, 0.5) - 0.75).abs() < 1e-5);
}

#[test]
fn an_isotonic_score_is_a_line_between_knots() {
    let knot = |confidence, right| Knot { confidence, right };
    let score = DeferralScore::Isotonic {
        knots: vec![knot(0.2, 0.1), knot(0.6, 0.5)],
    };
    let of = |confidence| score.evaluate(&evidence(confidence, 0), nowhere);
    assert_eq!((of(0.0), of(0.2), of(1.0)), (0.1, 0.1, 0.5));
    assert!((of(0.4) - 0.3).abs() < 1e-12);
}

#[test]
fn margin_and_entropy_are_those_of_the_softmax() {
    let spread = ClassSpread::from_logits(&[0.0, 0.0], 1.0).unwrap();
    assert!(spread.margin.abs() < 1e-12 && (spread.entropy - 1.0).abs() < 1e-12);
    let logits = [3.0_f64, 1.0, 0.0].map(|z| (z / 2.0).exp());
    let total: f64 = logits.iter().sum();
    let shares = logits.map(|z| z / total);
    let spread = ClassSpread::from_logits(&[3.0, 1.0, 0.0], 2.0).unwrap();
    assert!((spread.margin - (shares[0] - shares[1])).abs() < 1e-9);
    let entropy: f64 = -shares.iter().map(|p| p * p.ln()).sum::<f64>() / 3.0_f64.ln();
    assert!((spread.entropy - entropy).abs() < 1e-9);
    assert_eq!(ClassSpread::from_logits(&[1.0], 1.0), None);
    assert_eq!(ClassSpread::from_logits(&[1.0, f32::NAN], 1.0), None);
    assert_eq!(ClassSpread::from_logits(&[1.0, 0.0], 0.0), None);
}

fn arbitrary() -> impl Strategy<Value = DeferralScore> {
    let feature = prop_oneof![
        Just(Feature::Confidence),
        Just(Feature::Margin),
        Just(Feature::Entropy),
        Just(Feature::Length),
        (0_u32..4).prop_map(Feature::Answer),
        Just(Feature::EarlierConfidence("a".to_owned())),
        Just(Feature::Agrees("a".to_owned())),
        Just(Feature::Support("b".to_owned())),
    ];
    let terms = prop::collection::vec((feature, -50.0..50.0_f64, -5.0..5.0_f64), 0..6);
    let linear = (-9.0..9.0_f64, terms).prop_map(|(intercept, terms)| Linear {
        intercept,
        terms: terms
            .into_iter()
            .map(|(feature, weight, mean)| term(feature, weight, mean))
            .collect(),
    });
    prop_oneof![
        (0.0..9.0_f64, -9.0..9.0_f64)
            .prop_map(|(slope, intercept)| DeferralScore::Platt { slope, intercept }),
        linear.clone().prop_map(|right| DeferralScore::Logistic { right }),
        (linear.clone(), linear).prop_map(|(rescue, harm)| DeferralScore::Benefit { rescue, harm }),
    ]
}

proptest! {
    #[test]
    fn every_score_is_in_the_unit_interval(score in arbitrary(), confidence in 0.0..=1.0_f64, other in 0.0..=1.0_f64, answer in 0_u32..4) {
        let earlier = |_: &str| Some(ScoredSample { confidence: other, answer: 2 });
        let value = score.evaluate(&evidence(confidence, answer), earlier);
        prop_assert!((0.0..=1.0).contains(&value), "{value}");
    }

    #[test]
    fn a_score_survives_the_file(score in arbitrary()) {
        let read: DeferralScore = serde_json::from_str(&serde_json::to_string(&score).unwrap()).unwrap();
        // A number may change in its last place.
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let (a, b) = (read.evaluate(&evidence(0.3, 1), nowhere), score.evaluate(&evidence(0.3, 1), nowhere));
        prop_assert!(close(a, b) && read.terms().count() == score.terms().count());
    }
}
