//! The cascades that gears with a guarantee choose from: those that are certified together.
//!
//! The sequence of [`crate::certify`] is tested until the first failure. Its test bounds the probability that any cascade that passes
//! misses the target, so whichever of them become gears, every gear keeps the bound with the stated confidence.

use super::search::Cascade;
use crate::certify::{CertifyError, CertifyOptions, PassedCascade, certify_all};
use crate::thresholds::{FORWARD_ALL, Family, FamilyError};
use kaskade_policy::plan::Certificate;
use kaskade_policy::profile::Profile;

use super::violation::GearError;

impl From<CertifyError> for GearError {
    fn from(error: CertifyError) -> Self {
        Self::Certify(error)
    }
}

/// Certified cascades with their certificates, from the largest variant alone to the cheapest; never empty.
///
/// Accuracy and reach of each cascade are those on the certification part, on which none was chosen. Costs are seconds per request at
/// `batch`, because gears trade accuracy for throughput.
pub(super) fn guaranteed(
    profile: &Profile,
    options: &CertifyOptions,
    batch: u32,
) -> Result<Vec<(Cascade, Certificate)>, GearError> {
    let family = Family::by_latency(profile, batch)?;
    let passed = certify_all(&family, options)?;
    let places = |name: &str| profile.variants.iter().position(|variant| variant.name == name);
    passed
        .into_iter()
        .map(|passed| {
            let cascade = cascade(&passed, places).ok_or(FamilyError::Empty)?;
            let certificate = Certificate {
                judge: profile.judge.clone(),
                ..passed.certificate
            };
            Ok((cascade, certificate))
        })
        .collect()
}

/// Returns a cascade over the variants of the profile, without the variants that forward everything: they change no answer.
fn cascade(passed: &PassedCascade, place: impl Fn(&str) -> Option<usize>) -> Option<Cascade> {
    let mut found = Cascade {
        variants: Vec::new(),
        thresholds: Vec::new(),
        accuracy: passed.outcome.accuracy,
        reach: Vec::new(),
    };
    let columns = passed.cascade.family.columns();
    let last = columns.len().checked_sub(1)?;
    for (at, (column, reach)) in columns.iter().zip(&passed.outcome.reach).enumerate() {
        let threshold = passed.cascade.thresholds.get(at).copied();
        match threshold.filter(|_| at < last) {
            Some(all) if all >= FORWARD_ALL => continue,
            Some(threshold) => found.thresholds.push(threshold),
            None => {}
        }
        found.variants.push(place(&column.name)?);
        found.reach.push(*reach);
    }
    Some(found)
}

#[cfg(test)]
mod tests;
