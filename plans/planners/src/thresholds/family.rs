//! The part of a profile that the searches use.

use std::sync::Arc;

use serde::Serialize;
use thiserror::Error;

use kaskade_policy::invalid::Invalid;
use kaskade_policy::linear_fit::per_request;
use kaskade_policy::profile::{Profile, VariantProfile};

use super::observations::{Observations, pick};

/// One variant over the validation set. Copies share the samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Name of the variant.
    pub name: String,
    /// Cost of one request, `e_i`, in the family's [`CostBasis`].
    pub energy_j: f64,
    /// Confidence per sample, in [0, 1].
    pub confidences: Arc<[f64]>,
    /// Whether it was right, per sample.
    pub correct: Arc<[bool]>,
}

/// The unit of a family's costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostBasis {
    /// Joules per request.
    Energy,
    /// Seconds per request: asked for, or standing in for joules because the energy of some variant is unknown.
    Latency,
    /// Money per request.
    Money,
}

/// Quantity that a cascade minimises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Minimise {
    /// Joules per request; seconds where the joules of any variant are unknown.
    #[default]
    Energy,
    /// Seconds per request.
    Latency,
    /// Money per request.
    Cost,
}

/// Variants from smallest to largest over one validation set.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    columns: Vec<Column>,
    samples: usize,
    pub(super) observations: Option<Observations>,
}

/// Why columns are no family.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum FamilyError {
    /// The profile is unsound.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// There are no variants or no samples.
    #[error("a family needs at least one variant and one validation sample")]
    Empty,
    /// Columns differ in length.
    #[error("variant `{name}` has {found} samples where others have {expected}")]
    Ragged {
        /// The variant.
        name: String,
        /// Length of the column.
        found: usize,
        /// The others'.
        expected: usize,
    },
    /// The cost in money of a variant is unknown.
    #[error(
        "what variant `{name}` costs in money is unknown; state its `price` in the app's file, `{{ request = 0 }}` if it costs nothing, and profile \
         again"
    )]
    NoMoney {
        /// The variant.
        name: String,
    },
    /// A confidence is outside [0, 1] or a cost is negative or not finite.
    #[error("variant `{name}` has a confidence outside [0, 1], or a cost that is negative or not finite")]
    BadNumber {
        /// The variant.
        name: String,
    },
}

impl Family {
    /// Checks the columns.
    ///
    /// # Errors
    /// A [`FamilyError`] if there are none, they differ in length, or hold numbers that cannot be.
    pub fn new(columns: Vec<Column>) -> Result<Self, FamilyError> {
        let samples = columns.first().map_or(0, |column| column.correct.len());
        if samples == 0 || u32::try_from(samples).is_err() {
            return Err(FamilyError::Empty);
        }
        for column in &columns {
            for found in [column.correct.len(), column.confidences.len()] {
                if found != samples {
                    return Err(FamilyError::Ragged {
                        name: column.name.clone(),
                        found,
                        expected: samples,
                    });
                }
            }
            let sound = column.energy_j.is_finite()
                && column.energy_j >= 0.0
                && column
                    .confidences
                    .iter()
                    .all(|confidence| (0.0..=1.0).contains(confidence));
            if !sound {
                return Err(FamilyError::BadNumber {
                    name: column.name.clone(),
                });
            }
        }
        Ok(Self {
            columns,
            samples,
            observations: None,
        })
    }

    /// The family of a profile at a batch size, with the costs that are to be minimised: for energy joules per request, or seconds
    /// where the joules of any variant are unknown, since a sum of both would mean nothing.
    ///
    /// # Errors
    /// A [`FamilyError`] if the profile is unsound; [`FamilyError::NoMoney`] if the cost of a variant in money is to be minimised and unknown.
    pub(crate) fn minimising(
        profile: &Profile,
        batch: u32,
        minimise: Minimise,
    ) -> Result<(Self, CostBasis), FamilyError> {
        profile.validate()?;
        let variants = || profile.variants.iter();
        let joules = || -> Option<Vec<f64>> {
            variants()
                .map(|variant| per_request(&variant.costs, batch, |cost| cost.energy_j))
                .collect()
        };
        let money = |variant: &VariantProfile| {
            let money = variant.money.map(|money| money.per_request);
            money.ok_or_else(|| FamilyError::NoMoney {
                name: variant.name.clone(),
            })
        };
        let (costs, basis) = match minimise {
            Minimise::Cost => (variants().map(money).collect::<Result<_, _>>()?, CostBasis::Money),
            Minimise::Latency => return Ok((Self::by_latency(profile, batch)?, CostBasis::Latency)),
            Minimise::Energy => match joules() {
                Some(joules) => (joules, CostBasis::Energy),
                None => return Ok((Self::by_latency(profile, batch)?, CostBasis::Latency)),
            },
        };
        Ok((Self::with_costs(profile, costs)?, basis))
    }

