//! Processes: their state, their deaths and restarts, and their view of liveness.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kaskade_policy::{
    adoption::{
        Adoption, EPOCHS_KEPT,
        gate::{Gate, Report},
    },
    liveness::{CHECK_PERIOD_US, HEARTBEAT_PERIOD_US, Liveness, MISSED_HEARTBEATS},
    plan::{Plan, Replica as Placed},
    reachability::{IngressStates, IngressView, Reachability, STATE_PERIOD_US},
};
use rand::Rng;

use super::ingress::Ingress;
use super::messages::{Beat, Event, Message, Name, Timer};
use super::oracle::{Oracle, Owner};
use super::plans;
use super::replica::Replica;
use super::sabotage::Sabotage;
use super::scenario::{Blow, LATE_US, STOP_US, SWEEP_US, Strike};
use super::worker::Worker;
use super::world::World;

/// One process: an ingress, a worker, or both, with one set of plans and one view of liveness.
pub(crate) struct Process {
    pub(crate) name: Name,
    /// Counts its starts: what was meant for an earlier life does not reach a later one.
    pub(crate) life: u32,
    /// Counts its connections in this life.
    connection: u32,
    pub(crate) up: bool,
    pub(crate) paused_until: u64,
    pub(crate) cut_until: u64,
    pub(crate) adoption: Adoption<Rc<Plan>>,
    /// The ingress's view of the workers.
    pub(crate) liveness: Liveness,
    /// The view of a process without an ingress of the ingresses.
    states: IngressStates,
    /// The replicas that the process may send to, with the version of the liveness that this was derived from.
    view: (u64, Reachability),
    /// States published by its ingress.
    published: u64,
    /// The replicas that its ingress knows to be dead or leaving, each with the time since when.
    pub(crate) unavailable: BTreeMap<String, u64>,
    /// Worker to the replicas that its last beat named.
    hosts: BTreeMap<Name, BTreeSet<Name>>,
    /// Newest life of each worker, if heartbeats carry lives.
    lives: BTreeMap<Name, (u32, u32)>,
    /// Draws so far, by sender.
    pub(crate) draws: BTreeMap<Name, u64>,
    pub(crate) ingress: Option<Ingress>,
    /// Replicas by key.
    pub(crate) replicas: BTreeMap<Name, Replica>,
    /// Replicas that were unloaded, by key: what was on its way when their subscriptions ended still arrives.
    pub(crate) retired: BTreeMap<Name, Rc<Placed>>,
    /// Reports of the workers that the ingress has received.
    pub(crate) gate: Gate,
    pub(crate) worker: Option<Worker>,
    /// Whether it shuts down in good order.
    leaving: bool,
    /// Whether its replicas are subscribed.
    pub(crate) subscribed: bool,
    /// When it is to be back after its leave.
    away_us: u64,
}

impl Process {
    /// Creates a process that has not started.
    pub(crate) fn absent(index: usize) -> Self {
        Self {
            name: format!("w{index}").into(),
            life: 0,
            connection: 0,
            up: false,
            paused_until: 0,
            cut_until: 0,
            adoption: Adoption::with_kept_epochs(EPOCHS_KEPT),
            liveness: Liveness::default(),
            states: IngressStates::default(),
            view: (0, Reachability::default()),
            published: 0,
            unavailable: BTreeMap::new(),
            hosts: BTreeMap::new(),
            lives: BTreeMap::new(),
            draws: BTreeMap::new(),
            ingress: None,
            replicas: BTreeMap::new(),
            retired: BTreeMap::new(),
            gate: Gate::default(),
            worker: None,
            leaving: false,
            subscribed: true,
            away_us: 0,
        }
    }

    pub(crate) fn owner(&self, process: usize) -> Owner {
        Owner {
            process,
            life: self.life,
        }
    }

    /// Whether the process believes that it could reach the replica.
    pub(crate) fn reachable(&self, plan: Option<&Rc<Plan>>, replica: &str) -> bool {
        let placed = |local: &Replica| plan.is_some_and(|plan| plan.placement.contains(&local.placed));
        let mut local = self.replicas.values().filter(|_| self.subscribed);
        self.view.1.is_reachable(replica) || local.any(|local| *local.id == *replica && placed(local))
    }

