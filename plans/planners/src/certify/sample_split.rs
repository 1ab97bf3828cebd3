//! Splits a validation set into a selection and a certification part.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// Share of the validation samples in the certification part. Selecting a cascade needs fewer samples than proving it; the study in
/// `examples/guarantee_study.rs` compares shares.
pub(crate) const CERTIFICATION_SHARE: f64 = 0.6;

/// The indices of a validation set's samples, split in two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleSplit {
    /// The selection part: calibrations are fitted and cascades are chosen on it.
    pub selection: Vec<usize>,
    /// The certification part: used for proofs only.
    pub certification: Vec<usize>,
}

/// Splits that many samples at random into a selection and a certification part. The same number is always split in the same way, so
/// that `kaskade profile` fits calibrations on the part that cascades are later chosen on.
pub fn split_samples(samples: usize) -> SampleSplit {
    let mut indices = shuffled(samples);
    // At least one sample is left to select on; with so few, no test succeeds.
    let certification = ((samples as f64 * CERTIFICATION_SHARE) as usize).min(samples.saturating_sub(1));
    let selection = indices.split_off(certification);
    SampleSplit {
        selection,
        certification: indices,
    }
}

/// Returns the indices of that many samples in a random order, always the same.
pub(super) fn shuffled(samples: usize) -> Vec<usize> {
    let mut indices: Vec<usize> = (0..samples).collect();
    indices.shuffle(&mut ChaCha8Rng::seed_from_u64(SPLIT_SEED));
    indices
}

/// Seed of the split.
const SPLIT_SEED: u64 = 0x5eed;
