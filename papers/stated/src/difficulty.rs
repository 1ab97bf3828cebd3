//! Answers drawn from a model of difficulty, for families whose data sets and weights are not here.
//!
//! Sample `j` has a difficulty that all variants share, variant `i` a margin `y_ij = c_i + sqrt(rho) d_j + sqrt(1 - rho) e_ij` with standard
//! normal `d` and `e`, and is right where the margin is positive; `c_i` is set so that its accuracy is the stated one, to a sample. Its
//! confidence is the probability of being right given the margin blurred by noise of deviation `tau`: calibrated, informative, and
//! more so the smaller `tau` is.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use kaskade_policy::profile::Validation;

/// How hard samples are, and how much of that is common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Difficulty {
    /// Samples.
    pub(crate) samples: usize,
    /// Answers to choose from.
    pub(crate) classes: u32,
    /// `rho`: how much of what makes a sample hard is hard for all variants, in [0, 1].
    pub(crate) shared: f64,
    /// `tau`: deviation of the noise through which a variant sees its own margin.
    pub(crate) blur: f64,
    /// Seed of the draws.
    pub(crate) seed: u64,
}

impl Difficulty {
    /// Returns the answers of variants of these accuracies. Deterministic.
    pub(crate) fn answers(&self, accuracies: impl Iterator<Item = f64>) -> Vec<Validation> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let difficulties: Vec<f64> = (0..self.samples).map(|_| normal(&mut rng)).collect();
        let labels: Vec<u32> = (0..self.samples)
            .map(|_| rng.random_range(0..self.classes))
            .collect();
        accuracies
            .map(|accuracy| self.of_one(accuracy, &difficulties, &labels, &mut rng))
            .collect()
    }

    fn of_one(
        &self,
        accuracy: f64,
        difficulties: &[f64],
        labels: &[u32],
        rng: &mut ChaCha8Rng,
    ) -> Validation {
        let (shared, own) = (self.shared.sqrt(), (1.0 - self.shared).sqrt());
        let ease: Vec<f64> = difficulties
            .iter()
            .map(|hard| shared * hard + own * normal(rng))
            .collect();
        let skill = skill(&ease, accuracy);
        let mut answers = Validation::default();
        for (ease, label) in ease.iter().zip(labels) {
            let margin = skill + ease;
            let seen = margin + self.blur * normal(rng);
            answers.correct.push(margin > 0.0);
            answers.confidences.push(chance(seen, skill, self.blur));
            let other = rng.random_range(1..self.classes.max(2));
            let wrong = (label + other) % self.classes.max(2);
            answers
                .predictions
                .push(if margin > 0.0 { *label } else { wrong });
        }
        answers
    }
}

/// The `c` at which the stated share of the margins is positive.
fn skill(ease: &[f64], accuracy: f64) -> f64 {
    let mut sorted = ease.to_vec();
    sorted.sort_by(f64::total_cmp);
    let wrong = ((1.0 - accuracy) * sorted.len() as f64).round() as usize;
    let last_wrong = wrong.checked_sub(1).and_then(|place| sorted.get(place));
    last_wrong.map_or(0.0, |last_wrong| -last_wrong)
}

/// The probability that a margin, normal around `skill` with deviation 1, is positive when observed as `seen` through noise.
fn chance(seen: f64, skill: f64, blur: f64) -> f64 {
    let noise = blur * blur;
    let mean = skill + (seen - skill) / (1.0 + noise);
    let deviation = (noise / (1.0 + noise)).sqrt();
    // The logistic curve nearest to the normal distribution's.
    1.0 / (1.0 + (-1.702 * mean / deviation).exp())
}

/// A standard normal draw (Box and Muller).
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}