    pub(crate) fn newest(&self) -> u64 {
        self.adoption.newest().map_or(0, |(epoch, ..)| epoch)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.adoption.current().map_or(0, |(epoch, ..)| epoch)
    }

    pub(crate) fn gear(&self) -> u32 {
        self.adoption.current().map_or(0, |(.., gear)| gear)
    }
}

impl World {
    /// A process begins without memory, with the newest plan of the store.
    pub(crate) fn start(&mut self, index: usize) {
        let before = &self.processes[index];
        let mut process = Process {
            life: before.life + 1,
            up: true,
            cut_until: before.cut_until,
            ..Process::absent(index)
        };
        if index < self.scenario.ingresses {
            let endless = self.sabotage == Some(Sabotage::EndlessAttempts);
            let attempts = if endless {
                u32::MAX
            } else {
                self.scenario.glue.max_attempts
            };
            process.ingress = Some(Ingress::new(index, process.life, self.now, attempts));
        } else {
            process.view.1 = process.states.reachability();
        }
        if plans::hosts(&self.scenario).any(|host| host == index) {
            process.worker = Some(Worker::new());
        }
        let life = process.life;
        self.processes[index] = process;
        self.note(format_args!("p{index} starts, life {life}"));
        self.adopt(index, self.store.newest());
        if index < self.scenario.ingresses {
            self.begin_timer(index, super::scenario::SWEEP_US, Timer::Sweep);
            self.begin_timer(index, super::ingress::TICK_US, Timer::Tick);
            self.begin_timer(index, CHECK_PERIOD_US, Timer::Observation);
            self.begin_timer(index, STATE_PERIOD_US, Timer::State);
        } else {
            self.begin_timer(index, CHECK_PERIOD_US, Timer::Expire);
        }
        self.begin_timer(index, HEARTBEAT_PERIOD_US, Timer::Beat);
        if self.scenario.store_recreated.is_some() {
            self.begin_timer(index, super::control::READ_US, Timer::Read);
        }
    }

    /// Processes do not start in step.
    fn begin_timer(&mut self, of: usize, period_us: u64, timer: Timer) {
        let phase = self.rng.random_range(1..=period_us);
        self.timer(of, phase, timer);
    }

    pub(crate) fn strike(&mut self, strike: Strike) {
        let Strike {
            process,
            blow,
            for_us,
            ..
        } = strike;
        let until = self.now + for_us;
        let there = &mut self.processes[process];
        if !there.up {
            return;
        }
        self.log.note(
            self.now,
            format_args!("p{process} suffers a {blow:?} for {for_us} us"),
        );
        match blow {
            Blow::Pause => there.paused_until = there.paused_until.max(until),
            Blow::Cut => there.cut_until = there.cut_until.max(until),
            Blow::Disconnect => {
                there.cut_until = there.cut_until.max(until);
                let life = there.life;
                self.at(until, Event::Reconnected { process, life });
            }
            Blow::Leave => {
                there.leaving = true;
                there.away_us = for_us;
                self.leave(process);
            }
            Blow::Crash => {
                let owner = there.owner(process);
                there.up = false;
                there.replicas.clear();
                there.ingress = None;
                self.judge.excuse(owner);
                self.at(
                    until,
                    Event::Return {
                        process,
                        life: owner.life,
                    },
                );
            }
        }
    }

    pub(crate) fn come_back(&mut self, process: usize, life: u32) {
        if self.processes[process].life == life && !self.processes[process].up {
            self.start(process);
        }
    }

    /// The connection of a process is up again. Its heartbeats tell the other processes.
    pub(crate) fn reconnected(&mut self, process: usize, life: u32) {
        let there = &mut self.processes[process];
        if there.life == life && there.up {
            there.connection += 1;
            self.note(format_args!("p{process} is connected again"));
            self.send_scattered(process);
        }
    }

