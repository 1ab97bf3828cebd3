//! Measures cascades on placements, and caches the outcomes.
//!
//! Of a large fleet a part is simulated, with its part of the load: devices that host the same get the same share, so what a
//! request meets does not depend on how many there are. A part is never smaller than [`PART`] devices, has at least one device of
//! every group, and is rounded so that its devices are rather more loaded than those of the whole.

use std::collections::BTreeMap;

use super::assemble::{Parts, project};
use super::balance::{Balance, Group, balance};
use super::evaluate::{Evaluate, GearOutcome};
use super::model_set::ModelSet;
use super::options::GearOptions;
use super::search::Cascade;
use super::violation::GearError;
use kaskade_policy::plan::{Batching, Gear, LoadRange, Plan, Slo};

/// All that an outcome depends on: the cascade, the devices as it sees them, the batching and the load.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    variants: Vec<usize>,
    thresholds: Vec<u64>,
    groups: Vec<(ModelSet, u64, Vec<usize>)>,
    min_queue: u32,
    qps: u64,
}

impl Key {
    fn new(balanced: &BalancedCascade<'_>, min_queue: u32, qps: f64) -> Self {
        let thresholds = balanced.cascade.thresholds.iter();
        let groups = balanced.groups.iter();
        Self {
            variants: balanced.cascade.variants.clone(),
            thresholds: thresholds.map(|threshold| threshold.to_bits()).collect(),
            groups: groups
                .map(|group| (group.hosted, group.speed.to_bits(), group.devices.clone()))
                .collect(),
            min_queue,
            qps: qps.to_bits(),
        }
    }
}

/// Minimum number of devices that represent a fleet.
const PART: usize = 48;

/// An evaluator with a memory.
pub(super) struct EvaluationCache<'a, E> {
    pub(super) parts: Parts<'a>,
    pub(super) options: &'a GearOptions,
    evaluate: E,
    known: BTreeMap<Key, GearOutcome>,
    /// Upper bounds of 95th percentiles, microseconds, from fresh arrivals; `None` if the evaluator has no such runs.
    confirmed: BTreeMap<Key, Option<u64>>,
    /// Gears that were simulated.
    pub(super) simulations: u64,
}

/// A cascade on the devices that host its models, with the balanced shares.
#[derive(Debug, Clone)]
pub(super) struct BalancedCascade<'a> {
    pub(super) cascade: &'a Cascade,
    pub(super) groups: Vec<Group>,
    pub(super) balance: Balance,
}

impl<'a> BalancedCascade<'a> {
    /// Balances a cascade over a placement. The shares do not depend on the load.
    pub(super) fn new(
        parts: &Parts<'_>,
        cascade: &'a Cascade,
        placement: &[Group],
    ) -> Result<Self, GearError> {
        let groups = project(placement, cascade.models());
        let balance = balance(&cascade.demands(parts.models, 1.0), &groups)?;
        Ok(Self {
            cascade,
            groups,
            balance,
        })
    }

    /// One device in `k` of every group, and `k`.
    fn part(&self) -> (Self, usize) {
        let devices: usize = self.groups.iter().map(|group| group.devices.len()).sum();
        let smallest = self
            .groups
            .iter()
            .map(|group| group.devices.len())
            .min()
            .unwrap_or(1);
        let one_in = (devices / PART).min(smallest).max(1);
        let mut part = self.clone();
        for group in &mut part.groups {
            group.devices.truncate(group.devices.len() / one_in);
        }
        for (_, index, share) in &mut part.balance.shares {
            if let (Some(whole), Some(kept)) = (self.groups.get(*index), part.groups.get(*index)) {
                *share *= whole.devices.len() as f64 / kept.devices.len() as f64;
            }
        }
        (part, one_in)
    }

    /// Largest share of the first model's requests that one replica gets.
    pub(super) fn first_share(&self) -> f64 {
        let first = self.cascade.variants.first();
        let of_first = self
            .balance
            .shares
            .iter()
            .filter(|(model, ..)| Some(model) == first);
        of_first.map(|(.., share)| *share).fold(0.0, f64::max)
    }
}

impl<'a, E: Evaluate> EvaluationCache<'a, E> {
    pub(super) fn new(parts: Parts<'a>, options: &'a GearOptions, evaluate: E) -> Self {
        Self {
            parts,
            options,
            evaluate,
            known: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            simulations: 0,
        }
    }

    /// The outcome of a cascade at a load.
    pub(super) fn measure(
        &mut self,
        balanced: &BalancedCascade<'_>,
        min_queue: u32,
        qps: f64,
    ) -> Result<GearOutcome, GearError> {
        let key = Key::new(balanced, min_queue, qps);
        if let Some(outcome) = self.known.get(&key) {
            return Ok(*outcome);
        }
        let (candidate, one_in) = self.candidate(balanced, min_queue);
        self.simulations += 1;
        let outcome = self
            .evaluate
            .gear(&candidate, qps / one_in as f64)
            .map_err(GearError::Simulation)?;
        self.known.insert(key, outcome);
        Ok(outcome)
    }

