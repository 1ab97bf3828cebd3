//! Random sampling of assignments, the baseline of Figure 10.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::exhaustive::{Assigned, CascadeOutcomes};

/// The best of so many random assignments. Each costs as many simulated gears as there are ranges, so a budget of `g` simulations
/// buys `g / N` of them. `None` if none holds the objective.
pub fn random(landscape: &CascadeOutcomes, assignments: u64, seed: u64) -> Option<Assigned> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut best: Option<Assigned> = None;
    for _ in 0..assignments {
        let draw = |_: &f64| rng.random_range(0..landscape.cascades.len().max(1));
        let cascades: Vec<usize> = landscape.weights.iter().map(draw).collect();
        if let Some(found) = landscape.worth(&cascades)
            && landscape.is_better(&found, best.as_ref())
        {
            best = Some(found);
        }
    }
    best
}
