//! Columns of validation samples that deferral scores may read, besides confidences.

use std::sync::Arc;

use kaskade_policy::confidence::deferral::{ClassSpread, Evidence, ScoredSample};
use kaskade_policy::profile::Profile;

/// Observations of every variant of a family, in its order. Copies share the samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Observations {
    variants: Vec<VariantObservations>,
    /// Input bytes of each sample; empty if unknown.
    input_bytes: Arc<[u32]>,
}

#[derive(Debug, Clone, PartialEq)]
struct VariantObservations {
    /// Number of each sample's answer.
    answers: Arc<[u32]>,
    /// Class spread of each sample; empty for answers that are no classes.
    spreads: Arc<[ClassSpread]>,
}

impl Observations {
    pub(super) fn new(profile: &Profile) -> Self {
        let variants = profile.variants.iter().map(|variant| {
            let validation = &variant.validation;
            let spreads = validation.margins.iter().zip(&validation.entropies);
            VariantObservations {
                answers: validation.predictions.as_slice().into(),
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
            input_bytes: profile.input_bytes.as_slice().into(),
        }
    }

    pub(super) fn of_samples(&self, places: &[usize]) -> Self {
        let variants = self.variants.iter().map(|variant| VariantObservations {
            answers: pick(&variant.answers, places),
            spreads: pick(&variant.spreads, places),
        });
        Self {
            variants: variants.collect(),
            input_bytes: pick(&self.input_bytes, places),
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

    /// Returns the result of a variant on a sample whose confidence is known; `None` if there is no such sample.
    pub(super) fn evidence(&self, variant: usize, sample: usize, confidence: f64) -> Option<Evidence> {
        let observed = self.variants.get(variant)?;
        let bytes = self.input_bytes.get(sample);
        Some(Evidence {
            judged: ScoredSample {
                confidence,
                answer: *observed.answers.get(sample)?,
            },
            spread: observed.spreads.get(sample).copied(),
            input_bytes: bytes.and_then(|bytes| usize::try_from(*bytes).ok()),
        })
    }
}

pub(super) fn pick<T: Copy, C: FromIterator<T>>(values: &[T], places: &[usize]) -> C {
    places
        .iter()
        .filter_map(|place| values.get(*place).copied())
        .collect()
}
