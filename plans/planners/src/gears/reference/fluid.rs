//! Evaluates gears by flows instead of requests: an approximation of the simulator.
//!
//! Busier is slower, larger batches carry more and wait longer. It ranks gears well enough to plan against, and is quick enough for
//! thousands of plans; its latencies are estimates without a bound.

use std::collections::BTreeMap;

use crate::gears::evaluate::{Evaluate, GearOutcome};
use kaskade_policy::linear_fit::batch_latency_s;
use kaskade_policy::plan::{Edge, Plan, Wiring};
use kaskade_policy::profile::{Profile, VariantProfile};
use kaskade_policy::routing::{Route, route};

/// A flow approximation of a service.
#[derive(Debug)]
pub struct Fluid<'a> {
    profile: &'a Profile,
}

impl<'a> Fluid<'a> {
    /// Creates the approximation of a service with this profile.
    pub fn new(profile: &'a Profile) -> Self {
        Self { profile }
    }

    fn variant(&self, name: &str) -> Option<&VariantProfile> {
        self.profile
            .variants
            .iter()
            .find(|profiled| profiled.name == name)
    }

    /// Seconds per request in batches of this size.
    fn seconds(&self, variant: &str, batch: u32) -> Option<f64> {
        Some(batch_latency_s(&self.variant(variant)?.costs, batch)? / f64::from(batch))
    }

    /// Share of the samples that every stage sees.
    fn reach(&self, wiring: &Wiring) -> Option<Vec<f64>> {
        let mut seen = vec![0.0; wiring.stages.len()];
        for sample in 0..self.profile.samples {
            let mut at = Some(wiring.entry.stage.as_str());
            while let Some(name) = at {
                let place = place(wiring, name)?;
                *seen.get_mut(place)? += 1.0 / self.profile.samples as f64;
                let stage = wiring.stages.get(place)?;
                let confidence = self.variant(&stage.variant)?.validation.confidences.get(sample)?;
                at = match route(&stage.exit, Some(*confidence)).ok()? {
                    Route::Forward(edge) => Some(edge.stage.as_str()),
                    _ => None,
                };
            }
        }
        Some(seen)
    }

    /// Utilisation of the busiest device in batches of this size.
    fn utilisation(
        &self,
        candidate: &Plan,
        wiring: &Wiring,
        reach: &[f64],
        qps: f64,
        batch: u32,
    ) -> Option<f64> {
        let mut busy: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for edge in edges(wiring) {
            let place = place(wiring, &edge.stage)?;
            let stage = wiring.stages.get(place)?;
            let each = self.seconds(&stage.variant, batch.min(stage.batching.max_batch))?;
            for (id, share) in &edge.shares {
                let replica = candidate.placement.iter().find(|replica| replica.id == *id)?;
                let device = (replica.worker.as_str(), replica.device.as_str());
                *busy.entry(device).or_default() += qps * reach.get(place)? * share * each;
            }
        }
        Some(busy.into_values().fold(0.0, f64::max))
    }

    fn outcome(&self, candidate: &Plan, qps: f64) -> Option<GearOutcome> {
        let wiring = &candidate.gears.first()?.wiring;
        let reach = self.reach(wiring)?;
        let utilisation = |batch: u32| self.utilisation(candidate, wiring, &reach, qps, batch);
        let first = &wiring.stages.first()?.batching;
        let most = wiring.stages.iter().map(|stage| stage.batching.max_batch).max()?;
        // Batches grow until the busiest device keeps up.
        let batch = (first.min_queue..=most)
            .find(|batch| utilisation(*batch).is_some_and(|busy| busy < 0.9))
            .unwrap_or(most);
        let busy = utilisation(batch)?;
        let largest_share = wiring.entry.shares.values().copied().fold(0.0, f64::max);
        let fill = f64::from(first.min_queue - 1) / (qps * largest_share);
        let fill = fill.min(first.max_wait_us as f64 / 1e6);
        let mut path = 0.0;
        for (stage, reach) in wiring.stages.iter().zip(&reach) {
            if *reach > 0.05 {
                let batch = batch.min(stage.batching.max_batch);
                path += self.seconds(&stage.variant, batch)? * f64::from(batch);
            }
        }
        let waiting = path * busy / (1.0 - busy.min(0.99));
        Some(GearOutcome {
            p95_us: ((fill + path + waiting) * 1e6) as u64,
            keeps_up: busy < 0.98,
            utilisation: busy.min(1.0),
        })
    }
}

fn place(wiring: &Wiring, stage: &str) -> Option<usize> {
    wiring.stages.iter().position(|known| known.name == stage)
}

fn edges(wiring: &Wiring) -> Vec<&Edge> {
    let onward = wiring
        .stages
        .iter()
        .filter_map(|stage| match route(&stage.exit, Some(0.0)) {
            Ok(Route::Forward(edge)) => Some(edge),
            _ => None,
        });
    std::iter::once(&wiring.entry)
        .chain(&wiring.ensemble)
        .chain(onward)
        .collect()
}

impl Evaluate for Fluid<'_> {
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<GearOutcome, String> {
        candidate.validate().map_err(|invalid| invalid.to_string())?;
        self.outcome(candidate, qps)
            .ok_or_else(|| "the plan names what the profile has not".to_owned())
    }
}
