//! Processes: their state, their deaths and restarts, and their view of liveness.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use kaskade_policy::{
    adoption::{Adoption, EPOCHS_KEPT},
    liveness::{BEAT_PERIOD_US, LOOK_PERIOD_US, Liveness},
    plan::Plan,
    reachability::{IngressStates, IngressView, Reachability, STATE_PERIOD_US},
};
use rand::Rng;

use super::ingress::Ingress;
use super::messages::{Beat, Event, Message, Name, Timer};
use super::oracle::{Oracle, Owner};
use super::plans;
use super::replica::Replica;
use super::sabotage::Sabotage;
use super::scenario::{Blow, STOP_US, Strike};
use super::world::World;

/// One process: an ingress, a worker, or both, with one set of plans and one view of liveness.
pub(crate) struct Process {
    pub(crate) name: Name,
    /// Counts its starts: what was meant for an earlier life does not reach a later one.
    pub(crate) life: u32,
    pub(crate) up: bool,
    pub(crate) paused_until: u64,
    pub(crate) cut_until: u64,
    pub(crate) book: Adoption<Rc<Plan>>,
    /// What an ingress hears of workers.
    pub(crate) liveness: Liveness,
    /// What a process without an ingress hears of ingresses.
    states: IngressStates,
    /// Which replicas it may send to, and the liveness that this was made from.
    view: (u64, Reachability),
    /// States published by its ingress.
    published: u64,
    /// Worker to the replicas that its last beat named.
    hosts: BTreeMap<Name, BTreeSet<Name>>,
    /// Worker to the newest life heard of, if heartbeats carry lives.
    lives: BTreeMap<Name, u32>,
    /// Draws so far, by sender.
    pub(crate) draws: BTreeMap<Name, u64>,
    pub(crate) ingress: Option<Ingress>,
    pub(crate) replicas: BTreeMap<Name, Replica>,
}

impl Process {
    /// One that has not started.
    pub(crate) fn absent(index: usize) -> Self {
        Self {
            name: format!("w{index}").into(),
            life: 0,
            up: false,
            paused_until: 0,
            cut_until: 0,
            book: Adoption::keeping(EPOCHS_KEPT),
            liveness: Liveness::default(),
            states: IngressStates::default(),
            view: (0, Reachability::default()),
            published: 0,
            hosts: BTreeMap::new(),
            lives: BTreeMap::new(),
            draws: BTreeMap::new(),
            ingress: None,
            replicas: BTreeMap::new(),
        }
    }

    pub(crate) fn owner(&self, process: usize) -> Owner {
        Owner {
            process,
            life: self.life,
        }
    }

    /// Whether the process believes that it could reach the replica.
    pub(crate) fn reachable(&self, replica: &str) -> bool {
        self.view.1.is_reachable(replica) || self.replicas.contains_key(replica)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.book.current().map_or(0, |(epoch, ..)| epoch)
    }

    pub(crate) fn gear(&self) -> u32 {
        self.book.current().map_or(0, |(.., gear)| gear)
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
            for variant in plans::variants(&self.scenario) {
                let replica = Replica::new(variant, index, self.scenario.capacity, self.sabotage);
                process.replicas.insert(Rc::clone(&replica.id), replica);
            }
        }
        let life = process.life;
        self.processes[index] = process;
        self.note(format_args!("p{index} starts, life {life}"));
        self.adopt(index, self.store.newest());
        if index < self.scenario.ingresses {
            self.begin_timer(index, super::scenario::SWEEP_US, Timer::Sweep);
            self.begin_timer(index, super::ingress::TICK_US, Timer::Tick);
            self.begin_timer(index, LOOK_PERIOD_US, Timer::Look);
            self.begin_timer(index, STATE_PERIOD_US, Timer::State);
        } else {
            self.begin_timer(index, LOOK_PERIOD_US, Timer::Expire);
        }
        self.begin_timer(index, BEAT_PERIOD_US, Timer::Beat);
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

    /// A message arrives.
    pub(crate) fn hear(&mut self, to: usize, message: Message) {
        match message {
            Message::Stage {
                replica,
                request,
                budget_us,
            } => self.receive(to, &replica, request, budget_us),
            Message::Done(done) => self.finished(to, &done),
            Message::NobodyListens { owner, id, attempt } => self.undeliverable(to, owner, id, attempt),
            Message::Beat(beat) => self.hear_beat(to, &beat),
            Message::State {
                ingress,
                sequence,
                unavailable,
            } => self.hear_state(to, &ingress, sequence, &unavailable),
            Message::Load { ingress, total } => self.hear_load(to, &ingress, total),
            Message::Gear { epoch, gear } => self.hear_gear(to, epoch, gear),
        }
    }

