//! The gate of an ingress: the epoch under which it admits requests.
//!
//! Workers report which epoch is in place at them. A newer epoch is admitted once every live worker that it places
//! replicas on reports it, and every stage of every gear has a loaded replica on a live worker. So no request waits for a
//! model that loads, and a plan that cannot serve never replaces one that can.

use std::collections::{BTreeMap, BTreeSet};

use crate::liveness::{HEARTBEAT_PERIOD_US, MISSED_HEARTBEATS};
use crate::plan::Plan;

/// Time for which stages of the current epoch must be without a replica before an epoch that lacks the same stages is admitted,
/// microseconds: longer than a worker takes to come back.
pub(crate) const WITHOUT_REPLICA_US: u64 = 3_000_000;

/// Report of a worker, or a custom actor, about itself.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// Name of the worker or actor.
    pub worker: &'a str,
    /// The newest epoch in place at it; 0 before the first.
    pub in_place: u64,
    /// The replicas of that epoch that it failed to load.
    pub failed: &'a [String],
    /// Whether it is leaving, and must not be counted on.
    pub leaving: bool,
}

/// State of the workers, as the ingress knows it.
#[derive(Debug, Clone, Default)]
pub struct Gate {
    workers: BTreeMap<String, Worker>,
    custom: BTreeMap<String, Custom>,
    /// Time since which the current epoch has had stages without a replica.
    incomplete_since: Option<u64>,
}

#[derive(Debug, Clone, Default)]
struct Worker {
    last_seen: u64,
    leaving: bool,
    /// The epochs that it has reported in place, with the replicas that failed to load.
    in_place: BTreeMap<u64, BTreeSet<String>>,
}

#[derive(Debug, Clone, Default)]
struct Custom {
    last_seen: u64,
    /// Ids of replicas and names of stages that it serves under every epoch.
    serves: BTreeSet<String>,
}

impl Gate {
    /// Notes the report of a worker at `now` (µs). True if it changes something.
    pub fn report(&mut self, report: Report<'_>, now: u64) -> bool {
        let worker = self.workers.entry(report.worker.to_owned()).or_default();
        let was_alive = is_alive(worker.last_seen, now) && !worker.leaving;
        worker.last_seen = worker.last_seen.max(now);
        worker.leaving = report.leaving;
        let newest = worker.in_place.last_key_value().map_or(0, |(newest, _)| *newest);
        if report.in_place < newest {
            // It has started again without memory.
            worker.in_place.clear();
        }
        let failed: BTreeSet<String> = report.failed.iter().cloned().collect();
        let known = report.in_place == 0 || worker.in_place.get(&report.in_place) == Some(&failed);
        if report.in_place > 0 {
            worker.in_place.insert(report.in_place, failed);
        }
        !known || report.leaving || !was_alive
    }

