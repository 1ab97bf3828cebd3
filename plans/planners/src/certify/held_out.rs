//! The accuracy of a chosen cascade on samples that it was not chosen on, estimated by cross-validation.
//!
//! An estimate, not a proof: it says what to expect of an uncertified objective, where the accuracy on the samples that the cascade was
//! chosen on is too high.

use serde::Serialize;

use super::{normal_quantile, shuffled};
use crate::thresholds::{Exits, Family, Paired, evaluate};

/// Parts of the cross-validation.
const FOLDS: usize = 5;

/// What a way to choose cascades achieves on samples that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeldOut {
    /// Share of right answers.
    pub accuracy: f64,
    /// Accuracy less that of the largest variant alone, on the same samples.
    pub difference: f64,
    /// Interval of the difference with 95 % confidence, by the normal approximation: least and largest.
    pub interval: [f64; 2],
}

/// Samples to choose on at most: a cascade that is chosen on more is hardly better.
const MAX_SAMPLES: usize = 50_000;

/// Chooses a cascade five times, each time on four fifths of the samples but at most 50,000, and judges it on the rest.
///
/// `choose` gets a family over the samples to choose on, and returns the exits of its cascade over all variants. `None` if there are
/// fewer than two samples per part, or nothing is chosen.
pub(crate) fn held_out(family: &Family, choose: impl Fn(&Family) -> Option<Exits>) -> Option<HeldOut> {
    if family.samples() < 2 * FOLDS {
        return None;
    }
    let indices = shuffled(family.samples());
    let (mut correct, mut largest) = (Vec::new(), Vec::new());
    for fold in 0..FOLDS {
        let part = |inside: bool| -> Vec<usize> {
            let numbered = indices.iter().enumerate();
            let kept = numbered.filter(|(number, _)| (number % FOLDS == fold) == inside);
            kept.map(|(_, index)| *index).collect()
        };
        let judged = family.of_samples(&part(true));
        let mut others = part(false);
        // They are in random order.
        others.truncate(MAX_SAMPLES);
        let exits = choose(&family.of_samples(&others))?;
        correct.extend(evaluate(&judged, &exits).correct);
        largest.extend(judged.columns().last()?.correct.iter().copied());
    }
    let paired = Paired::new(&correct, &largest);
    let width = normal_quantile(0.975) * paired.standard_error();
    let difference = paired.difference();
    Some(HeldOut {
        accuracy: correct.iter().filter(|right| **right).count() as f64 / correct.len() as f64,
        difference,
        interval: [difference - width, difference + width],
    })
}
