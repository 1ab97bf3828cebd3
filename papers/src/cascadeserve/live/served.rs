//! Costs of batches while serving, and the overhead of serving, measured before the comparisons.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Context as _;
use kaskade_app::measure::serving_overhead::{gaps, median_gap_s, messages_s};
use kaskade_app::planning::initial;
use kaskade_app::report::progress::say;
use kaskade_policy::plan::{Plan, Sharing};
use kaskade_policy::profile::{BatchCost, HopTime, Profile, hop};
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
    /// Rates of requests, requests/s, and the times of messages between a client and a service at each, seconds.
    hops: Vec<(f64, Vec<f64>)>,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(hop) = &self.profile.hop {
            write!(
                f,
                "{} us for a message between client and service",
                hop.median_us()
            )?;
            if let Some(quantiles) = hop.quantiles {
                write!(
                    f,
                    " (95th percentile {:.0} us)",
                    quantiles.p95 * hop.median_s * 1e6
                )?;
            }
            for row in &hop.by_rate {
                let median_us = row.factor * hop.median_s * 1e6;
                write!(f, ", {median_us:.0} us at {:.0}/s", row.qps)?;
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

/// The time of one message, overall and by rate.
fn hop_of(hops: &[(f64, Vec<f64>)]) -> Option<HopTime> {
    let mut all: Vec<f64> = hops.iter().flat_map(|(_, times)| times).copied().collect();
    all.sort_by(f64::total_cmp);
    Some(HopTime::from_sorted(&all)?.with_rates(hops))
}

/// The time of a message at a rate, microseconds, and by how much it exceeds the median of all rates.
fn hop_at(hop: &HopTime, qps: f64) -> (f64, f64) {
    let factor = hop::at_rate(&hop.by_rate, qps).map_or(1.0, |row| row.factor);
    (hop.median_s * 1e6 * factor, factor)
}

impl Bench {
    /// The profile with latencies and messages as they are while serving. Requests come as they do later, by themselves: a client that
    /// waits for answers leaves the model alone on the processor, and measures a faster machine.
    pub(super) fn as_served(&self, profile: &Profile) -> anyhow::Result<Served> {
        /// Loads, as shares of a variant's capacity. The last exceeds the capacity, so that batches fill up and follow one another.
        const SHARES: [f64; 4] = [0.25, 0.5, 0.75, 1.5];
        const MAX_QPS: f64 = 4000.0;
        /// Rate at which processes sleep between two requests.
        const IDLE_QPS: f64 = 30.0;
        let mut served = profile.clone();
        let (mut hops, mut gaps_us) = (Vec::new(), Vec::new());
        let mut runs = Vec::new();
        for variant in &served.variants {
            let mut plan = initial::single(&self.app, &variant.name);
            plan.sharing = Sharing::Exclusive;
            let mut by_size = Runs::new();
            let carried = capacity(&variant.costs).min(MAX_QPS);
            let idle_qps = IDLE_QPS.min(0.1 * carried);
            let rates = SHARES.map(|share| (share * carried, share <= 1.0));
            for (rate, carries) in std::iter::once((idle_qps, true)).chain(rates) {
                let (noted, _) = self.replay(&plan, &Trace::constant(rate, EACH_S)?)?;
                let seen = noted.seen();
                for hop in seen.iter().flat_map(|one| &one.hops) {
                    by_size.entry(hop.batch).or_default().push(hop.run_us);
                }
                gaps_us.extend(gaps(&seen));
                if carries {
                    hops.push((rate, messages_s(&seen)));
                }
            }
            runs.push(by_size);
        }
        for (variant, by_size) in served.variants.iter_mut().zip(&runs) {
            variant.costs = costs(&variant.costs, by_size);
        }
        let hop = hop_of(&hops).context("nothing was answered while serving was measured")?;
        let between_us = hop.median_us() / 3;
        served.hop = Some(hop);
        served.turnaround_s = median_gap_s(gaps_us);
        let served = Served {
            profile: served,
            between_us,
            hops,
        };
        say(&format!("each alone: {served}"));
        Ok(served)
    }

    /// Returns the profile with latencies and messages as they are while the variants serve together. A model that shares the processor
    /// finds its caches full of other weights, which measuring each variant alone does not show.
    pub(super) fn as_served_together(&self, alone: &Served) -> anyhow::Result<Served> {
        let mut runs: BTreeMap<String, Runs> = BTreeMap::new();
        // Low rates were measured alone.
        let (mut hops, mut further) = (alone.hops.clone(), Vec::new());
        for planned in self.plans(&alone.profile)? {
            let (plan, rate) = (&planned.plan, 0.5 * super::peak(&planned.plan));
            let (noted, _) = self.replay(plan, &Trace::constant(rate, EACH_S)?)?;
            let (single, more): (Vec<_>, Vec<_>) =
                noted.seen().drain(..).partition(|one| one.hops.len() == 1);
            hops.push((rate, messages_s(&single)));
            let outside = more
                .iter()
                .map(|one| (rate, one.hops.len(), f64::from(one.outside_us)));
            further.extend(outside);
            for one in single.iter().chain(&more) {
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
        let hop = hop_of(&hops).context("nothing was answered while serving together was measured")?;
        let step_us = |(rate, stages, us): &(f64, usize, f64)| {
            let (message_us, factor) = hop_at(&hop, *rate);
            (us - 2.0 * message_us).max(0.0) / (*stages as f64 - 1.0) / factor
        };
        let mut steps: Vec<f64> = further.iter().map(step_us).collect();
        steps.sort_by(f64::total_cmp);
        let between_us = steps.get(steps.len() / 2).map(|us| *us as u64);
        together.hop = Some(hop);
        let found = Served {
            profile: together,
            between_us: between_us.unwrap_or(alone.between_us),
            hops,
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

/// Requests per second that one replica carries in its largest measured batches.
pub(super) fn capacity(costs: &[BatchCost]) -> f64 {
    costs
        .iter()
        .map(|cost| f64::from(cost.batch) / cost.latency_s)
        .fold(1.0, f64::max)
}
