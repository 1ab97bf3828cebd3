//! Forwards results from one task to the next: number of copies, destinations, and drops.

use super::Engine;
use crate::branches::NO_COPY;
use crate::compile::{Compiled, CompiledExit, Outcome};
use crate::events::{NEVER, ON_ARRIVAL, Task};
use crate::observer::{Loss, Observer};
use kaskade_policy::plan::Dropping;
use kaskade_policy::rerouting::{self, Backup, Decision, Forwarding};

/// The stage that a copy has just passed.
struct Ended {
    epoch: u32,
    /// The replica that forwards its results.
    sender: u32,
    /// Path of the copy so far, if it belongs to a pipeline.
    path: Option<u32>,
    /// Basis of early dropping; `None` if nothing is dropped here.
    judged: Option<Judged>,
}

#[derive(Clone, Copy)]
struct Judged {
    dropping: Dropping,
    spent_us: u64,
    budget_us: Option<u64>,
    left_us: Option<u64>,
}

impl<O: Observer> Engine<'_, O> {
    /// Sends a result on to one successor.
    #[inline]
    pub(super) fn pass_on(&mut self, task: Task, replica: u32, variant: u32, edge: u32) {
        if task.copy == NO_COPY {
            let epoch = self.flights.get(task.flight).map(|flight| flight.epoch);
            match epoch.and_then(|epoch| self.near(epoch, replica, edge)) {
                Some((near, stage)) => self.send(Task { stage, ..task }, edge, near),
                None => self.send(task, edge, ON_ARRIVAL),
            }
        } else {
            self.pass_branch_on(task, replica, variant, edge);
        }
    }

    /// The replica in the sender's own process that gets a result on an edge to a queue group, and the stage that the edge names.
    #[inline]
    fn near(&mut self, epoch: u32, sender: u32, edge: u32) -> Option<(u32, u16)> {
        let worker = self.fleet.replicas.get(sender as usize)?.worker;
        self.on_worker(epoch, worker, edge)
    }

    /// Returns the local replica for an entry. The ingress that accepts a request is in the process of one of the workers, of each with
    /// equal probability.
    #[inline]
    pub(super) fn near_ingress(&mut self, epoch: u32, edge: u32) -> Option<(u32, u16)> {
        let known = self.epochs.get(epoch)?;
        known.to_group(edge)?;
        let worker = match known.workers() {
            [] => return None,
            [only] => *only,
            workers => *workers.get(rand::Rng::random_range(&mut self.rng, 0..workers.len()))?,
        };
        self.on_worker(epoch, worker, edge)
    }

    /// The replica of a worker that an actor of its process prefers to the queue group ([`kaskade_policy::routing::local_replica`]).
    #[inline]
    fn on_worker(&mut self, epoch: u32, worker: u32, edge: u32) -> Option<(u32, u16)> {
        let epoch = self.epochs.get(epoch)?;
        let stage = epoch.to_group(edge)?;
        self.turn = self.turn.wrapping_add(1);
        let alone = epoch.is_alone(edge, worker);
        let near = self.fleet.near(epoch.group(edge), worker, alone, self.turn)?;
        Some((near, stage))
    }

    /// Sends a result to the replica that the edge pairs its sender with, or as [`Self::pass_on`] where that one is gone.
    #[inline(never)]
    pub(super) fn pass_to_partner(&mut self, task: Task, replica: u32, variant: u32, edge: u32) {
        let epoch = self.flights.get(task.flight).map(|flight| flight.epoch);
        let plan = epoch.and_then(|epoch| Some(&self.epochs.get(epoch)?.plan));
        let known = plan.and_then(|plan| plan.edges.get(edge as usize));
        let fleet = &self.fleet;
        let partner = known.and_then(|known| Some((known.partner(replica)?, known.stage)));
        let partner = partner.filter(|(partner, _)| fleet.health(*partner).believed_alive());
        match partner {
            Some((partner, stage)) if task.copy == NO_COPY => {
                self.send(Task { stage, ..task }, edge, partner);
            }
            _ => self.pass_on(task, replica, variant, edge),
        }
    }

    #[inline(never)]
    fn pass_branch_on(&mut self, task: Task, replica: u32, variant: u32, edge: u32) {
        let Some(epoch) = self.flights.get(task.flight).map(|flight| flight.epoch) else {
            return;
        };
        let ended = self.ended(epoch, task, replica, variant);
        self.branches.free(task.copy);
        self.forward(task, edge, &ended);
    }

    /// Sends every child its copies. If there are none, this result is the last on its path.
    #[inline(never)]
    pub(super) fn fan_out(
        &mut self,
        plan: &Compiled,
        task: Task,
        replica: u32,
        variant: u32,
        outcome: Outcome,
    ) {
        let Some(CompiledExit::FanOut(children)) = plan.exits.get(outcome.exit()) else {
            return;
        };
        let rng = &mut self.rng;
        let drawn = children.iter().map(|(edge, copies)| (*edge, copies.draw(rng)));
        let copies: Vec<(u32, u32)> = drawn.collect();
        if task.copy != NO_COPY {
            self.note_factors(plan, task, variant, &copies);
        }
        let total: u32 = copies.iter().map(|(_, copies)| copies).sum();
        let Some(flight) = self.flights.get_mut(task.flight).filter(|_| total > 0) else {
            return self.reply(task, variant, outcome.right());
        };
        flight.open += total - 1;
        flight.copies += total - 1;
        let epoch = flight.epoch;
        let ended = self.ended(epoch, task, replica, variant);
        self.branches.free(task.copy);
        for (edge, copies) in copies {
            for _ in 0..copies {
                self.forward(task, edge, &ended);
            }
        }
    }

    /// The counts in workers' heartbeats: the multiplicative factors of their variants (Loki §4.2).
    fn note_factors(&mut self, plan: &Compiled, task: Task, variant: u32, copies: &[(u32, u32)]) {
        let stage = plan.stages.get(usize::from(task.stage));
        let (Some(stage), Some(replanning)) = (stage, &mut self.replanning) else {
            return;
        };
        for (edge, copies) in copies {
            let to = plan.edges.get(*edge as usize);
            let to = to.and_then(|edge| plan.stages.get(usize::from(edge.stage)));
            if let Some(to) = to {
                replanning.note(stage.task, variant, to.task, *copies);
            }
        }
    }

    fn ended(&mut self, epoch: u32, task: Task, sender: u32, variant: u32) -> Ended {
        Ended {
            epoch,
            sender,
            path: (task.copy != NO_COPY).then(|| self.path_on(task, variant).0),
            judged: self.judged(epoch, task),
        }
    }

    fn judged(&self, epoch: u32, task: Task) -> Option<Judged> {
        let plan = &self.epochs.get(epoch)?.plan;
        let stage = plan.stages.get(usize::from(task.stage))?;
        let judges = stage.of_task && plan.dropping != Dropping::None && task.copy != NO_COPY;
        judges.then(|| Judged {
            dropping: plan.dropping,
            spent_us: self.now.saturating_sub(self.branches.get(task.copy).joined),
            budget_us: stage.budget_us,
            left_us: self.left_us(task),
        })
    }

    /// Time from here on until a request misses its deadline or objective, less the hops that are still to come.
    fn left_us(&self, task: Task) -> Option<u64> {
        let end = self.end(task)?;
        let hops = self.config.hop_us + self.back_us;
        Some(end.saturating_sub(self.now.saturating_add(hops)))
    }

    /// When a request misses its deadline or objective; `None` for never.
    fn end(&self, task: Task) -> Option<u64> {
        let flight = self.flights.get(task.flight)?;
        let slo = self.config.slo_us;
        let objective = slo.map_or(NEVER, |slo| flight.arrived.saturating_add(slo));
        Some(flight.deadline.min(objective)).filter(|end| *end != NEVER)
    }

    /// When a branch must have left its stage at the latest, if its plan drops by slack. The queue takes it for the deadline.
    pub(super) fn latest_end(&self, task: Task, epoch: u32) -> Option<u64> {
        let plan = &self.epochs.get(epoch)?.plan;
        let stage = plan.stages.get(usize::from(task.stage))?;
        if plan.dropping != Dropping::Slack || !stage.of_task {
            return None;
        }
        let rest = stage.after_us.saturating_add(self.back_us);
        Some(self.end(task)?.saturating_sub(rest))
    }

    /// Sends one copy of a result along an edge, reroutes it, or drops it.
    fn forward(&mut self, from: Task, edge: u32, ended: &Ended) {
        let task = self.task(from.flight, from.attempt, ended.path);
        let epoch = self.epochs.get(ended.epoch);
        if epoch.is_some_and(|epoch| epoch.to_group(edge).is_some()) {
            // What a queue group gets is not judged: its next replica is not known.
            return match self.near(ended.epoch, ended.sender, edge) {
                Some((near, stage)) => self.send(Task { stage, ..task }, edge, near),
                None => self.send(task, edge, ON_ARRIVAL),
            };
        }
        if ended.path.is_none() {
            return self.send(task, edge, ON_ARRIVAL);
        }
        let Some(chosen) = self.choose_for(ended, edge) else {
            return self.send(task, edge, ON_ARRIVAL);
        };
        let Some(judged) = ended.judged else {
            return self.send(task, edge, chosen);
        };
        match self.decide(ended.epoch, edge, chosen, judged) {
            Decision::Forward => self.send(task, edge, chosen),
            Decision::Reroute(backup) => {
                self.report.rerouted += 1;
                self.send(task, edge, backup);
            }
            Decision::Drop(_) => self.lose(task, Loss::Dropped),
        }
    }

    /// The replica that a pipeline's request is forwarded to. Every sender draws from its own sequence: from a shared one, the draws
    /// for two tasks of a request would be consecutive, and the two variants correlated.
    fn choose_for(&mut self, ended: &Ended, edge: u32) -> Option<u32> {
        let sender = self.fleet.replica(ended.sender)?;
        sender.draws = sender.draws.wrapping_add(1);
        let draws = sender.draws;
        self.choose_by(ended.epoch, edge, draws)
            .map(|(replica, _)| replica)
    }

    fn decide(&mut self, epoch: u32, edge: u32, chosen: u32, judged: Judged) -> Decision<u32> {
        let plan = self.epochs.get(epoch).map(|epoch| &epoch.plan);
        let Some((plan, edge)) = plan.and_then(|plan| Some((plan, plan.edges.get(edge as usize)?))) else {
            return Decision::Forward;
        };
        let fleet = &self.fleet;
        let stage = |replica: u32| {
            let variant = fleet.replicas.get(replica as usize)?.variant;
            plan.stages.get(usize::from(edge.stage_for(variant)))
        };
        let next = stage(chosen);
        let forwarding = Forwarding {
            spent_us: judged.spent_us,
            budget_us: judged.budget_us,
            left_us: judged.left_us,
            run_us: next.map_or(0, |next| next.run_us),
            after_us: next.map_or(0, |next| next.after_us),
            last: next.is_some_and(|next| next.last),
        };
        let alive = edge.backup.iter().copied();
        let alive = alive.filter(|replica| fleet.health(*replica).believed_alive());
        let backups = alive.filter_map(|replica| {
            let stage = stage(replica)?;
            Some(Backup {
                replica,
                run_us: stage.run_us,
                after_us: stage.after_us,
                accuracy: stage.accuracy,
            })
        });
        let draw = if forwarding.late_us() > 0 || judged.dropping == Dropping::Slack {
            rand::Rng::random(&mut self.rng)
        } else {
            0.0
        };
        rerouting::decide(judged.dropping, &forwarding, backups, draw)
    }
}
