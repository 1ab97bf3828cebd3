//! Events from outside the stream of requests: ticks and gear shifts, replicas that start, stop and fail.

use std::sync::Arc;

use kaskade_policy::ledger::AfterLoss;
use kaskade_policy::plan::{Batching, Sharing};
use kaskade_policy::run_time::RunTimeEstimate;

use super::Engine;
use crate::config::Change;
use crate::control::IndexedReplicaEvent;
use crate::events::{Event, NEVER, Task};
use crate::fleet::Health;
use crate::observer::{Loss, Observer, Tick};
use crate::report::{SHIFTS_KEPT, Shift};
use crate::run_tables::KnownReplica;

impl<O: Observer> Engine<'_, O> {
    /// Processes the next external event.
    #[cold]
    pub(super) fn control(&mut self) {
        self.report.events += 1;
        let (alarm, is_tick) = self.control.alarm();
        if self.control.next_happening() <= alarm {
            if let Some((next, rest)) = self.control.timeline.split_first() {
                self.control.timeline = rest;
                self.now = self.now.max(next.at);
                self.happen(*next);
            }
            return;
        }
        self.now = self.now.max(alarm);
        self.control.set_next_alarm(self.config.control_interval_us);
        if is_tick {
            self.tick();
        } else {
            self.observe();
        }
    }

    fn tick(&mut self) {
        let arrivals = std::mem::take(&mut self.control.arrivals);
        let first_queue = self.first_queue();
        let wanted = self.control.shifter.tick(self.now, arrivals, first_queue);
        if let Some(gear) = wanted.filter(|_| self.control.shifts) {
            self.shift(gear);
        }
        self.observer.tick(&Tick {
            at_us: self.now,
            arrivals,
            qps: self.control.shifter.qps(),
            gear: self.control.gear,
            first_queue,
            in_flight: self.in_flight,
            active_devices: self.fleet.active,
        });
    }

    /// Requests that wait for the variant of the running gear's first stage.
    fn first_queue(&self) -> usize {
        let plan = &self.epochs.current().plan;
        let gear = plan.gears.get(self.control.gear as usize);
        let first = gear.map_or(0, |gear| gear.first);
        let replicas = self.fleet.replicas.iter();
        replicas
            .filter(|replica| replica.variant == first)
            .map(|replica| replica.queue.len())
            .sum()
    }

    /// Requests in flight finish in the gear that admitted them; new batches follow the new gear.
    fn shift(&mut self, gear: u32) {
        self.control.gear = gear;
        self.report.shifts += 1;
        if self.report.shift_log.len() < SHIFTS_KEPT {
            self.report.shift_log.push(Shift {
                at_us: self.now,
                gear,
            });
        }
        self.batch_as_the_gear_says();
    }

    /// The triggers of the running gear, for every replica of the plan in force.
    pub(super) fn batch_as_the_gear_says(&mut self) {
        let plan = Arc::clone(&self.epochs.current().plan);
        let Some(gear) = plan.gears.get(self.control.gear as usize) else {
            return;
        };
        for number in &plan.placement {
            let variant = self.fleet.replica(*number).map_or(0, |replica| replica.variant);
            if let Some(Some(batching)) = gear.batching.get(variant as usize) {
                self.rebatch(*number, *batching);
            }
        }
    }

    fn rebatch(&mut self, number: u32, batching: Batching) {
        if let Some(replica) = self.fleet.replica(number) {
            replica.queue.set_batching(batching);
            self.pump(number);
        }
    }

    /// No more arrivals: replicas that wait for larger batches run at once. Returns false if this changed nothing.
    pub(super) fn drain(&mut self) -> bool {
        if self.in_flight == 0 {
            return false;
        }
        for number in 0..self.fleet.replicas.len() as u32 {
            let batching = self.fleet.replica(number).map(|replica| replica.queue.batching());
            self.rebatch(
                number,
                Batching {
                    min_queue: 1,
                    ..batching.unwrap_or_default()
                },
            );
        }
        self.events.next_event() != NEVER
    }

    /// A replica is named by its id, which another plan may have given another variant meanwhile.
    fn happen(&mut self, happening: IndexedReplicaEvent) {
        let replicas = &self.tables.replicas;
        let named = replicas.get(happening.replica as usize);
        let same = |(_, replica): &(u32, &KnownReplica)| named.is_some_and(|named| named.id == replica.id);
        let numbers = (0..).zip(replicas).filter(same).map(|(number, _)| number);
        let numbers: Vec<u32> = numbers.collect();
        let mut changed = false;
        for number in numbers {
            changed |= self.changes(number, happening.change);
        }
        if changed {
            self.epochs.learn_who_lives(&self.fleet);
            self.begin_if_loaded();
        }
    }

    fn changes(&mut self, replica: u32, change: Change) -> bool {
        let health = self.fleet.health(replica);
        if let Some(state) = self.fleet.replica(replica) {
            state.out = match change {
                Change::Starts => false,
                Change::Stops | Change::Fails => state.out || health != Health::Down,
            };
        }
        match (change, health) {
            (Change::Starts, Health::Down | Health::Draining | Health::Failed) => {
                if !self.epochs.place(replica) {
                    return false;
                }
                self.fleet.set_health(replica, Health::Up, self.now);
            }
            (Change::Stops, Health::Up) => {
                self.fleet.set_health(replica, Health::Draining, self.now);
                self.settle(replica);
            }
            (Change::Stops | Change::Fails, Health::Loading) => {
                self.fleet.set_health(replica, Health::Down, self.now);
            }
            (Change::Fails, Health::Up | Health::Draining) => self.fail(replica),
            _ => return false,
        }
        true
    }

    /// A replica that drains stops once it is empty.
    pub(super) fn settle(&mut self, number: u32) {
        let now = self.now;
        let empty = self.fleet.replica(number).is_some_and(|replica| {
            replica.health == Health::Draining && replica.run.is_none() && replica.queue.is_empty()
        });
        if empty {
            self.fleet.set_health(number, Health::Down, now);
        }
    }

    /// The requests of a failed replica are lost, and sent again when the failure is noticed.
    fn fail(&mut self, number: u32) {
        let (tasks, run, running) = self.empty(number);
        self.fleet.set_health(number, Health::Failed, self.now);
        if let Some(replica) = self.fleet.replica(number) {
            replica.lost.extend(tasks);
            replica.in_line = false;
            replica.timer = NEVER;
            replica.learned = RunTimeEstimate::default();
        }
        if let Some(run) = run {
            self.device_is_free(number, run, running);
        }
        self.leave_line(number);
        let at = self.now.saturating_add(self.config.detection_us);
        self.events.add(at, Event::Noticed(number));
    }

    fn leave_line(&mut self, number: u32) {
        if self.fleet.sharing != Sharing::Exclusive {
            return;
        }
        let device = self.fleet.replica(number).map_or(0, |replica| replica.device);
        let device = self.fleet.devices.get_mut(device as usize);
        if let Some(next) = device.and_then(|device| device.turns.cancel(number)) {
            self.take_turn(next);
        }
    }

    pub(super) fn failure_noticed(&mut self, number: u32) {
        if self.fleet.health(number) == Health::Failed {
            self.fleet.set_health(number, Health::Down, self.now);
            self.epochs.learn_who_lives(&self.fleet);
        }
        let Some(replica) = self.fleet.replica(number) else {
            return;
        };
        for task in std::mem::take(&mut replica.lost) {
            self.was_lost(task);
        }
    }

    fn was_lost(&mut self, task: Task) {
        let Some((_, deadline)) = self.current(task) else {
            return self.drop_copy(task);
        };
        let losses = self.flights.get(task.flight).map_or(0, |flight| flight.losses);
        let ledger = &self.config.ledger;
        match ledger.after_loss(task.attempt.into(), losses.into(), self.now, deadline) {
            AfterLoss::Resend => {
                if let Some(flight) = self.flights.get_mut(task.flight) {
                    flight.losses = flight.losses.saturating_add(1);
                }
                self.next_attempt(task);
                self.resend(task.flight);
            }
            AfterLoss::Exhausted => self.lose(task, Loss::Failed),
            AfterLoss::Expire => self.lose(task, Loss::Expired),
        }
    }

    /// No replica took the copy: the broker reports it at once, and the request is sent again after a pause.
    #[cold]
    pub(super) fn no_replica_took(&mut self, task: Task) {
        let Some((number, deadline)) = self.current(task) else {
            return self.drop_copy(task);
        };
        let ledger = &self.config.ledger;
        match ledger.retry_at(number, task.attempt.into(), self.now, deadline) {
            Some(at) => {
                self.next_attempt(task);
                self.events.add(at, Event::Resend(task.flight));
            }
            None => self.lose(task, Loss::Failed),
        }
    }

    /// The number and the deadline of a copy's request, if the copy still matters.
    fn current(&self, task: Task) -> Option<(u64, u64)> {
        let flight = self.flights.get(task.flight)?;
        (!flight.done && flight.attempt == task.attempt).then_some((flight.number, flight.deadline))
    }

    fn next_attempt(&mut self, task: Task) {
        self.branches.free(task.copy);
        if let Some(flight) = self.flights.get_mut(task.flight) {
            flight.attempt += 1;
        }
    }

    /// Sends a request's current attempt from the entry on. The copy that stood for it becomes one copy per entry.
    pub(super) fn resend(&mut self, place: u32) {
        let Some(flight) = self.flights.get(place) else {
            return;
        };
        let (epoch, gear) = (flight.epoch, flight.gear);
        let Some(entries) = self.entries(epoch, gear) else {
            return;
        };
        if let Some(flight) = self.flights.get_mut(place) {
            flight.copies += entries.count.saturating_sub(1);
            flight.open = entries.count;
            flight.right = true;
        }
        self.set_out(place, entries);
    }
}
