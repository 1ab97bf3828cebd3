//! Accuracy of the accuracy-preserving point on unseen data, with and without the safety margin.

use super::{
    Baseline, Family, NonInferiorityTest, Point, Search, accuracy_preserving, evaluate, frontier, synthetic,
    threshold_exits,
};

const ENERGIES: [f64; 4] = [1.0, 4.0, 12.0, 40.0];
const UNSEEN: usize = 20_000;

struct Trial {
    seen: Family,
    unseen: Family,
    frontier: super::Frontier,
}

impl Trial {
    fn new(skills: &[f64; 4], sharpness: f64, samples: usize, number: u64) -> Self {
        let seen = synthetic::family(skills, &ENERGIES, sharpness, samples, number);
        let search = Search {
            seed: 0,
            exact_steps: 2_000_000,
        };
        Self {
            frontier: frontier(&seen, &search),
            unseen: synthetic::family(skills, &ENERGIES, sharpness, UNSEEN, 1_000 + number),
            seen,
        }
    }

    fn preserving(&self, guard: NonInferiorityTest) -> Point {
        let best = Baseline::new(&self.seen, self.seen.best());
        accuracy_preserving(&self.seen, &self.frontier, &best, guard).unwrap()
    }

    /// Difference in accuracy to the largest variant on unseen data, and the largest variant's energy over the point's.
    fn judge(&self, point: &Point) -> (f64, f64) {
        let outcome = evaluate(&self.unseen, &threshold_exits(&point.thresholds));
        let alone = point.answered.iter().any(|answered| *answered >= 1.0);
        // Drops leave a variant that answers everything on its own.
        let saving = if alone {
            1.0
        } else {
            ENERGIES[3] / outcome.energy_j
        };
        (outcome.accuracy - self.unseen.accuracy(3), saving)
    }
}

#[test]
fn the_guard_spares_most_of_the_loss_on_unseen_data() {
    let trials: Vec<Trial> = (0..12)
        .map(|seed| Trial::new(&[1.8, 2.2, 2.6, 2.9], 5.0, 800, seed))
        .collect();
    let mean = |guard| {
        let judged = trials.iter().map(|trial| trial.judge(&trial.preserving(guard)));
        let (loss, saving) = judged.fold((0.0, 0.0), |sum, (loss, saving)| (sum.0 + loss, sum.1 + saving));
        (loss / trials.len() as f64, saving / trials.len() as f64)
    };
    let error_in_hand = NonInferiorityTest::Bound {
        z: 1.0,
        tolerance: 0.0,
    };
    let (bare, guarded) = (mean(NonInferiorityTest::None), mean(error_in_hand));
    assert!(bare.0 < -0.003, "luck should show: {bare:?}");
    assert!(guarded.0 > bare.0 / 2.0, "{bare:?} {guarded:?}");
    assert!(guarded.1 > 3.0, "{guarded:?}");
}

/// Run with `cargo test --release -p kaskade-planners -- --ignored --nocapture how_often_the_preserving`.
#[test]
#[ignore = "a study"]
fn how_often_the_preserving_point_holds_on_unseen_data() {
    let families = [
        ([1.0, 1.5, 2.0, 2.5], 3.0),
        ([0.5, 1.3, 1.8, 2.0], 3.0),
        ([1.8, 2.2, 2.6, 2.9], 5.0),
        ([1.5, 2.6, 2.7, 2.8], 5.0),
    ];
    let bound = |z, tolerance| NonInferiorityTest::Bound { z, tolerance };
    let guards = [
        NonInferiorityTest::None,
        bound(0.5, 0.0),
        bound(1.0, 0.0),
        bound(1.5, 0.0),
        bound(1.64, 0.005),
        bound(2.33, 0.005),
    ];
    for (skills, sharpness) in families {
        for (samples, count) in [(400, 30), (1_200, 30), (4_000, 12)] {
            let trials: Vec<Trial> = (0..count)
                .map(|seed| Trial::new(&skills, sharpness, samples, seed))
                .collect();
            let accuracies: Vec<f64> = (0..4).map(|variant| trials[0].unseen.accuracy(variant)).collect();
            println!("accuracies {accuracies:.3?}, {samples} samples, {count} trials");
            for guard in guards {
                let judged: Vec<(f64, f64)> = trials
                    .iter()
                    .map(|trial| trial.judge(&trial.preserving(guard)))
                    .collect();
                let share = |count: usize| 100.0 * count as f64 / judged.len() as f64;
                let held = share(judged.iter().filter(|trial| trial.0 >= -0.005).count());
                let mean = share(1) * judged.iter().map(|trial| trial.0).sum::<f64>();
                let worst = 100.0 * judged.iter().map(|trial| trial.0).fold(1.0, f64::min);
                let saving = share(1) / 100.0 * judged.iter().map(|trial| trial.1).sum::<f64>();
                println!(
                    "  {guard:?}: within half a point in {held:.0} %, mean {mean:+.2}, worst {worst:+.2} points, saving {saving:.1}x"
                );
            }
        }
    }
}
