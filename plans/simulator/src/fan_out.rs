//! Number of copies of a request that a fan-out makes.

use rand::Rng;

/// The number of copies that a child of a fan-out gets.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Copies {
    /// The whole part of this mean, and one more with the chance of the rest.
    Mean(f64),
    /// Drawn from a measured distribution: by number of copies, from 0, the chance of at most this many.
    Measured(Vec<f64>),
}

impl Copies {
    /// Creates a distribution from these weights by number of copies, from 0. `None` if they are no distribution.
    pub(super) fn measured(weights: &[f64]) -> Option<Self> {
        let total: f64 = weights.iter().sum();
        let sound = weights.iter().all(|weight| *weight >= 0.0) && total > 0.0 && total.is_finite();
        let ends = weights.iter().scan(0.0, |sum, weight| {
            *sum += weight / total;
            Some(*sum)
        });
        sound.then(|| Self::Measured(ends.collect()))
    }

    pub(super) fn draw(&self, rng: &mut impl Rng) -> u32 {
        let draw = rng.random::<f64>();
        match self {
            Self::Mean(mean) => mean.trunc() as u32 + u32::from(draw < mean.fract()),
            Self::Measured(ends) => {
                let last = ends.len().saturating_sub(1);
                ends.partition_point(|end| *end <= draw).min(last) as u32
            }
        }
    }
}
