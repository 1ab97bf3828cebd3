//! A test double of the simulator: flows instead of requests.
//!
//! Good enough to plan against (busier is slower, larger batches carry more and wait longer), and quick enough for thousands of plans.

use std::collections::BTreeMap;

use super::evaluate::{Evaluate, Outcome};
use kaskade_policy::fit::batch_latency_s;
use kaskade_policy::plan::{Edge, Plan, Wiring};
use kaskade_policy::profile::Profile;
use kaskade_policy::routing::{Route, route};

pub(super) struct Fluid<'a> {
    pub(super) profile: &'a Profile,
    pub(super) calls: usize,
}

impl<'a> Fluid<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self { profile, calls: 0 }
    }

    fn seconds(&self, variant: &str, batch: u32) -> f64 {
        let profiled = self
            .profile
            .variants
            .iter()
            .find(|profiled| profiled.name == variant)
            .unwrap();
        batch_latency_s(&profiled.costs, batch).unwrap() / f64::from(batch)
    }

    /// Share of the samples that every stage sees.
    fn reach(&self, wiring: &Wiring) -> Vec<f64> {
        let mut seen = vec![0.0; wiring.stages.len()];
        for sample in 0..self.profile.samples {
            let mut at = Some(wiring.entry.stage.clone());
            while let Some(name) = at {
                let place = wiring.stages.iter().position(|stage| stage.name == name).unwrap();
                seen[place] += 1.0 / self.profile.samples as f64;
                let stage = &wiring.stages[place];
                let profiled = self
                    .profile
                    .variants
                    .iter()
                    .find(|profiled| profiled.name == stage.variant)
                    .unwrap();
                at = match route(&stage.exit, Some(profiled.validation.confidences[sample])).unwrap() {
                    Route::Forward(edge) => Some(edge.stage.clone()),
                    _ => None,
                };
            }
        }
        seen
    }
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
    fn gear(&mut self, candidate: &Plan, qps: f64) -> Result<Outcome, String> {
        self.calls += 1;
        candidate.validate().map_err(|invalid| invalid.to_string())?;
        let wiring = &candidate.gears[0].wiring;
        let reach = self.reach(wiring);
        let devices: BTreeMap<&str, (&str, &str)> = candidate
            .placement
            .iter()
            .map(|replica| {
                (
                    replica.id.as_str(),
                    (replica.worker.as_str(), replica.device.as_str()),
                )
            })
            .collect();
        let utilisation = |batch: u32| {
            let mut busy: BTreeMap<(&str, &str), f64> = BTreeMap::new();
            for edge in edges(wiring) {
                let place = wiring
                    .stages
                    .iter()
                    .position(|stage| stage.name == edge.stage)
                    .unwrap();
                let stage = &wiring.stages[place];
                let each = self.seconds(&stage.variant, batch.min(stage.batching.max_batch));
                for (id, share) in &edge.shares {
                    *busy.entry(devices[id.as_str()]).or_default() += qps * reach[place] * share * each;
                }
            }
            busy.into_values().fold(0.0, f64::max)
        };
        let first = &wiring.stages[0].batching;
        let most = wiring
            .stages
            .iter()
            .map(|stage| stage.batching.max_batch)
            .max()
            .unwrap();
        // Batches grow until the busiest device keeps up.
        let batch = (first.min_queue..=most)
            .find(|batch| utilisation(*batch) < 0.9)
            .unwrap_or(most);
        let busy = utilisation(batch);
        let largest_share = wiring.entry.shares.values().copied().fold(0.0, f64::max);
        let fill = f64::from(first.min_queue - 1) / (qps * largest_share);
        let fill = fill.min(first.max_wait_us as f64 / 1e6);
        let path: f64 = wiring
            .stages
            .iter()
            .zip(&reach)
            .filter(|(_, reach)| **reach > 0.05)
            .map(|(stage, _)| {
                let batch = batch.min(stage.batching.max_batch);
                self.seconds(&stage.variant, batch) * f64::from(batch)
            })
            .sum();
        let waiting = path * busy / (1.0 - busy.min(0.99));
        Ok(Outcome {
            p95_us: ((fill + path + waiting) * 1e6) as u64,
            keeps_up: busy < 0.98,
            utilisation: busy.min(1.0),
        })
    }
}
