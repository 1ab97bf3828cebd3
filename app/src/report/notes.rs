//! Remarks on a profile that planners do not refuse.

use kaskade_planners::thresholds::Paired;
use kaskade_policy::profile::Profile;

use super::units;

/// Standard errors by which a variant must be better than the largest one.
const SURE: f64 = 2.0;

/// Returns that a variant is more accurate than the largest one, if it clearly is: losses are bounded against the largest, whose accuracy
/// a user takes for the best one.
pub(crate) fn better_than_largest(profile: &Profile) -> Option<String> {
    let largest = profile.variants.last()?;
    let right = |correct: &[bool]| correct.iter().filter(|right| **right).count();
    let earlier = profile.variants.iter().rev().skip(1);
    let best = earlier.max_by_key(|variant| right(&variant.validation.correct))?;
    let (correct, of_largest) = (&best.validation.correct, &largest.validation.correct);
    let paired = Paired::new(correct, of_largest);
    if paired.difference() <= SURE * paired.standard_error() {
        return None;
    }
    let share = |correct: &[bool]| units::percent(right(correct) as f64 / correct.len().max(1) as f64);
    Some(format!(
        "note: `{}` answers {} rightly, and the largest variant, `{}`, {}. A loss is counted against the largest: leave out the variants after \
         `{}`, or make it the last one",
        best.name,
        share(correct),
        largest.name,
        share(of_largest),
        best.name,
    ))
}
