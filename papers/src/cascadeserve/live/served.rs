//! Costs of batches while serving, and the overhead of serving, measured before the comparisons.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;
use kaskade_app::measure::served::{capacity, gaps, median_gap_s};
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_policy::plan::{Plan, Sharing};
use kaskade_policy::profile::{BatchCost, HopTime, Profile};
use kaskade_simulator::trace::Trace;

use super::Bench;
use super::noted::{Runs, costs};

/// How long each load is served, seconds.
const EACH_S: usize = 4;

/// A profile with costs and overhead as they are while serving.
pub(super) struct Served {
    /// The profile. Its time of a message is that between a client and a service: half of what a request takes outside of queues and
    /// models.
    pub(super) profile: Profile,
    /// Time of a message from one stage to the next, in the same process, microseconds.
    pub(super) between_us: u64,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(hop) = &self.profile.hop {
            write!(
                f,
                "{} us for a message between client and service",
                hop.median_us()
            )?;
            if let Some(spread) = hop.spread {
                write!(f, " (95th percentile {:.0} us)", spread.p95 * hop.median_s * 1e6)?;
            }
            write!(f, ", ")?;
        }
        write!(
            f,
            "{} us between stages, {} us between two batches",
            self.between_us,
            self.profile.turnaround_us()
        )
    }
}

/// The time of one message, of the times that requests spend outside of queues and models, microseconds.
fn hop_of(mut outside_us: Vec<f64>) -> Option<HopTime> {
    outside_us.sort_by(f64::total_cmp);
    // There and back.
    let one_way: Vec<f64> = outside_us.iter().map(|us| us / 2e6).collect();
    HopTime::of(&one_way)
}

impl Bench {
    /// The profile with latencies and messages as they are while serving. Requests come as they do later, by themselves: a client that
    /// waits for answers leaves the model alone on the processor, and measures a faster machine.
    pub(super) fn as_served(&self, profile: &Profile) -> anyhow::Result<Served> {
        /// Of what a variant carries; the last is more than that, so that batches fill up and follow one another.
        const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.5];
        const MOST_QPS: f64 = 4000.0;
        let mut served = profile.clone();
        let (mut outside, mut gaps_us) = (Vec::new(), Vec::new());
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
                gaps_us.extend(gaps(&seen));
                if share <= 1.0 {
                    outside.extend(seen.iter().map(|seen| f64::from(seen.outside_us)));
                }
            }
            runs.push(by_size);
        }
        for (variant, by_size) in served.variants.iter_mut().zip(&runs) {
            variant.costs = costs(&variant.costs, by_size);
        }
        let hop = hop_of(outside).context("nothing was answered while serving was measured")?;
        served.hop = Some(hop);
        served.turnaround_s = median_gap_s(gaps_us);
        let served = Served {
            between_us: hop.median_us() / 3,
            profile: served,
        };
        say(&format!("each alone: {served}"));
        Ok(served)
    }

    /// The same with latencies and messages as they are while the variants serve together. A model that shares the processor finds the
    /// processor's caches full of other weights, which measuring each variant alone does not show.
    pub(super) fn as_served_together(&self, alone: &Served) -> anyhow::Result<Served> {
        let mut runs: BTreeMap<String, Runs> = BTreeMap::new();
        let (mut outside, mut further) = (Vec::new(), Vec::new());
        for planned in self.plans(&alone.profile)? {
            let (plan, peak) = (&planned.plan, super::peak(&planned.plan));
            let (noted, _) = self.replay(plan, &Trace::constant(0.5 * peak, EACH_S)?)?;
            for one in noted.seen().iter() {
                match one.hops.len() {
                    1 => outside.push(f64::from(one.outside_us)),
                    stages => further.push((stages, f64::from(one.outside_us))),
                }
                for hop in &one.hops {
                    let Some(variant) = variant_of(plan, &hop.stage) else {
                        continue;
                    };
                    let by_size = runs.entry(variant.to_owned()).or_default();
                    by_size.entry(hop.batch).or_default().push(hop.run_us);
                }
            }
        }
        let mut together = alone.profile.clone();
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
        if let Some(hop) = hop_of(outside) {
            together.hop = Some(hop);
        }
        let entry_us = together.hop.map_or(0.0, |hop| 2.0 * hop.median_s * 1e6);
        let mut steps: Vec<f64> = further
            .iter()
            .map(|(stages, us)| (us - entry_us).max(0.0) / (*stages as f64 - 1.0))
            .collect();
        steps.sort_by(f64::total_cmp);
        let between_us = steps.get(steps.len() / 2).map(|us| *us as u64);
        let found = Served {
            profile: together,
            between_us: between_us.unwrap_or(alone.between_us),
        };
        say(&format!("together: {found}"));
        Ok(found)
    }
}

/// The variant that a stage of any gear runs.
fn variant_of<'a>(plan: &'a Plan, stage: &str) -> Option<&'a str> {
    let mut stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
    stages
        .find(|one| one.name == stage)
        .map(|one| one.variant.as_str())
}