    /// Replaces the 95th percentile of an outcome by its upper bound from runs on fresh arrivals, if the options ask for such.
    pub(super) fn confirmed(
        &mut self,
        balanced: &BalancedCascade<'_>,
        min_queue: u32,
        qps: f64,
        outcome: GearOutcome,
    ) -> Result<GearOutcome, GearError> {
        let Slo::Latency { .. } = self.options.slo else {
            return Ok(outcome);
        };
        let runs = self.options.confirmations;
        let key = Key::new(balanced, min_queue, qps);
        let known = self.confirmed.get(&key).copied();
        let bound_us = if let Some(known) = known {
            known
        } else {
            let (candidate, one_in) = self.candidate(balanced, min_queue);
            self.simulations += u64::from(runs);
            let bound = self.evaluate.largest_p95(&candidate, qps / one_in as f64, runs);
            let bound = bound.map_err(GearError::Simulation)?;
            self.confirmed.insert(key, bound);
            bound
        };
        let bound_us = bound_us.unwrap_or(0);
        Ok(GearOutcome {
            p95_us: if bound_us == u64::MAX {
                outcome.p95_us
            } else {
                bound_us.max(outcome.p95_us)
            },
            keeps_up: outcome.keeps_up && bound_us < u64::MAX,
            ..outcome
        })
    }

    /// The plan that stands for a cascade on its devices, and how many devices each of it stands for.
    fn candidate(&self, balanced: &BalancedCascade<'_>, min_queue: u32) -> (Plan, usize) {
        let (balanced, one_in) = balanced.part();
        let mut candidate = self.parts.plan(&balanced.groups, String::new(), None);
        candidate.gears.push(Gear {
            name: "candidate".to_owned(),
            load: LoadRange::ALL,
            expected: None,
            wiring: self.wiring(&balanced, min_queue),
        });
        (candidate, one_in)
    }

    /// The wiring of a cascade whose first model waits for `min_queue`.
    pub(super) fn wiring(
        &self,
        balanced: &BalancedCascade<'_>,
        min_queue: u32,
    ) -> kaskade_policy::plan::Wiring {
        let batching = |place: usize| {
            let model = balanced.cascade.variants.get(place).copied().unwrap_or(0);
            let max_batch = self.parts.models.max_batch(model);
            Batching {
                // Only the first model waits: what it forwards arrives in bundles, which are batches already (§4.5).
                min_queue: if place == 0 { min_queue.min(max_batch) } else { 1 },
                max_batch,
                max_wait_us: self.max_wait_us(),
            }
        };
        self.parts
            .wiring(balanced.cascade, &balanced.groups, &balanced.balance, batching)
    }

    /// At loads at the lower end of a range a batch may never fill; then a quarter of the objective is waited for it at most.
    pub(super) fn max_wait_us(&self) -> u64 {
        let limit = self.options.batching.max_wait_us;
        match self.options.slo {
            Slo::Latency { p95_us } => limit.min(p95_us / 4),
            Slo::Accuracy { .. } => limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceSpec;
    use crate::gears::model_costs::Models;
    use kaskade_stated::workloads::bert;

    /// Records the plans it is asked to evaluate.
    #[derive(Default)]
    struct Noted {
        asked: Vec<(usize, f64)>,
    }

    impl Evaluate for Noted {
        fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<GearOutcome, String> {
            candidate.validate().map_err(|invalid| invalid.to_string())?;
            self.asked.push((candidate.placement.len(), qps));
            Ok(GearOutcome {
                p95_us: 1,
                keeps_up: true,
                utilisation: 0.5,
            })
        }
    }

    fn asked(devices: usize) -> Vec<(usize, f64)> {
        let profile = bert().profile();
        let slo = Slo::Latency { p95_us: 100_000 };
        let options = GearOptions::new(slo, 10.0, DeviceSpec::fleet(devices, u64::MAX));
        let models = Models::from_profile(&profile, &options);
        let parts = Parts {
            profile: &profile,
            models: &models,
            devices: &options.devices,
        };
        let cascade = Cascade {
            variants: vec![0],
            thresholds: vec![],
            accuracy: 0.7,
            reach: vec![1.0],
        };
        let placement = crate::gears::mapping::Fleet::new(&options.devices).everywhere(cascade.models());
        let mut noted = Noted::default();
        let mut evaluations = EvaluationCache::new(parts, &options, &mut noted);
        let balanced = BalancedCascade::new(&parts, &cascade, &placement).unwrap();
        for _ in 0..3 {
            evaluations.measure(&balanced, 1, 10.0).unwrap();
        }
        assert_eq!(evaluations.simulations, 1);
        noted.asked
    }

    #[test]
    fn what_was_measured_is_not_measured_again() {
        assert_eq!(asked(4), [(4, 10.0)]);
    }

    #[test]
    fn a_part_stands_for_a_large_fleet() {
        // One in 20 of 1,000, with a twentieth of the load.
        assert_eq!(asked(1_000), [(50, 0.5)]);
        assert_eq!(asked(95), [(95, 10.0)]);
    }
}
