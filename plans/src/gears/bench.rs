//! Measures cascades on placements, and remembers what it measured.

use std::collections::BTreeMap;

use super::assemble::{Parts, project};
use super::balance::{Balance, Group, balance};
use super::evaluate::{Evaluate, Outcome};
use super::fault::GearError;
use super::models::ModelSet;
use super::options::GearOptions;
use super::search::Cascade;
use crate::plan::{Batching, Gear, LoadRange, Slo};

/// All that an outcome depends on: the cascade, the devices as it sees them, the batching and the load.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    variants: Vec<usize>,
    thresholds: Vec<u64>,
    groups: Vec<(ModelSet, u64, Vec<usize>)>,
    min_queue: u32,
    qps: u64,
}

/// An evaluator with a memory.
pub(super) struct Bench<'a, E> {
    pub(super) parts: Parts<'a>,
    pub(super) options: &'a GearOptions,
    evaluate: E,
    known: BTreeMap<Key, Outcome>,
    /// Gears that were simulated.
    pub(super) simulations: u64,
}

/// A cascade on the devices that host its models, and who gets which share.
#[derive(Debug, Clone)]
pub(super) struct Spread<'a> {
    pub(super) cascade: &'a Cascade,
    pub(super) groups: Vec<Group>,
    pub(super) balance: Balance,
}

impl<'a> Spread<'a> {
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

impl<'a, E: Evaluate> Bench<'a, E> {
    pub(super) fn new(parts: Parts<'a>, options: &'a GearOptions, evaluate: E) -> Self {
        Self {
            parts,
            options,
            evaluate,
            known: BTreeMap::new(),
            simulations: 0,
        }
    }

    /// How a cascade fares at a load.
    pub(super) fn measure(
        &mut self,
        spread: &Spread<'_>,
        min_queue: u32,
        qps: f64,
    ) -> Result<Outcome, GearError> {
        let key = Key {
            variants: spread.cascade.variants.clone(),
            thresholds: spread
                .cascade
                .thresholds
                .iter()
                .map(|threshold| threshold.to_bits())
                .collect(),
            groups: spread
                .groups
                .iter()
                .map(|group| (group.hosted, group.speed.to_bits(), group.devices.clone()))
                .collect(),
            min_queue,
            qps: qps.to_bits(),
        };
        if let Some(outcome) = self.known.get(&key) {
            return Ok(*outcome);
        }
        let mut candidate = self.parts.plan(&spread.groups, String::new(), None);
        candidate.gears.push(Gear {
            name: "candidate".to_owned(),
            load: LoadRange::ALL,
            expected: None,
            wiring: self.wiring(spread, min_queue),
        });
        self.simulations += 1;
        let outcome = self
            .evaluate
            .gear(&candidate, qps)
            .map_err(GearError::Simulation)?;
        self.known.insert(key, outcome);
        Ok(outcome)
    }

    /// The wiring of a cascade whose first model waits for `min_queue`.
    pub(super) fn wiring(&self, spread: &Spread<'_>, min_queue: u32) -> crate::plan::Wiring {
        let batching = |place: usize| {
            let model = spread.cascade.variants.get(place).copied().unwrap_or(0);
            let max_batch = self.parts.models.max_batch(model);
            Batching {
                // Only the first model waits: what it forwards arrives in bundles, which are batches already (§4.5).
                min_queue: if place == 0 { min_queue.min(max_batch) } else { 1 },
                max_batch,
                max_wait_us: self.max_wait_us(),
            }
        };
        self.parts
            .wiring(spread.cascade, &spread.groups, &spread.balance, batching)
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