    /// A worker's heartbeat. Ingresses receive it, the sender's too.
    pub(crate) fn beat(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, BEAT_PERIOD_US, Timer::Beat);
        }
        let process = &self.processes[of];
        if process.replicas.is_empty() {
            return;
        }
        let replicas = process.replicas.values();
        let beat = Beat {
            worker: Rc::clone(&process.name),
            life: process.life,
            replicas: replicas
                .map(|replica| (Rc::clone(&replica.id), replica.variant, replica.depth))
                .collect(),
        };
        self.publish_to(of, &Message::Beat(beat), |to| to.ingress.is_some());
    }

    /// Publishes to all subscribers, which is every process that is up.
    pub(crate) fn everybody(&mut self, from: usize, message: &Message) {
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
        self.publish_state(of);
    }

    /// After a change of liveness the ingress's own view follows, and workers are told.
    pub(crate) fn refresh(&mut self, of: usize) {
        let process = &mut self.processes[of];
        let revision = process.liveness.revision();
        if revision != process.view.0 {
            process.view = (revision, process.liveness.reachability());
            self.publish_state(of);
        }
    }

    fn publish_state(&mut self, of: usize) {
        if self.sabotage == Some(Sabotage::SilentIngresses) {
            return;
        }
        let now = self.now;
        let process = &mut self.processes[of];
        let (Some(ingress), Some((_, plan, _))) = (&process.ingress, process.book.current()) else {
            return;
        };
        process.published += 1;
        let placed = plan.placement.iter().map(|replica| replica.id.as_str());
        let message = Message::State {
            ingress: ingress.id.clone(),
            sequence: process.published,
            unavailable: Rc::new(process.liveness.unavailable(placed, now)),
        };
        self.publish_to(of, &message, |to| to.ingress.is_none());
    }

    fn hear_state(&mut self, to: usize, ingress: &str, sequence: u64, unavailable: &BTreeSet<String>) {
        let view = IngressView {
            sequence,
            unavailable: unavailable.clone(),
            ..IngressView::default()
        };
        let now = self.now;
        let process = &mut self.processes[to];
        if process.states.hear(ingress, view, now) {
            process.view.1 = process.states.reachability();
        }
    }

    /// A worker no longer goes by the states of ingresses that fell silent.
    pub(crate) fn expire(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, LOOK_PERIOD_US, Timer::Expire);
        }
        let now = self.now;
        let process = &mut self.processes[of];
        if process.states.expire(now) {
            process.view.1 = process.states.reachability();
        }
    }

    /// The replicas that a beat names live; those that its sender no longer names have left in good order.
    fn hear_beat(&mut self, to: usize, beat: &Beat) {
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
        for left in before.difference(&named) {
            process.liveness.forget(left);
        }
        for replica in &named {
            process.liveness.beat(replica, now);
        }
        if let Some(ingress) = &mut process.ingress {
            ingress.hear_queues(beat, now);
        }
        self.refresh(to);
    }

    /// If heartbeats carry lives: a late message of an earlier life is ignored, and a new life means that all that the earlier one
    /// held is lost, however short the time in between.
    fn is_of_the_newest_life(&mut self, to: usize, beat: &Beat) -> bool {
        if !self.scenario.glue.beats_name_lives {
            return true;
        }
        let lives = &mut self.processes[to].lives;
        let known = lives
            .insert(Rc::clone(&beat.worker), beat.life)
            .unwrap_or(beat.life);
        if known > beat.life {
            lives.insert(Rc::clone(&beat.worker), known);
            return false;
        }
        if known < beat.life {
            for (replica, ..) in beat.replicas.iter() {
                self.lose(to, replica);
            }
        }
        true
    }

    /// Checks for silence. A process that is cut off from the broker hears no other, so it concludes nothing.
    pub(crate) fn look(&mut self, of: usize) {
        if self.now < STOP_US {
            self.timer(of, LOOK_PERIOD_US, Timer::Look);
        }
        let now = self.now;
        let process = &mut self.processes[of];
        if process.cut_until > now {
            return;
        }
        let lost = process.liveness.newly_lost(now);
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
            process.book = Adoption::keeping(EPOCHS_KEPT);
        }
        let adopted = process.book.adopt(epoch, plan.gears.len(), plan);
        let after = process.epoch();
        self.judge.demand(Oracle::EpochsForward, after >= before, || {
            format!("p{of} ran epoch {before} and adopts epoch {after}")
        });
        match adopted {
            Ok(()) => {
                self.note(format_args!("p{of} adopts epoch {epoch}"));
                self.rebatch(of);
            }
            Err(stale) => self.note(format_args!("p{of}: {stale}")),
        }
    }

    /// Word of a gear.
    fn hear_gear(&mut self, of: usize, epoch: u64, gear: u32) {
        if self.sabotage == Some(Sabotage::DeafToGears) && of + 1 == self.processes.len() {
            return;
        }
        match self.processes[of].book.shift(epoch, gear) {
            Ok(true) => {
                self.note(format_args!("p{of} shifts to gear {gear} of epoch {epoch}"));
                self.rebatch(of);
            }
            Ok(false) => {}
            Err(refused) => self.note(format_args!("p{of}: {refused}")),
        }
    }
}
