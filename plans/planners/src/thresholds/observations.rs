//! What deferral scores may read of validation samples, besides confidences.

use kaskade_policy::confidence::deferral::{ClassSpread, DeferralScore, Evidence, Judged};
use kaskade_policy::profile::Profile;

use super::family::{CostBasis, Family, FamilyError, Minimise};

/// Observations of every variant of a family, in its order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Observations {
    variants: Vec<OfVariant>,
    /// By sample; empty if unknown.
    input_bytes: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq)]
struct OfVariant {
    /// By sample: a number for the answer.
    answers: Vec<u32>,
    /// By sample; empty for answers that are no classes.
    spreads: Vec<ClassSpread>,
}

impl Observations {
    fn of(profile: &Profile) -> Self {
        let variants = profile.variants.iter().map(|variant| {
            let validation = &variant.validation;
            let spreads = validation.margins.iter().zip(&validation.entropies);
            OfVariant {
                answers: validation.predictions.clone(),
                spreads: spreads
                    .map(|(margin, entropy)| ClassSpread {
                        margin: *margin,
                        entropy: *entropy,
                    })
                    .collect(),
            }
        });
        Self {
            variants: variants.collect(),
            input_bytes: profile.input_bytes.clone(),
        }
    }

    pub(super) fn of_samples(&self, places: &[usize]) -> Self {
        let variants = self.variants.iter().map(|variant| OfVariant {
            answers: super::family::pick(&variant.answers, places),
            spreads: super::family::pick(&variant.spreads, places),
        });
        Self {
            variants: variants.collect(),
            input_bytes: super::family::pick(&self.input_bytes, places),
        }
    }

    /// Keeps the variants at which `kept` holds.
    pub(super) fn of_variants(&self, kept: impl Fn(usize) -> bool) -> Self {
        let variants = self.variants.iter().enumerate();
        Self {
            variants: variants
                .filter(|(place, _)| kept(*place))
                .map(|(_, variant)| variant.clone())
                .collect(),
            input_bytes: self.input_bytes.clone(),
        }
    }
}

impl Family {
    /// The family of a profile at a batch size, with the costs that are to be minimised and what deferral scores read: answers, margins,
    /// entropies and lengths of inputs.
    ///
    /// # Errors
    /// A [`FamilyError`] if the profile is unsound; [`FamilyError::NoMoney`] if the cost of a variant in money is to be minimised and unknown.
    pub fn observing(
        profile: &Profile,
        batch: u32,
        minimise: Minimise,
    ) -> Result<(Self, CostBasis), FamilyError> {
        let (mut family, basis) = Self::minimising(profile, batch, minimise)?;
        family.observations = Some(Observations::of(profile));
        Ok((family, basis))
    }

    /// Whether deferral scores can be fitted: the answers are known, not only whether they were right.
    pub(crate) fn is_observed(&self) -> bool {
        self.observations.is_some()
    }

    /// The family without what deferral scores read.
    #[must_use]
    pub fn unobserved(&self) -> Self {
        let mut family = self.clone();
        family.observations = None;
        family
    }

    /// The result of a variant on a sample, as a score reads it; `None` if the family is not observed or has no such sample.
    pub fn evidence(&self, variant: usize, sample: usize) -> Option<Evidence> {
        let observations = self.observations.as_ref()?;
        let observed = observations.variants.get(variant)?;
        let confidence = *self.columns().get(variant)?.confidences.get(sample)?;
        let bytes = observations.input_bytes.get(sample);
        Some(Evidence {
            judged: Judged {
                confidence,
                answer: *observed.answers.get(sample)?,
            },
            spread: observed.spreads.get(sample).copied(),
            input_bytes: bytes.and_then(|bytes| usize::try_from(*bytes).ok()),
        })
    }

    /// The answer of a variant, by name, to a sample.
    pub(crate) fn judged(&self, name: &str, sample: usize) -> Option<Judged> {
        let variant = self.columns().iter().position(|column| column.name == name)?;
        self.evidence(variant, sample).map(|evidence| evidence.judged)
    }

    /// The family with the values of scores, one per variant, in place of confidences; where there is none, the confidences stay. It is
    /// no longer observed, because a score of scores has no meaning. Unchanged if the family is not observed.
    #[must_use]
    pub fn scored(&self, scores: &[Option<DeferralScore>]) -> Self {
        let mut replaced = self.unobserved();
        if !self.is_observed() {
            return replaced;
        }
        for (variant, score) in scores.iter().enumerate() {
            let Some(score) = score else { continue };
            let values = (0..self.samples()).filter_map(|sample| {
                let evidence = self.evidence(variant, sample)?;
                Some(score.evaluate(&evidence, |stage| self.judged(stage, sample)))
            });
            let values = values.collect();
            replaced.set_confidences(variant, values);
        }
        replaced
    }
}
