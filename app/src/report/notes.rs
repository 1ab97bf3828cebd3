//! Remarks on a profile that planners do not refuse.

use kaskade_planners::thresholds::Paired;
use kaskade_policy::profile::Profile;

use super::units;

/// Share of repeated samples from which a certificate says less than it claims.
const REPEATED: f64 = 0.05;

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

/// Returns that many samples repeat others, if they do and the profile knows it: a certificate counts each of them as an independent draw.
pub(crate) fn repeated_samples(profile: &Profile) -> Option<String> {
    let repeats = profile.repeats?;
    let share = repeats as f64 / profile.samples.max(1) as f64;
    (share > REPEATED).then(|| {
        format!(
            "warning: {} of {} validation samples have the inputs of an earlier one, and the certificate counts each as a sample of its own. Unless \
             requests repeat as often, it proves less than it says: remove repeats from the validation set and profile again",
            units::count(repeats as u64),
            units::count(profile.samples as u64),
        )
    })
}
