//! Scores of a plan's stages on the validation samples of a profile.

use super::{Profile, VariantProfile};
use crate::confidence::deferral::{ClassSpread, DeferralScore, Evidence, ScoredSample, Term, value};
use crate::plan::Stage;

impl Profile {
    /// Returns what the bands of a stage compare for a validation sample: the stage's score, or the confidence of its variant. `stages` are those of
    /// its gear, all of which the sample is taken to have passed before. `None` if the profile lacks the variant or the sample.
    pub fn confidence_at(&self, stages: &[Stage], stage: &Stage, sample: usize) -> Option<f64> {
        self.stage_confidences(stages, stage)?.at(sample)
    }

    /// Returns what [`Profile::confidence_at`] computes for the samples of one stage, with the names looked up. `None` if the profile lacks the variant.
    pub fn stage_confidences<'a>(
        &'a self,
        stages: &[Stage],
        stage: &'a Stage,
    ) -> Option<StageConfidences<'a>> {
        let earlier = |term: &Term| {
            let name = term.feature.earlier_variant()?;
            let earlier = stages.iter().find(|stage| stage.name == name)?;
            self.variant(&earlier.variant)
        };
        let terms = stage.score.iter().flat_map(DeferralScore::terms);
        Some(StageConfidences {
            variant: self.variant(&stage.variant)?,
            score: stage.score.as_ref(),
            earlier: terms.map(earlier).collect(),
            input_bytes: &self.input_bytes,
        })
    }

    fn variant(&self, name: &str) -> Option<&VariantProfile> {
        self.variants.iter().find(|variant| variant.name == name)
    }
}

/// Confidences that the bands of a stage compare, by validation sample.
#[derive(Debug)]
pub struct StageConfidences<'a> {
    variant: &'a VariantProfile,
    score: Option<&'a DeferralScore>,
    /// The earlier variant that each term of the score reads.
    earlier: Vec<Option<&'a VariantProfile>>,
    input_bytes: &'a [u32],
}

impl StageConfidences<'_> {
    /// Returns the score of the stage for a sample, or the confidence of its variant; `None` if the profile lacks the sample.
    pub fn at(&self, sample: usize) -> Option<f64> {
        let judged = self.variant.judged(sample)?;
        let Some(score) = self.score else {
            return Some(judged.confidence);
        };
        let bytes = self.input_bytes.get(sample);
        let evidence = Evidence {
            judged,
            spread: self.variant.spread(sample),
            input_bytes: bytes.and_then(|bytes| usize::try_from(*bytes).ok()),
        };
        let value = |place: usize, term: &Term| {
            let earlier = self.earlier.get(place).copied().flatten();
            value(&term.feature, &evidence, |_| earlier?.judged(sample))
        };
        Some(score.evaluate_terms(judged.confidence, value))
    }
}

impl VariantProfile {
    /// The answer to a validation sample.
    pub fn judged(&self, sample: usize) -> Option<ScoredSample> {
        Some(ScoredSample {
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
