use super::*;
use crate::thresholds::{Paired, evaluate, synthetic, threshold_exits};

const ENERGIES: [f64; 3] = [1.0, 4.0, 12.0];

fn family(samples: usize, seed: u64) -> Family {
    synthetic::family(&[1.0, 1.6, 2.2], &ENERGIES, 4.0, samples, seed)
}

#[test]
fn costs_are_counted_and_losses_are_near_those_of_unseen_samples() {
    let (seen, unseen) = (family(2_000, 1), family(100_000, 2));
    let found = forecasts(&seen, Against::Largest(&seen.columns()[2]));
    assert!(found.len() > 1_000);
    let (mut far, mut difference, mut judged) = (0.0_f64, 0.0, 0.0);
    for forecast in found.iter().step_by(37) {
        let exits = threshold_exits(&forecast.thresholds);
        assert!((evaluate(&seen, &exits).energy_j - forecast.cost).abs() < 1e-9);
        let outcome = evaluate(&unseen, &exits);
        let paired = Paired::new(&outcome.correct, &unseen.columns()[2].correct);
        let shares = [paired.lost, paired.gained].map(|count| count as f64 / 100_000.0);
        far = far.max((shares[0] - forecast.lost).abs());
        difference += shares[0] - shares[1] - forecast.lost + forecast.gained;
        judged += 1.0;
    }
    // The curves ignore what a sample has passed before.
    assert!(far < 0.025, "{far}");
    assert!((difference / judged).abs() < 0.01, "{difference} of {judged}");
}

#[test]
fn against_the_truth_the_loss_is_the_share_of_wrong_answers() {
    let seen = family(3_000, 3);
    let alone = forecasts(&seen.of_variants(&["v1"]), Against::Truth);
    assert_eq!(alone.len(), 1);
    assert!(alone[0].thresholds.is_empty() && alone[0].gained == 0.0);
    assert!((1.0 - alone[0].lost - seen.accuracy(1)).abs() < 1e-3, "{alone:?}");
}

#[test]
fn equal_confidences_are_not_parted_and_an_event_never_seen_may_happen() {
    let column = |name: &str, confidences: Vec<f64>| Column {
        name: name.to_owned(),
        energy_j: 1.0,
        correct: vec![true; confidences.len()].into(),
        confidences: confidences.into(),
    };
    let family = Family::new(vec![
        column("a", vec![0.5, 0.5, 0.9, 0.9]),
        column("b", vec![0.5; 4]),
        column("c", vec![0.5; 4]),
    ])
    .unwrap();
    let found = forecasts(&family, Against::Truth);
    // `b` has one confidence and can part nothing.
    assert!(found.is_empty());
    let found = forecasts(&family.of_variants(&["a", "b"]), Against::Truth);
    assert_eq!(found.len(), 1);
    assert!(found[0].thresholds[0] > 0.5 && found[0].thresholds[0] <= 0.9);
    assert!(found[0].lost > 0.08 && found[0].lost <= 0.1, "{found:?}");
}
