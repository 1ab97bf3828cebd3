//! Exhaustive search and random sampling of the constrained space of Figure 10.
//!
//! Every model is on every device and the first model never waits, so the only choice is a cascade for every range. At a constant load ranges do not touch each other, so an assignment is as good as its ranges: `N K` gears are
//! simulated, and all `K^N` assignments compared by them.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use crate::device::DeviceSpec;
use crate::gears::assemble::Parts;
use crate::gears::evaluate::Evaluate;
use crate::gears::evaluation_cache::{BalancedCascade, EvaluationCache};
use crate::gears::mapping::Fleet;
use crate::gears::model_costs::Models;
use crate::gears::options::{BatchLimits, CascadeSearch, GearOptions};
use crate::gears::planner::ranges;
use crate::gears::search::{Cascade, Space};
use crate::gears::served;
use crate::gears::violation::GearError;
use kaskade_policy::plan::Slo;
use kaskade_policy::profile::Profile;

/// Most assignments that are compared.
const MAX_ASSIGNMENTS: f64 = 2e8;

/// These options within the constrained space: memory for everything, no waiting, few cascades.
#[must_use]
pub fn constrained(options: &GearOptions, cascades: u32) -> GearOptions {
    let roomy = |device: &DeviceSpec| DeviceSpec {
        memory_bytes: u64::MAX,
        ..device.clone()
    };
    GearOptions {
        devices: options.devices.iter().map(roomy).collect(),
        search: CascadeSearch {
            max_cascades: cascades,
            ..options.search
        },
        batching: BatchLimits {
            max_min_queue: 1,
            ..options.batching
        },
        ..options.clone()
    }
}

/// The outcome of every cascade in every range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CascadeOutcomes {
    /// The objective.
    pub slo: Slo,
    /// How much of the load is served under every range, summing to 1.
    pub weights: Vec<f64>,
    /// The cascades, ascending in accuracy.
    pub cascades: Vec<Cascade>,
    /// 95th percentile of latency at the upper end, microseconds, by range and cascade; absent if the cascade does not keep up.
    pub p95_us: Vec<Vec<Option<u64>>>,
}

/// An assignment of cascades to ranges, and its objective value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Assigned {
    /// The place of every range's cascade in the landscape.
    pub cascades: Vec<usize>,
    /// Mean accuracy.
    pub accuracy: f64,
    /// Mean 95th percentile of latency, microseconds.
    pub p95_us: f64,
}

impl CascadeOutcomes {
    /// Simulates every cascade in every range. `options` are [`constrained`] ones; the cascades are those that the planner would
    /// choose from.
    ///
    /// # Errors
    /// A [`GearError`] if an input is unusable or a gear cannot be simulated.
    pub fn new(profile: &Profile, options: &GearOptions, evaluate: impl Evaluate) -> Result<Self, GearError> {
        let models = Models::checked(profile, options)?;
        let parts = Parts {
            profile,
            models: &models,
            devices: &options.devices,
        };
        let placement = Fleet::new(&options.devices).everywhere((0..models.len()).collect());
        let space = Space::new(profile, &options.search, options.seed);
        let cascades = space.front(&models, &placement, options.search.max_cascades as usize);
        let mut evaluations = EvaluationCache::new(parts, options, evaluate);
        let mut p95_us = Vec::new();
        for load in ranges(options.qps_max, options.ranges) {
            let qps = load.to_qps.unwrap_or(load.from_qps);
            let mut row = Vec::new();
            for cascade in &cascades {
                let carried = cascade.throughput(&models, &placement) >= qps;
                let balanced = BalancedCascade::new(&parts, cascade, &placement)?;
                let outcome = if carried {
                    Some(evaluations.measure(&balanced, 1, qps)?)
                } else {
                    None
                };
                row.push(
                    outcome
                        .filter(|outcome| outcome.keeps_up)
                        .map(|outcome| outcome.p95_us),
                );
            }
            p95_us.push(row);
        }
        Ok(Self {
            slo: options.slo,
            weights: served::shares(
                &options
                    .weighing
                    .of(&options.prior.shares(options.ranges as usize).unwrap_or_default()),
                options.qps_max,
                options.seed,
            ),
            cascades,
            p95_us,
        })
    }

    /// The objective value of an assignment. `None` if a range does not keep up, or the objective is missed.
    pub fn worth(&self, cascades: &[usize]) -> Option<Assigned> {
        let mut assigned = Assigned {
            cascades: cascades.to_vec(),
            accuracy: 0.0,
            p95_us: 0.0,
        };
        for ((weight, row), cascade) in self.weights.iter().zip(&self.p95_us).zip(cascades) {
            let p95_us = (*row.get(*cascade)?)?;
            if matches!(self.slo, Slo::Latency { p95_us: slo } if p95_us > slo) {
                return None;
            }
            assigned.p95_us += weight * p95_us as f64;
            assigned.accuracy += weight * self.cascades.get(*cascade)?.accuracy;
        }
        match self.slo {
            Slo::Accuracy { at_least } if assigned.accuracy < at_least - 1e-9 => None,
            _ => Some(assigned),
        }
    }

    /// Whether the first is better by what is not promised.
    fn is_better(&self, one: &Assigned, other: Option<&Assigned>) -> bool {
        other.is_none_or(|other| match self.slo {
            Slo::Latency { .. } => one.accuracy > other.accuracy,
            Slo::Accuracy { .. } => one.p95_us < other.p95_us,
        })
    }

    /// The best of all assignments. `None` if none holds the objective.
    ///
    /// # Errors
    /// [`GearError::TooMany`] if there are more than can be compared.
    pub fn exhaustive(&self) -> Result<Option<Assigned>, GearError> {
        let assignments = (self.cascades.len() as f64).powf(self.weights.len() as f64);
        if assignments > MAX_ASSIGNMENTS {
            return Err(GearError::TooMany { assignments });
        }
        let mut best: Option<Assigned> = None;
        let mut cascades = vec![0; self.weights.len()];
        loop {
            if let Some(found) = self.worth(&cascades)
                && self.is_better(&found, best.as_ref())
            {
                best = Some(found);
            }
            // The next assignment, as a number whose digits are the cascades.
            let Some(place) = cascades
                .iter()
                .position(|cascade| cascade + 1 < self.cascades.len())
            else {
                return Ok(best);
            };
            for (at, cascade) in cascades.iter_mut().enumerate().take(place + 1) {
                *cascade = if at == place { *cascade + 1 } else { 0 };
            }
        }
    }

    /// The best of this many random assignments. Each costs as many simulated gears as there are ranges, so a budget of `g`
    /// simulations buys `g / N` of them. `None` if none holds the objective.
    pub fn random(&self, assignments: u64, seed: u64) -> Option<Assigned> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut best: Option<Assigned> = None;
        for _ in 0..assignments {
            let draw = |_: &f64| rng.random_range(0..self.cascades.len().max(1));
            let cascades: Vec<usize> = self.weights.iter().map(draw).collect();
            if let Some(found) = self.worth(&cascades)
                && self.is_better(&found, best.as_ref())
            {
                best = Some(found);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests;
