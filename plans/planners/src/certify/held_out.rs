//! The accuracy of a chosen cascade on samples that it was not chosen on, estimated by cross-validation.
//!
//! An estimate, not a proof: it says what to expect of an uncertified objective, where the accuracy on the samples that the cascade was
//! chosen on is too high.

use serde::Serialize;

use super::distributions::normal_quantile;
use super::sample_split::shuffled;
use crate::thresholds::{Exits, Family, Paired, evaluate};

/// Parts of the cross-validation.
const FOLDS: usize = 5;

/// Accuracy of a selection method on samples that it has not seen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HeldOut {
    /// Share of right answers.
    pub accuracy: f64,
    /// Accuracy less that of the largest variant alone, on the same samples.
    pub difference: f64,
    /// Interval of the difference with 95 % confidence: least and largest. It is as wide as the answers of the samples demand (normal
    /// approximation), or as the differences of the folds do (Student's t), whose cascades may be others.
    pub interval: [f64; 2],
}

/// The 97.5 % quantile of Student's t with one degree of freedom less than there are parts.
const T_QUANTILE: f64 = 2.776;

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
    let mut differences = Vec::new();
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
        let answered = evaluate(&judged, &exits).correct;
        let by_largest = &judged.columns().last()?.correct;
        differences.push(Paired::new(&answered, by_largest).difference());
        correct.extend(answered);
        largest.extend(by_largest.iter().copied());
    }
    let paired = Paired::new(&correct, &largest);
    let of_samples = normal_quantile(0.975) * paired.standard_error();
    let of_folds = T_QUANTILE * standard_error(&differences);
    let width = of_samples.max(of_folds);
    let difference = paired.difference();
    Some(HeldOut {
        accuracy: correct.iter().filter(|right| **right).count() as f64 / correct.len() as f64,
        difference,
        interval: [difference - width, difference + width],
    })
}

/// Returns the standard error of the mean of some values.
fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}
