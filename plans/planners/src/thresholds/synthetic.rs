//! Synthetic families for tests: samples of varying difficulty, variants of varying skill, confidences that are nearly calibrated.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Column, Family};

/// A normal draw (the sum of twelve uniform ones, which is near enough here).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `skills[i]` and `energies[i]` are those of variant `i`; `sharpness` is how well the confidence separates right from wrong.
pub(crate) fn family(skills: &[f64], energies: &[f64], sharpness: f64, samples: usize, seed: u64) -> Family {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut answers = vec![(Vec::new(), Vec::new()); energies.len()];
    for _ in 0..samples {
        let difficulty = normal(&mut rng);
        for ((confidences, correct), skill) in answers.iter_mut().zip(skills) {
            let logit = sharpness * (skill - difficulty + 0.5 * normal(&mut rng));
            correct.push(rng.random::<f64>() < sigmoid(logit));
            confidences.push(sigmoid(logit + 0.5 * normal(&mut rng)).powi(2));
        }
    }
    let columns =
        answers
            .into_iter()
            .zip(energies)
            .enumerate()
            .map(|(index, ((confidences, correct), energy))| Column {
                name: format!("v{index}"),
                energy_j: *energy,
                confidences: confidences.into(),
                correct: correct.into(),
            });
    Family::new(columns.collect()).unwrap()
}
