//! Costs of batches while serving, and the overhead of serving, measured before the comparisons.

use std::collections::BTreeMap;

use anyhow::Context as _;
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_policy::plan::{Plan, Sharing};
use kaskade_policy::profile::{BatchCost, Profile};
use kaskade_simulator::trace::Trace;

use super::Bench;
use super::noted::{Runs, costs, gap, mean};

/// How long each load is served, seconds.
const EACH_S: usize = 4;

/// The measured overhead of serving, microseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hops {
    pub(super) entry: u64,
    pub(super) between: u64,
    pub(super) turnaround: u64,
}

impl Bench {
    /// The profile with latencies as they are while serving, and what serving adds to them. Requests come as they do later, by
    /// themselves: a client that waits for answers leaves the model alone on the processor, and measures a faster machine.
    pub(super) fn as_served(&self, profile: &Profile) -> anyhow::Result<(Profile, Hops)> {
        /// Of what a variant carries; the last is more than that, so that batches fill up and follow one another.
        const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.5];
        const MOST_QPS: f64 = 4000.0;
        let mut served = profile.clone();
        let (mut outside, mut gap_us) = (Vec::new(), 0.0);
        let mut runs = Vec::new();
        for variant in &served.variants {
            let mut plan = initial::single(&self.app, &variant.name);
            plan.sharing = Sharing::Exclusive;
            let mut by_size = Runs::new();
            for share in SHARES {
                let rate = (share * capacity(&variant.costs)).min(share * MOST_QPS);
                let (noted, _) = self.replay(&plan, &Trace::constant(rate, EACH_S)?)?;
                let seen = noted.seen();
                for hop in seen.iter().flat_map(|one| &one.hops) {
                    by_size.entry(hop.batch).or_default().push(hop.run_us);
                }
                if share <= 1.0 {
                    outside.extend(seen.iter().map(|seen| seen.outside_us));
                } else {
                    // Only the largest is sure to be busy all the time; what it costs to begin a batch, it costs all.
                    gap_us = gap(&seen).unwrap_or(gap_us);
                }
            }
            runs.push(by_size);
        }
        for (variant, by_size) in served.variants.iter_mut().zip(&runs) {
            variant.costs = costs(&variant.costs, by_size);
        }
        let entry_us = mean(&outside).context("nothing was answered while serving was measured")?;
        say(&format!(
            "serving adds {entry_us:.0} us to a request, and {gap_us:.0} us between two batches"
        ));
        Ok((
            served,
            Hops {
                entry: entry_us as u64,
                // A hop between stages is two mailboxes; entering and leaving are those and the broker twice.
                between: entry_us as u64 / 6,
                turnaround: gap_us as u64,
            },
        ))
    }

    /// The same profile with latencies as they are while the variants serve together. A model that shares the processor finds the
    /// processor's caches full of other weights, which measuring each variant alone does not show.
    pub(super) fn as_served_together(&self, alone: &Profile) -> anyhow::Result<Profile> {
        let mut runs: BTreeMap<String, Runs> = BTreeMap::new();
        for planned in self.plans(alone)? {
            let (plan, peak) = (&planned.plan, super::peak(&planned.plan));
            if variants_of(plan) < 2 {
                continue;
            }
            let (noted, _) = self.replay(plan, &Trace::constant(0.5 * peak, EACH_S)?)?;
            for hop in noted.seen().iter().flat_map(|one| &one.hops) {
                let Some(variant) = variant_of(plan, &hop.stage) else {
                    continue;
                };
                let by_size = runs.entry(variant.to_owned()).or_default();
                by_size.entry(hop.batch).or_default().push(hop.run_us);
            }
        }
        let mut together = alone.clone();
        for variant in &mut together.variants {
            let Some(by_size) = runs.get(&variant.name) else {
                continue;
            };
            let before = variant.costs.clone();
            variant.costs = costs(&before, by_size);
            let ratio = |(one, other): (&BatchCost, &BatchCost)| other.latency_s / one.latency_s;
            if let Some(ratio) = before.iter().zip(&variant.costs).map(ratio).next() {
                say(&format!(
                    "a batch of 1 of `{}` takes {ratio:.2} of its time alone when it serves with others",
                    variant.name
                ));
            }
        }
        Ok(together)
    }
}

/// Number of variants that a plan serves with.
fn variants_of(plan: &Plan) -> usize {
    let mut names: Vec<&str> = plan
        .placement
        .iter()
        .map(|replica| replica.variant.as_str())
        .collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

/// The variant that a stage of any gear runs.
fn variant_of<'a>(plan: &'a Plan, stage: &str) -> Option<&'a str> {
    let mut stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
    stages
        .find(|one| one.name == stage)
        .map(|one| one.variant.as_str())
}

/// Requests per second that one replica carries in its largest measured batches.
pub(super) fn capacity(costs: &[BatchCost]) -> f64 {
    costs
        .iter()
        .map(|cost| f64::from(cost.batch) / cost.latency_s)
        .fold(1.0, f64::max)
}