    /// A message arrives.
    pub(crate) fn record(&mut self, to: usize, message: Message) {
        match message {
            Message::Stage {
                replica,
                addressed,
                request,
                budget_us,
            } => self.receive(to, &replica, addressed, request, budget_us),
            Message::StageReply(done) => self.finished(to, &done),
            Message::NobodyListens { owner, id, attempt } => self.undeliverable(to, owner, id, attempt),
            Message::Beat(beat) => self.receive_beat(to, &beat),
            Message::State {
                ingress,
                sequence,
                admits,
                oldest,
                unavailable,
            } => {
                self.receive_avoided(to, &ingress, sequence, &unavailable);
                self.receive_state(to, &ingress, admits, oldest);
            }
            Message::Load { ingress, total } => self.receive_load(to, &ingress, total),
            Message::Gear { epoch, gear } => self.receive_gear(to, epoch, gear),
        }
    }

    /// A worker's heartbeat. Ingresses receive it, the sender's too.
    pub(crate) fn beat(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, HEARTBEAT_PERIOD_US, Timer::Beat);
        }
        self.release(of);
        self.beat_now(of);
    }

    pub(crate) fn beat_now(&mut self, of: usize) {
        let silently = self.sabotage == Some(Sabotage::LeavesSilently);
        let process = &self.processes[of];
        let Some(worker) = &process.worker else { return };
        let listed = process
            .replicas
            .values()
            .filter(|replica| !worker.has_moved(process, replica));
        let beat = Beat {
            worker: Rc::clone(&process.name),
            life: (process.life, process.connection),
            leaving: process.leaving && !silently,
            replicas: listed
                .map(|replica| {
                    let variant = Name::from(replica.placed.variant.as_str());
                    (Rc::clone(&replica.id), variant, replica.depth)
                })
                .collect(),
            in_place: worker.in_place,
            failed: worker.reported_failed.clone(),
        };
        self.publish_to(of, &Message::Beat(beat), |to| to.ingress.is_some());
    }

    /// Announces that a worker leaves, and ends its subscriptions once others can have received that.
    fn leave(&mut self, of: usize) {
        self.beat_now(of);
        let heard_us = MISSED_HEARTBEATS * HEARTBEAT_PERIOD_US;
        self.timer(of, heard_us, Timer::Unsubscribe);
    }

    /// The broker gives the worker nothing more; what is on its way arrives within a round trip.
    pub(crate) fn unsubscribe(&mut self, of: usize) {
        self.processes[of].subscribed = false;
        self.note(format_args!("p{of} unsubscribes"));
        let drops = self.sabotage == Some(Sabotage::DropsOnLeave);
        let round_trip_us = if drops { 1 } else { 2 * LATE_US + 1_000 };
        self.timer(of, round_trip_us, Timer::Empty);
    }

    /// The last heartbeat lists no replica.
    pub(crate) fn end_when_empty(&mut self, of: usize) {
        if !self.processes[of].replicas.values().all(Replica::is_at_rest) {
            return self.timer(of, SWEEP_US, Timer::Empty);
        }
        self.processes[of].replicas.clear();
        self.beat_now(of);
        self.note(format_args!("p{of} has left"));
        let process = &mut self.processes[of];
        process.up = false;
        let (life, back) = (process.life, self.now + process.away_us);
        self.at(back, Event::Return { process: of, life });
    }

    /// Publishes to all subscribers, which is every process that is up.
    pub(crate) fn broadcast(&mut self, from: usize, message: &Message) {
        self.publish_to(from, message, |_| true);
    }

    fn publish_to(&mut self, from: usize, message: &Message, subscribes: impl Fn(&Process) -> bool) {
        for to in 0..self.processes.len() {
            if self.processes[to].up && subscribes(&self.processes[to]) {
                self.post(from, to, message.clone());
            }
        }
    }

    /// The ingress publishes its state once per second, apart from changes.
    pub(crate) fn state(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, STATE_PERIOD_US, Timer::State);
        }
        self.publish_state(of, false);
    }

    /// After a change of liveness, updates the ingress's own view and notifies the workers.
    pub(crate) fn refresh(&mut self, of: usize) {
        let process = &mut self.processes[of];
        let revision = process.liveness.revision();
        if revision != process.view.0 {
            process.view = (revision, process.liveness.reachability());
            self.publish_state(of, true);
        }
    }

    /// Publishes the state of an ingress: `changed`, or again.
    pub(crate) fn publish_state(&mut self, of: usize, changed: bool) {
        let silent = self.sabotage == Some(Sabotage::SilentIngresses);
        let now = self.now;
        let process = &mut self.processes[of];
        let Some(ingress) = process
            .ingress
            .as_ref()
            .filter(|_| process.adoption.newest().is_some())
        else {
            return;
        };
        process.published += 1;
        let admitted = process.epoch();
        let all = self.sabotage != Some(Sabotage::ForgetsPastEpochs);
        // Requests of every known epoch may be under way.
        let known = process
            .adoption
            .iter()
            .filter(|(epoch, _)| all || *epoch == admitted);
        let placed = known.flat_map(|(_, plan)| &plan.placement);
        let placed = placed.map(|replica| replica.id.as_str());
        let mut unavailable = process.liveness.unavailable(placed, now);
        process
            .unavailable
            .retain(|replica, _| unavailable.contains(replica));
        for replica in &unavailable {
            process.unavailable.entry(replica.clone()).or_insert(now);
        }
        if changed && self.sabotage == Some(Sabotage::LateIngresses) {
            return;
        }
        if silent {
            unavailable.clear();
        }
        let (admits, oldest) = ingress.published;
        let message = Message::State {
            ingress: ingress.id.clone(),
            sequence: process.published,
            admits,
            oldest,
            unavailable: Rc::new(unavailable),
        };
        self.publish_to(of, &message, |to| to.worker.is_some());
    }

    /// A worker without an ingress avoids what ingresses tell it to.
    fn receive_avoided(&mut self, to: usize, ingress: &str, sequence: u64, unavailable: &BTreeSet<String>) {
        if self.processes[to].ingress.is_some() || self.sabotage == Some(Sabotage::DeafToIngresses) {
            return;
        }
        let view = IngressView {
            sequence,
            unavailable: unavailable.clone(),
            ..IngressView::default()
        };
        let now = self.now;
        let process = &mut self.processes[to];
        if process.states.record(ingress, view, now) {
            process.view.1 = process.states.reachability();
        }
    }

    /// A worker drops the states of ingresses that fell silent.
    pub(crate) fn expire(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, CHECK_PERIOD_US, Timer::Expire);
        }
        let now = self.now;
        let process = &mut self.processes[of];
        if process.states.expire(now) {
            process.view.1 = process.states.reachability();
        }
    }

    /// The replicas that a beat names live; those that its sender no longer names have left in good order.
    fn receive_beat(&mut self, to: usize, beat: &Beat) {
        if !self.is_of_the_newest_life(to, beat) {
            return;
        }
        let now = self.now;
        let process = &mut self.processes[to];
        let named: BTreeSet<Name> = beat.replicas.iter().map(|(id, ..)| Rc::clone(id)).collect();
        let before = process
            .hosts
            .insert(Rc::clone(&beat.worker), named.clone())
            .unwrap_or_default();
        let gone = |replica: &&Name| !process.hosts.values().any(|listed| listed.contains(*replica));
        let left: Vec<Name> = before.difference(&named).filter(gone).cloned().collect();
        for replica in &left {
            process.liveness.forget(replica);
        }
        for replica in &named {
            if beat.leaving {
                process.liveness.record_leaving(replica, now);
            } else {
                process.liveness.record_heartbeat(replica, now);
            }
        }
        if let Some(ingress) = &mut process.ingress {
            ingress.receive_queues(beat, now);
            let report = Report {
                worker: &beat.worker,
                in_place: beat.in_place,
                failed: &beat.failed,
                leaving: beat.leaving,
            };
            process.gate.report(report, now);
            self.admit(to);
        }
        // A worker that stays unloads only what has drained.
        for replica in left.into_iter().filter(|_| beat.leaving) {
            self.has_left(to, &replica);
        }
        self.refresh(to);
    }

    /// Admits requests under the newest epoch that is in place.
    pub(crate) fn admit(&mut self, of: usize) {
        let now = self.now;
        let process = &mut self.processes[of];
        let Some((current, ..)) = process.adoption.current().filter(|_| process.ingress.is_some()) else {
            return;
        };
        let confirmed = process.adoption.is_admitted();
        let known: Vec<(u64, Rc<Plan>)> = process
            .adoption
            .iter()
            .map(|(epoch, plan)| (epoch, Rc::clone(plan)))
            .collect();
        let plans = known.iter().map(|(epoch, plan)| (*epoch, &**plan));
        let epoch = if self.sabotage == Some(Sabotage::AdmitsAtOnce) {
            Some(process.newest())
        } else {
            process.gate.admits(current, confirmed, plans, now)
        };
        if let Some(epoch) = epoch
            && process.adoption.admit(epoch)
        {
            self.note(format_args!("p{of} admits under epoch {epoch}"));
            self.rebatch(of);
        }
        self.avoid_unloadable(of);
    }

    /// Takes note of the replicas of the admitted plan that could not be loaded.
    fn avoid_unloadable(&mut self, of: usize) {
        if self.sabotage == Some(Sabotage::SendsToUnloadable) {
            return;
        }
        let now = self.now;
        let process = &mut self.processes[of];
        if let Some((epoch, plan, _)) = process.adoption.current() {
            let unloadable = process.gate.unloadable(epoch, plan, now);
            process.liveness.set_unloadable(&unloadable);
        }
    }

    /// If heartbeats carry lives: a late message of an earlier life is ignored, and a new life means that all that the earlier one
    /// held is lost, however short the time in between.
    fn is_of_the_newest_life(&mut self, to: usize, beat: &Beat) -> bool {
        if !self.scenario.glue.beats_name_lives {
            return true;
        }
        let process = &mut self.processes[to];
        // What its own replicas have never used the connection.
        let is_own = process.name == beat.worker;
        let lives = &mut process.lives;
        let known = lives
            .insert(Rc::clone(&beat.worker), beat.life)
            .unwrap_or(beat.life);
        if known > beat.life {
            lives.insert(Rc::clone(&beat.worker), known);
            return false;
        }
        if known < beat.life && !is_own {
            let before = self.processes[to].hosts.get(&beat.worker).cloned();
            for replica in before.unwrap_or_default() {
                self.lose(to, &replica);
            }
        }
        true
    }

    /// Checks for silence. A process that is cut off from the broker hears no other, so it concludes nothing.
    pub(crate) fn observe(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, CHECK_PERIOD_US, Timer::Observation);
        }
        let now = self.now;
        let process = &mut self.processes[of];
        if process.cut_until > now {
            return;
        }
        let lost = process.liveness.newly_lost(now);
        self.admit(of);
        self.refresh(of);
        for replica in lost {
            self.note(format_args!("p{of} misses {replica}"));
            self.lose(of, &replica);
        }
    }

    /// Brings a plan of the store to a process.
    pub(crate) fn adopt(&mut self, of: usize, epoch: u64) {
        let plan = self.store.at(epoch);
        let process = &mut self.processes[of];
        let before = process.epoch();
        if self.sabotage == Some(Sabotage::AdoptsStale) {
            process.adoption = Adoption::with_kept_epochs(EPOCHS_KEPT);
        }
        let adopted = process.adoption.adopt(epoch, plan.gears.len(), plan);
        let after = process.epoch();
        self.judge.demand(Oracle::EpochsForward, after >= before, || {
            format!("p{of} ran epoch {before} and adopts epoch {after}")
        });
        match adopted {
            Ok(()) => {
                self.note(format_args!("p{of} adopts epoch {epoch}"));
                self.rebatch(of);
                self.reconcile(of);
                self.admit(of);
            }
            Err(stale) => self.note(format_args!("p{of}: {stale}")),
        }
    }

    /// Word of a gear.
    fn receive_gear(&mut self, of: usize, epoch: u64, gear: u32) {
        if self.sabotage == Some(Sabotage::DeafToGears) && of + 1 == self.processes.len() {
            return;
        }
        match self.processes[of].adoption.shift(epoch, gear) {
            Ok(true) => {
                self.note(format_args!("p{of} shifts to gear {gear} of epoch {epoch}"));
                self.rebatch(of);
            }
            Ok(false) => {}
            Err(refused) => self.note(format_args!("p{of}: {refused}")),
        }
    }
}
