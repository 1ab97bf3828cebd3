//! Device time of answers: an upper bound of the savings of cascades, independent of planning.
//!
//! Mixing cascades over time reaches any accuracy between theirs, at the mix of their work; so does mixing single
//! variants. The distance between the two at an accuracy bounds the gain of planning.

use kaskade_planners::gears::Cascade;
use kaskade_policy::linear_fit::batch_latency_s;
use kaskade_policy::profile::{Profile, VariantProfile};

/// Largest batch of the planners.
const MAX_BATCH: u32 = 64;

/// Accuracy by device time per request, of cascades and of single variants.
#[derive(Debug, Clone, Default)]
pub(super) struct Work {
    cascades: Vec<(f64, f64)>,
    singles: Vec<(f64, f64)>,
}

impl Work {
    /// Computes the work of a family and of the cascades that its planner chooses from.
    pub(super) fn new(profile: &Profile, cascades: &[Cascade]) -> Self {
        let each: Vec<f64> = profile.variants.iter().map(seconds).collect();
        let of_cascade = |cascade: &Cascade| {
            let stages = cascade.variants.iter().zip(&cascade.reach);
            let work = stages.map(|(variant, reach)| reach * each.get(*variant).copied().unwrap_or(f64::NAN));
            (cascade.accuracy, work.sum())
        };
        let single = |(variant, work): (&VariantProfile, &f64)| {
            let right = variant.validation.correct.iter().filter(|right| **right).count();
            (right as f64 / profile.samples.max(1) as f64, *work)
        };
        Self {
            cascades: cascades.iter().map(of_cascade).collect(),
            singles: profile.variants.iter().zip(&each).map(single).collect(),
        }
    }

    /// How many times as much device time single variants take as cascades to be this accurate on average, the cheapest mix of
    /// each. `None` where one of them is never that accurate.
    pub(super) fn saved(&self, accuracy: f64) -> Option<f64> {
        Some(cheapest(&self.singles, accuracy)? / cheapest(&self.cascades, accuracy)?)
    }
}

/// Seconds of device time per request in the best batches.
fn seconds(variant: &VariantProfile) -> f64 {
    let each = (1..=MAX_BATCH).filter_map(|batch| {
        let latency_s = batch_latency_s(&variant.costs, batch)?;
        Some(latency_s / f64::from(batch))
    });
    each.fold(f64::INFINITY, f64::min)
}

/// The least work at which a mix of two points is this accurate, or one point more than that.
fn cheapest(points: &[(f64, f64)], accuracy: f64) -> Option<f64> {
    let above = || points.iter().filter(|(reached, _)| *reached >= accuracy);
    let below = points.iter().filter(|(reached, _)| *reached < accuracy);
    let alone = above().map(|(_, work)| *work);
    let mixed = below.flat_map(|(low, cheap)| {
        above().map(move |(high, dear)| cheap + (dear - cheap) * (accuracy - low) / (high - low))
    });
    alone.chain(mixed).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_of_two_is_cheaper_than_the_better_of_them() {
        let points = [(0.5, 1.0), (0.9, 9.0), (0.7, 8.0)];
        assert!((cheapest(&points, 0.7).unwrap() - 5.0).abs() < 1e-12);
        assert!((cheapest(&points, 0.2).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(cheapest(&points, 0.95), None);
    }

    #[test]
    fn what_cascades_save_is_told_per_accuracy() {
        let work = Work {
            cascades: vec![(0.5, 1.0), (0.9, 3.0)],
            singles: vec![(0.5, 1.0), (0.9, 9.0)],
        };
        assert!((work.saved(0.9).unwrap() - 3.0).abs() < 1e-12);
        assert!((work.saved(0.5).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(work.saved(0.99), None);
    }
}