    /// The family of a profile at a batch size with costs in seconds per request, also where joules are known.
    ///
    /// # Errors
    /// A [`FamilyError`] if the profile is unsound.
    pub(crate) fn by_latency(profile: &Profile, batch: u32) -> Result<Self, FamilyError> {
        profile.validate()?;
        let seconds = profile.variants.iter().map(|variant| {
            per_request(&variant.costs, batch, |cost| Some(cost.latency_s)).unwrap_or(f64::NAN)
        });
        Self::with_costs(profile, seconds.collect())
    }

    fn with_costs(profile: &Profile, costs: Vec<f64>) -> Result<Self, FamilyError> {
        let columns = profile
            .variants
            .iter()
            .zip(costs)
            .map(|(variant, energy_j)| Column {
                name: variant.name.clone(),
                energy_j,
                confidences: variant.validation.confidences.as_slice().into(),
                correct: variant.validation.correct.as_slice().into(),
            });
        Self::new(columns.collect())
    }

    /// The variants, smallest first. Never empty.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Number of samples, at least 1.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Number of right answers of a variant.
    pub fn right(&self, variant: usize) -> usize {
        self.columns
            .get(variant)
            .map_or(0, |column| count(&column.correct))
    }

    /// Accuracy of a variant alone.
    pub fn accuracy(&self, variant: usize) -> f64 {
        self.right(variant) as f64 / self.samples as f64
    }

    /// The most accurate variant; the smallest of equals.
    pub fn best(&self) -> usize {
        self.ranked().first().copied().unwrap_or(0)
    }

    /// The second most accurate variant; the only one of a family of one.
    pub(crate) fn second_best(&self) -> usize {
        let ranked = self.ranked();
        ranked.get(1).or(ranked.first()).copied().unwrap_or(0)
    }

    fn ranked(&self) -> Vec<usize> {
        let mut ranked: Vec<usize> = (0..self.columns.len()).collect();
        ranked.sort_by_key(|variant| std::cmp::Reverse(self.right(*variant)));
        ranked
    }

    /// Returns the family over some of its samples, in that order. Places beyond the last are left out.
    #[must_use]
    pub fn of_samples(&self, places: &[usize]) -> Self {
        let columns = self.columns.iter().map(|column| Column {
            name: column.name.clone(),
            energy_j: column.energy_j,
            confidences: pick(&column.confidences, places),
            correct: pick(&column.correct, places),
        });
        Self {
            samples: places.iter().filter(|place| **place < self.samples).count(),
            columns: columns.collect(),
            observations: self.observations.as_ref().map(|all| all.of_samples(places)),
        }
    }

    /// Replaces the confidences of a variant, if there are as many.
    pub(super) fn set_confidences(&mut self, variant: usize, confidences: Arc<[f64]>) {
        if let Some(column) = self.columns.get_mut(variant)
            && column.confidences.len() == confidences.len()
        {
            column.confidences = confidences;
        }
    }

    /// Returns the family of some of its variants, in the family's order.
    #[must_use]
    pub(crate) fn of_variants(&self, names: &[&str]) -> Self {
        let is_kept = |column: &Column| names.contains(&column.name.as_str());
        let kept = self.columns.iter().filter(|column| is_kept(column));
        let observed =
            |all: &Observations| all.of_variants(|place| self.columns.get(place).is_some_and(is_kept));
        Self {
            columns: kept.cloned().collect(),
            samples: self.samples,
            observations: self.observations.as_ref().map(observed),
        }
    }

    /// The family without one variant; unchanged if it is the only one.
    #[must_use]
    pub fn without(&self, variant: usize) -> Self {
        let mut smaller = self.clone();
        if variant < self.columns.len() && self.columns.len() > 1 {
            smaller.columns.remove(variant);
            let observed = |all: &Observations| all.of_variants(|place| place != variant);
            smaller.observations = self.observations.as_ref().map(observed);
        }
        smaller
    }
}

pub(super) fn count(flags: &[bool]) -> usize {
    flags.iter().filter(|flag| **flag).count()
}
