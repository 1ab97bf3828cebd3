//! The worker of a process: it loads what plans place on it, reports it in place, and unloads what has drained.

use std::collections::BTreeSet;
use std::rc::Rc;

use kaskade_policy::adoption::retention::Retention;
use kaskade_policy::plan::Replica as Placed;
use rand::Rng;

use super::messages::{Name, Timer};
use super::plans;
use super::process::Process;
use super::replica::{Replica, key};
use super::sabotage::Sabotage;
use super::world::World;

/// Time for which a worker keeps a past epoch if no ingress publishes, microseconds.
const MAX_BUDGET_US: u64 = 1_500_000;

/// A worker's state for its epochs.
pub(crate) struct Worker {
    newest: u64,
    loading: BTreeSet<Name>,
    failed: BTreeSet<Name>,
    retention: Retention,
    pub(crate) in_place: u64,
    pub(crate) reported_failed: Rc<[String]>,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self {
            newest: 0,
            loading: BTreeSet::new(),
            failed: BTreeSet::new(),
            retention: Retention::new(MAX_BUDGET_US),
            in_place: 0,
            reported_failed: Rc::new([]),
        }
    }

    /// Whether every ingress takes the id for another replica.
    pub(crate) fn has_moved(&self, process: &Process, replica: &Replica) -> bool {
        let admitted = self.retention.admitted_everywhere();
        let plan = admitted.and_then(|epoch| process.adoption.at(epoch));
        let mut placed = plan.into_iter().flat_map(|plan| &plan.placement);
        placed.any(|placed| *placed.id == *replica.id && *placed != *replica.placed)
    }
}

impl World {
    /// Loads what the newest plan needs, and reports it in place once it is there.
    pub(crate) fn reconcile(&mut self, of: usize) {
        let process = &mut self.processes[of];
        let (Some(worker), Some((newest, plan, _))) = (&mut process.worker, process.adoption.newest()) else {
            return;
        };
        let plan = Rc::clone(plan);
        if worker.newest != newest {
            worker.newest = newest;
            worker.failed.clear();
        }
        let mut missing = Vec::new();
        for placed in plan
            .placement
            .iter()
            .filter(|placed| *placed.worker == *process.name)
        {
            let key = key(placed);
            if !process.replicas.contains_key(&key) && !worker.failed.contains(&key) {
                missing.push((Rc::new(placed.clone()), worker.loading.insert(key)));
            }
        }
        // What the first plan and fixed plans need is there from the beginning.
        if !self.scenario.moves || newest == 1 {
            for (placed, _) in missing.drain(..) {
                self.host(of, &placed);
            }
        }
        let complete = missing.is_empty();
        for (replica, begins) in missing {
            if begins {
                let takes = self.rng.random_range(1..=self.scenario.load_us);
                self.timer(of, takes, Timer::Loaded { replica });
            }
        }
        if complete {
            self.place(of, newest);
        }
        self.release(of);
        self.rebatch(of);
    }

    /// All that the epoch places here is loaded or has failed: it is subscribed and reported.
    fn place(&mut self, of: usize, epoch: u64) {
        let now = self.now;
        let process = &mut self.processes[of];
        let (Some(worker), Some(plan)) = (&mut process.worker, process.adoption.at(epoch)) else {
            return;
        };
        if worker.in_place >= epoch {
            return;
        }
        for replica in process
            .replicas
            .values_mut()
            .filter(|replica| plan.placement.contains(&replica.placed))
        {
            let stages = plan.gears.iter().flat_map(|gear| &gear.wiring.stages);
            let run = stages.filter(|stage| stage.is_run_by(&replica.placed));
            replica.stages.extend(run.map(|stage| stage.name.clone()));
        }
        worker.in_place = epoch;
        worker.retention.placed(epoch, now);
        let failed = plan
            .placement
            .iter()
            .filter(|placed| worker.failed.contains(&key(placed)));
        worker.reported_failed = failed.map(|placed| placed.id.clone()).collect();
        self.note(format_args!("p{of} has epoch {epoch} in place"));
        self.beat_now(of);
    }

    fn host(&mut self, of: usize, placed: &Rc<Placed>) {
        let replica = Replica::new(placed, self.scenario.capacity, self.sabotage);
        let process = &mut self.processes[of];
        if let Some(worker) = &mut process.worker {
            worker.loading.remove(&replica.key);
        }
        process.replicas.insert(Rc::clone(&replica.key), replica);
    }

    pub(crate) fn loaded(&mut self, of: usize, placed: &Rc<Placed>) {
        if placed.device == plans::BROKEN {
            let key = key(placed);
            if let Some(worker) = &mut self.processes[of].worker {
                worker.loading.remove(&key);
                worker.failed.insert(key);
            }
        } else {
            self.host(of, placed);
        }
        self.reconcile(of);
    }

    /// Unloads what no epoch needs any more.
    pub(crate) fn release(&mut self, of: usize) {
        let (now, at_once) = (self.now, self.sabotage == Some(Sabotage::RetiresAtOnce));
        let process = &mut self.processes[of];
        let Some(worker) = &mut process.worker else { return };
        let mut kept = worker.retention.keeps(worker.newest, now);
        if at_once && worker.in_place == worker.newest {
            kept = BTreeSet::from([worker.newest]);
        }
        let mut pinned = kept.clone();
        pinned.extend(worker.retention.admitted());
        process.adoption.pin(pinned);
        let plans: Vec<_> = kept
            .iter()
            .filter_map(|epoch| process.adoption.at(*epoch))
            .collect();
        for replica in process.replicas.values_mut() {
            let mine = plans
                .iter()
                .filter(|plan| plan.placement.contains(&replica.placed));
            let stages = mine
                .flat_map(|plan| &plan.gears)
                .flat_map(|gear| &gear.wiring.stages);
            let run: BTreeSet<&str> = stages
                .filter(|stage| stage.is_run_by(&replica.placed))
                .map(|stage| stage.name.as_str())
                .collect();
            replica.stages.retain(|stage| run.contains(stage.as_str()));
        }
        // A replica that is unloaded first answers what it has taken.
        let before = process.replicas.len();
        process.replicas.retain(|key, replica| {
            let placed = &replica.placed;
            let stays = plans.iter().any(|plan| plan.placement.contains(placed)) || !replica.is_at_rest();
            if !stays {
                process.retired.insert(Rc::clone(key), Rc::clone(placed));
            }
            stays
        });
        if process.replicas.len() < before {
            self.beat_now(of);
        }
    }

    pub(crate) fn receive_state(&mut self, of: usize, ingress: &str, admits: u64, oldest: u64) {
        let now = self.now;
        if let Some(worker) = &mut self.processes[of].worker {
            let before = worker.retention.admitted_everywhere();
            worker.retention.record(ingress, admits, oldest, false, now);
            let changed = worker.retention.admitted_everywhere() != before;
            self.release(of);
            if changed {
                self.beat_now(of);
            }
        }
    }
}
