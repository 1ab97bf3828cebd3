//! Scores of a plan's stages on the validation samples of a profile.

use super::{Profile, VariantProfile};
use crate::confidence::deferral::{ClassSpread, Evidence, Judged};
use crate::plan::Stage;

impl Profile {
    /// Returns what the bands of a stage compare for a validation sample: the stage's score, or the confidence of its variant. `stages` are those of
    /// its gear, all of which the sample is taken to have passed before. `None` if the profile lacks the variant or the sample.
    pub fn confidence_at(&self, stages: &[Stage], stage: &Stage, sample: usize) -> Option<f64> {
        let variant = self.variant(&stage.variant)?;
        let judged = variant.judged(sample)?;
        let Some(score) = &stage.score else {
            return Some(judged.confidence);
        };
        let bytes = self.input_bytes.get(sample);
        let evidence = Evidence {
            judged,
            spread: variant.spread(sample),
            input_bytes: bytes.and_then(|bytes| usize::try_from(*bytes).ok()),
        };
        Some(score.evaluate(&evidence, |name| {
            let earlier = stages.iter().find(|stage| stage.name == name)?;
            self.variant(&earlier.variant)?.judged(sample)
        }))
    }

    fn variant(&self, name: &str) -> Option<&VariantProfile> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

impl VariantProfile {
    /// The answer to a validation sample.
    pub fn judged(&self, sample: usize) -> Option<Judged> {
        Some(Judged {
            confidence: *self.validation.confidences.get(sample)?,
            answer: *self.validation.predictions.get(sample)?,
        })
    }

    fn spread(&self, sample: usize) -> Option<ClassSpread> {
        Some(ClassSpread {
            margin: *self.validation.margins.get(sample)?,
            entropy: *self.validation.entropies.get(sample)?,
        })
    }
}
