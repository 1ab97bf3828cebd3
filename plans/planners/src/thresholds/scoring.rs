//! Families with the values of deferral scores in place of confidences.

use std::collections::BTreeMap;
use std::sync::Arc;

use kaskade_policy::confidence::deferral::{DeferralScore, Evidence, Feature, value};
use kaskade_policy::profile::Profile;

use super::family::{CostBasis, Family, FamilyError, Minimise};
use super::observations::Observations;

impl Family {
    /// The family of a profile at a batch size, with the costs that are to be minimised and what deferral scores read: answers, margins,
    /// entropies and lengths of inputs.
    ///
    /// # Errors
    /// A [`FamilyError`] if the profile is unsound; [`FamilyError::NoMoney`] if the cost of a variant in money is to be minimised and unknown.
    pub fn with_observations(
        profile: &Profile,
        batch: u32,
        minimise: Minimise,
    ) -> Result<(Self, CostBasis), FamilyError> {
        let (mut family, basis) = Self::minimising(profile, batch, minimise)?;
        family.observations = Some(Observations::new(profile));
        Ok((family, basis))
    }

    /// Whether deferral scores can be fitted: the answers are known, not only whether they were right.
    pub(crate) fn is_observed(&self) -> bool {
        self.observations.is_some()
    }

    /// The family without what deferral scores read.
    #[must_use]
    pub fn without_observations(&self) -> Self {
        let mut family = self.clone();
        family.observations = None;
        family
    }

    /// The result of a variant on a sample, as a score reads it; `None` if the family is not observed or has no such sample.
    pub fn evidence(&self, variant: usize, sample: usize) -> Option<Evidence> {
        let observations = self.observations.as_ref()?;
        let confidence = *self.columns().get(variant)?.confidences.get(sample)?;
        observations.evidence(variant, sample, confidence)
    }

    /// The value of a feature at a variant, by sample; `None` if the family is not observed or a sample lacks it.
    pub(crate) fn feature(&self, variant: usize, feature: &Feature) -> Option<Arc<[f64]>> {
        let earlier = feature.earlier_variant();
        let earlier = earlier.and_then(|name| self.columns().iter().position(|column| column.name == name));
        let judged = |sample| Some(self.evidence(earlier?, sample)?.judged);
        let values = (0..self.samples()).map(|sample| {
            let evidence = self.evidence(variant, sample)?;
            value(feature, &evidence, |_| judged(sample))
        });
        values.collect()
    }

    /// The family with the values of scores, one per variant, in place of confidences; where there is none, the confidences stay. It is
    /// no longer observed, because a score of scores has no meaning. Unchanged if the family is not observed.
    #[must_use]
    pub fn scored(&self, scores: &[Option<DeferralScore>]) -> Self {
        let names: Vec<&str> = self.columns().iter().map(|column| column.name.as_str()).collect();
        Scoring::new(self).scored(&names, scores)
    }
}

/// The values of scores on the samples of a family. Cascades that share a stage share its values.
pub(crate) struct Scoring<'a> {
    family: &'a Family,
    known: Vec<(String, DeferralScore, Arc<[f64]>)>,
}

impl<'a> Scoring<'a> {
    pub(crate) fn new(family: &'a Family) -> Self {
        Self {
            family,
            known: Vec::new(),
        }
    }

    /// The family of some variants, in the family's order, with the values of scores in place of confidences, as [`Family::scored`]. Scores read
    /// only these variants.
    pub(crate) fn scored(&mut self, names: &[&str], scores: &[Option<DeferralScore>]) -> Family {
        let mut replaced = self.family.of_variants(names);
        replaced.observations = None;
        for (variant, score) in scores.iter().enumerate() {
            let column = replaced.columns().get(variant);
            if let (Some(score), Some(column)) = (score, column)
                && let Some(values) = self.values(&column.name.clone(), score)
            {
                replaced.set_confidences(variant, values);
            }
        }
        replaced
    }

    fn values(&mut self, name: &str, score: &DeferralScore) -> Option<Arc<[f64]>> {
        let mut known = self.known.iter();
        if let Some((.., values)) = known.find(|(other, known, _)| other == name && known == score) {
            return Some(values.clone());
        }
        let columns = self.family.columns();
        let variant = columns.iter().position(|column| column.name == name)?;
        let values = Features::new(self.family, variant).scores(score, 0..self.family.samples())?;
        let values: Arc<[f64]> = values.into();
        self.known.push((name.to_owned(), score.clone(), values.clone()));
        Some(values)
    }
}

/// The features of a variant's results by sample, each computed once.
pub(crate) struct Features<'a> {
    family: &'a Family,
    variant: usize,
    known: BTreeMap<Feature, Option<Arc<[f64]>>>,
}

impl<'a> Features<'a> {
    pub(crate) fn new(family: &'a Family, variant: usize) -> Self {
        Self {
            family,
            variant,
            known: BTreeMap::new(),
        }
    }

    /// The value of a feature by sample; `None` if a sample lacks it.
    pub(crate) fn values(&mut self, feature: &Feature) -> Option<Arc<[f64]>> {
        if let Some(known) = self.known.get(feature) {
            return known.clone();
        }
        let values = self.family.feature(self.variant, feature);
        self.known.insert(feature.clone(), values.clone());
        values
    }

    /// The values of a score at some samples, each below the number of samples; `None` if the family is not observed.
    pub(crate) fn scores(
        &mut self,
        score: &DeferralScore,
        samples: impl Iterator<Item = usize>,
    ) -> Option<Vec<f64>> {
        if !self.family.is_observed() {
            return None;
        }
        let terms: Vec<Option<Arc<[f64]>>> = score.terms().map(|term| self.values(&term.feature)).collect();
        let confidences = &self.family.columns().get(self.variant)?.confidences;
        let values = samples.map(|sample| {
            let confidence = *confidences.get(sample)?;
            Some(score.evaluate_terms(confidence, |place, _| {
                terms.get(place)?.as_ref()?.get(sample).copied()
            }))
        });
        values.collect()
    }
}
