//! The cascades that were certified together, from the largest variant alone to the cheapest, and what to expect of each.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Certificate, Gear, Plan};
use crate::invalid::{Invalid, Path};
use crate::text_metrics::TextComparison;

/// Cascades in a list at most.
pub const MAX_CERTIFIED: usize = 16;

/// The certified list of a plan. While serving, the shifter moves along it: towards the largest variant when a certificate no longer
/// holds, and back when it holds again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertifiedList {
    /// Index in `cascades` of each gear's cascade.
    pub cascade_of_gear: Vec<u32>,
    /// Comparison of texts, for `differs` and while serving; absent if texts must be the same, or answers are no texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<TextComparison>,
    /// Fingerprint of the certification samples: of the sizes of their inputs, and of what the largest variant answered and whether it
    /// was right. Lists with the same one are proven on the same samples; absent in plans that were made before it existed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<String>,
    /// Certified cascades, from the largest variant alone to ever cheaper ones.
    pub cascades: Vec<CertifiedCascade>,
}

/// A cascade of the list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertifiedCascade {
    /// Wiring of the cascade, as a gear for every load.
    pub gear: Gear,
    /// Certificate of the cascade.
    pub certificate: Certificate,
    /// Certification samples that it answers differently from the largest variant alone; absent if the profile has no answers to
    /// compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<u64>,
    /// Expected behaviour of each stage, in the order of the wiring.
    pub stages: Vec<ExpectedStage>,
}

/// Behaviour of a stage on the certification samples that reach it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedStage {
    /// The stage.
    pub stage: String,
    /// Samples that reach the stage.
    pub samples: u64,
    /// Samples that the stage defers to a later stage.
    pub deferred: u64,
    /// Ends of the bins of confidence, ascending in (0, 1): a confidence belongs to the first bin whose end is above it, and to the
    /// last bin if there is none.
    pub edges: Vec<f64>,
    /// Answers that leave here, by bin: one more than `edges`.
    pub exits: Vec<u64>,
}

impl ExpectedStage {
    /// Returns the category of a result: 0 if it is deferred, else one more than the bin of its confidence.
    pub fn category(&self, deferred: bool, confidence: f64) -> usize {
        if deferred {
            return 0;
        }
        1 + self.edges.partition_point(|edge| *edge <= confidence)
    }

    /// Returns the samples in each category.
    pub fn categories(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.deferred).chain(self.exits.iter().copied())
    }

    fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        let edges = path.field("edges");
        let mut before = 0.0;
        for (index, edge) in self.edges.iter().enumerate() {
            let sound = *edge > before && *edge < 1.0;
            edges
                .index(index)
                .within(*edge, sound, "above the one before and in (0, 1)")?;
            before = *edge;
        }
        let bins = self.exits.len();
        path.field("exits").within(
            bins as f64,
            bins == self.edges.len() + 1,
            "one more than the number of `edges`",
        )?;
        let counted: u64 = self.categories().fold(0, u64::saturating_add);
        path.field("samples").within(
            self.samples as f64,
            counted == self.samples,
            "the sum of `deferred` and `exits`",
        )
    }
}

impl CertifiedCascade {
    /// Checks everything but its wiring.
    fn check(&self, path: &Path<'_>) -> Result<(), Invalid> {
        self.certificate.check(&path.field("certificate"))?;
        let samples = self.certificate.samples;
        if let Some(differs) = self.differs {
            path.field("differs").within(
                differs as f64,
                differs <= samples,
                "at most the certificate's `samples`",
            )?;
        }
        let stages = path.field("stages");
        let wired = &self.gear.wiring.stages;
        stages.within(
            self.stages.len() as f64,
            self.stages.len() == wired.len(),
            "the number of stages in the wiring",
        )?;
        for (index, (expected, stage)) in self.stages.iter().zip(wired).enumerate() {
            let path = stages.index(index);
            if expected.stage != stage.name {
                return path.field("stage").fail(crate::invalid::Problem::Unknown {
                    what: "stage at this index named",
                    name: expected.stage.clone(),
                });
            }
            expected.check(&path)?;
        }
        Ok(())
    }
}

impl CertifiedList {
    /// Checks everything but the wirings; `gears` is the number of the plan's own gears.
    pub(super) fn check(&self, path: &Path<'_>, gears: usize) -> Result<(), Invalid> {
        let cascades = path.field("cascades");
        cascades.not_empty(&self.cascades)?;
        let count = self.cascades.len();
        cascades.within(count as f64, count <= MAX_CERTIFIED, "at most 16 cascades")?;
        let cascade_of_gear = path.field("cascade_of_gear");
        cascade_of_gear.within(
            self.cascade_of_gear.len() as f64,
            self.cascade_of_gear.len() == gears,
            "the number of gears",
        )?;
        for (gear, cascade) in self.cascade_of_gear.iter().enumerate() {
            cascade_of_gear.index(gear).within(
                f64::from(*cascade),
                (*cascade as usize) < count,
                "the index of a cascade in the list",
            )?;
        }
        if let Some(texts) = self.texts {
            texts.check(&path.field("texts"))?;
        }
        let mut names = BTreeSet::new();
        for (index, cascade) in self.cascades.iter().enumerate() {
            let path = cascades.index(index);
            path.field("gear")
                .field("name")
                .new_name(&cascade.gear.name, &mut names)?;
            cascade.check(&path)?;
        }
        Ok(())
    }
}

/// Gears by number. The gears of a plan come first, then the cascades of its certified list: a shift to one of those is a shift to
/// a gear like any other.
impl Plan {
    /// Returns the gear of that number.
    pub fn gear(&self, number: u32) -> Option<&Gear> {
        let number = number as usize;
        match number.checked_sub(self.gears.len()) {
            None => self.gears.get(number),
            Some(index) => Some(&self.certified.as_ref()?.cascades.get(index)?.gear),
        }
    }

    /// Returns all gears in the order of their numbers.
    pub fn all_gears(&self) -> impl Iterator<Item = &Gear> {
        let certified = self.certified.iter().flat_map(|list| &list.cascades);
        self.gears.iter().chain(certified.map(|cascade| &cascade.gear))
    }

    /// Returns the index in the certified list of the cascade that a gear runs.
    pub fn certified_index(&self, gear: u32) -> Option<usize> {
        let list = self.certified.as_ref()?;
        let index = match (gear as usize).checked_sub(self.gears.len()) {
            None => *list.cascade_of_gear.get(gear as usize)? as usize,
            Some(index) => index,
        };
        (index < list.cascades.len()).then_some(index)
    }

    /// Returns the number of the gear that runs the cascade at that index of the certified list.
    pub fn gear_of_certified(&self, index: usize) -> Option<u32> {
        let list = self.certified.as_ref()?;
        (index < list.cascades.len()).then(|| (self.gears.len() + index) as u32)
    }

    /// Returns the gear to run instead of that one while only the cascades up to `limit` hold their certificate.
    pub fn clamp_gear(&self, gear: u32, limit: usize) -> u32 {
        match self.certified_index(gear) {
            Some(index) if index > limit => self.gear_of_certified(limit).unwrap_or(gear),
            _ => gear,
        }
    }
}

#[cfg(test)]
mod tests;