    /// Notes that a custom actor serves these replicas and stages, under whatever epoch.
    pub fn custom<'a>(&mut self, actor: &str, serves: impl Iterator<Item = &'a str>, now: u64) {
        let custom = self.custom.entry(actor.to_owned()).or_default();
        custom.last_seen = now;
        custom.serves = serves.map(ToOwned::to_owned).collect();
    }

    /// The epoch to admit under from now on, given the current one and the plans known (in any order); `None` if nothing changes.
    ///
    /// `confirmed` is whether the current epoch was admitted by this gate before. Otherwise it is merely the newest one, and is
    /// returned once it is in place.
    pub fn admits<'a>(
        &mut self,
        current: u64,
        confirmed: bool,
        plans: impl Iterator<Item = (u64, &'a Plan)> + Clone,
        now: u64,
    ) -> Option<u64> {
        self.forget(current, now);
        let plan_of = |epoch| plans.clone().find(|(of, _)| *of == epoch).map(|(_, plan)| plan);
        let lacking = plan_of(current).map_or_else(BTreeSet::new, |plan| self.lacks(current, plan, now));
        let complete = lacking.is_empty();
        if complete {
            self.incomplete_since = None;
        }
        let since = self.incomplete_since;
        if !complete {
            self.incomplete_since.get_or_insert(now);
        }
        let lasting = since.is_some_and(|since| now.saturating_sub(since) >= WITHOUT_REPLICA_US);
        let mut best = None;
        for (epoch, plan) in plans.filter(|(epoch, _)| *epoch > current || (!confirmed && *epoch == current))
        {
            if best.is_some_and(|best| best > epoch) {
                continue;
            }
            let without = self.lacks(epoch, plan, now);
            let serves = without.is_empty();
            let everywhere = self.is_in_place(epoch, plan, now);
            // While the current epoch cannot serve, one that can is better, though a worker still loads; and one that lacks
            // nothing else is no worse.
            let better = serves && !complete;
            let no_worse = lasting && everywhere && without.is_subset(&lacking);
            if (everywhere && serves) || better || no_worse {
                best = Some(epoch);
            }
        }
        best
    }

    /// Stages of the plan, over all gears, that no live replica runs under the epoch.
    pub fn lacks<'a>(&self, epoch: u64, plan: &'a Plan, now: u64) -> BTreeSet<&'a str> {
        let loaded: Vec<_> = plan
            .placement
            .iter()
            .filter(|replica| {
                self.has_loaded(&replica.worker, epoch, &replica.id, now) || self.is_custom(&replica.id, now)
            })
            .collect();
        let stages = plan.all_gears().flat_map(|gear| &gear.wiring.stages);
        stages
            .filter(|stage| !loaded.iter().any(|replica| stage.is_run_by(replica)))
            .map(|stage| stage.name.as_str())
            .filter(|stage| !self.is_custom(stage, now))
            .collect()
    }

    /// Returns whether every live worker that the plan places replicas on reports the epoch in place.
    pub(crate) fn is_in_place(&self, epoch: u64, plan: &Plan, now: u64) -> bool {
        let mut placed = plan
            .placement
            .iter()
            .filter_map(|replica| self.workers.get(&replica.worker));
        placed.all(|worker| !counts(worker, now) || worker.in_place.contains_key(&epoch))
    }

    /// Returns whether requests must be refused until later, because no epoch has been in place yet: some stage of the plan has no
    /// live replica, and a live worker still loads what the plan places on it.
    ///
    /// What no live worker will change is not waited for: the broker says at once that a stage has no subscriber, and a
    /// program that sends no heartbeats may serve it.
    pub fn is_loading(&self, epoch: u64, plan: &Plan, now: u64) -> bool {
        let mut placed = plan
            .placement
            .iter()
            .filter_map(|replica| self.workers.get(&replica.worker));
        placed.any(|worker| counts(worker, now) && !worker.in_place.contains_key(&epoch))
            && !self.lacks(epoch, plan, now).is_empty()
    }

    /// Returns the workers that the plan places replicas on and that do not live, unless custom actors serve all of those replicas.
    pub fn absent<'a>(&self, plan: &'a Plan, now: u64) -> BTreeSet<&'a str> {
        let lives = |worker: &str| self.workers.get(worker).is_some_and(|worker| counts(worker, now));
        let placed = plan.placement.iter();
        placed
            .filter(|replica| !lives(&replica.worker) && !self.is_custom(&replica.id, now))
            .map(|replica| replica.worker.as_str())
            .collect()
    }

    /// Returns the live workers on which the plan places no replica.
    pub fn unplaced(&self, plan: &Plan, now: u64) -> BTreeSet<&str> {
        let placed: BTreeSet<&str> = plan
            .placement
            .iter()
            .map(|replica| replica.worker.as_str())
            .collect();
        let live = self.workers.iter().filter(|(_, worker)| counts(worker, now));
        live.map(|(name, _)| name.as_str())
            .filter(|name| !placed.contains(name))
            .collect()
    }

    /// Returns the live custom actors that serve stages, none of which the plan has: nothing is ever sent to them.
    pub fn unnamed(&self, plan: &Plan, now: u64) -> BTreeSet<&str> {
        let stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
        let stages = stages.map(|stage| stage.name.as_str());
        let replicas = plan.placement.iter().map(|replica| replica.id.as_str());
        let named: BTreeSet<&str> = stages.chain(replicas).collect();
        let live = self
            .custom
            .iter()
            .filter(|(_, custom)| is_alive(custom.last_seen, now));
        live.filter(|(_, custom)| !custom.serves.is_empty())
            .filter(|(_, custom)| !custom.serves.iter().any(|name| named.contains(name.as_str())))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The replicas that live workers failed to load where the plan of the epoch places them. Another worker may still run
    /// a replica of that id under an earlier epoch: it ignores requests of this one, and only its silence would show it.
    pub fn unloadable(&self, epoch: u64, plan: &Plan, now: u64) -> BTreeSet<String> {
        let failed = |worker: &str| {
            let worker = self.workers.get(worker).filter(|worker| counts(worker, now));
            worker.and_then(|worker| worker.in_place.get(&epoch))
        };
        let placed = plan.placement.iter();
        placed
            .filter(|replica| failed(&replica.worker).is_some_and(|failed| failed.contains(&replica.id)))
            .map(|replica| replica.id.clone())
            .collect()
    }

    fn has_loaded(&self, worker: &str, epoch: u64, replica: &str, now: u64) -> bool {
        let worker = self.workers.get(worker).filter(|worker| counts(worker, now));
        let failed = worker.and_then(|worker| worker.in_place.get(&epoch));
        failed.is_some_and(|failed| !failed.contains(replica))
    }

    fn is_custom(&self, name: &str, now: u64) -> bool {
        let mut alive = self
            .custom
            .values()
            .filter(|custom| is_alive(custom.last_seen, now));
        alive.any(|custom| custom.serves.contains(name))
    }

    /// Drops what no decision needs any more.
    fn forget(&mut self, current: u64, now: u64) {
        for worker in self.workers.values_mut() {
            worker.in_place = worker.in_place.split_off(&current);
        }
        self.workers
            .retain(|_, worker| now.saturating_sub(worker.last_seen) < WITHOUT_REPLICA_US);
        self.custom.retain(|_, custom| is_alive(custom.last_seen, now));
    }
}

fn counts(worker: &Worker, now: u64) -> bool {
    is_alive(worker.last_seen, now) && !worker.leaving
}

fn is_alive(last_seen: u64, now: u64) -> bool {
    now.saturating_sub(last_seen) <= MISSED_HEARTBEATS * HEARTBEAT_PERIOD_US
}

#[cfg(test)]
mod tests;
