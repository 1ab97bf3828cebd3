//! What happens to the service from outside the stream of requests: ticks and gear shifts, replicas that come, go and fail.

use super::config::{Change, SimConfig};
use super::engine::{Engine, Loss};
use super::events::{Event, NEVER, Task};
use super::fleet::Health;
use super::observer::{Observer, Tick};
use super::report::{SHIFTS_KEPT, Shift};
use crate::ledger::AfterLoss;
use crate::plan::{Batching, Sharing};
use crate::run_time::RunTimeEstimate;
use crate::shifting::Shifter;

/// A [`ReplicaEvent`](super::ReplicaEvent) by number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Happening {
    pub(super) at: u64,
    pub(super) replica: u32,
    pub(super) change: Change,
}

/// What is to happen from outside, and the gear.
#[derive(Debug)]
pub(super) struct Control<'a> {
    pub(super) gear: u32,
    /// Requests that came since the last tick.
    pub(super) arrivals: u64,
    shifter: Shifter,
    shifts: bool,
    tick_us: u64,
    next_tick: u64,
    /// Still to come, in order of time.
    timeline: &'a [Happening],
}

impl<'a> Control<'a> {
    /// In the gear that the configuration says. Without shifting the shifter still measures the load.
    pub(super) fn new(shifter: Shifter, config: &SimConfig, timeline: &'a [Happening]) -> Self {
        let tick_us = config.shift.unwrap_or_default().tick_us;
        Self {
            gear: config.start_gear,
            arrivals: 0,
            shifter,
            shifts: config.shift.is_some(),
            tick_us,
            next_tick: tick_us,
            timeline,
        }
    }

    fn next_happening(&self) -> u64 {
        self.timeline.first().map_or(NEVER, |next| next.at)
    }

    /// Whether there is something to do before the requests' events of this time. Replicas change before them, and a tick
    /// counts them.
    pub(super) fn is_due_before(&self, at: u64) -> bool {
        self.next_tick < at || self.next_happening() <= at
    }
}

impl<O: Observer> Engine<'_, O> {
    /// Does the next thing from outside.
    pub(super) fn control(&mut self) {
        self.report.events += 1;
        if self.control.next_happening() <= self.control.next_tick {
            if let Some((next, rest)) = self.control.timeline.split_first() {
                self.control.timeline = rest;
                self.now = self.now.max(next.at);
                self.happen(*next);
            }
        } else {
            self.now = self.now.max(self.control.next_tick);
            self.control.next_tick += self.control.tick_us;
            self.tick();
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
        });
    }

    /// Requests that wait for the variant of the running gear's first stage.
    fn first_queue(&self) -> usize {
        let gear = self.plan.gears.get(self.control.gear as usize);
        let first = gear.map_or(0, |gear| gear.first);
        let replicas = self.fleet.replicas.iter();
        replicas
            .filter(|replica| replica.variant == first)
            .map(|replica| replica.queue.len())
            .sum()
    }

    /// What is in flight finishes in the gear that admitted it; batches are cut as the new one says.
    fn shift(&mut self, gear: u32) {
        self.control.gear = gear;
        self.report.shifts += 1;
        if self.report.shift_log.len() < SHIFTS_KEPT {
            self.report.shift_log.push(Shift {
                at_us: self.now,
                gear,
            });
        }
        let Some(gear) = self.plan.gears.get(gear as usize) else {
            return;
        };
        for number in 0..self.fleet.replicas.len() as u32 {
            let variant = self.fleet.replica(number).map_or(0, |replica| replica.variant);
            if let Some(Some(batching)) = gear.batching.get(variant as usize) {
                self.rebatch(number, *batching);
            }
        }
    }

    fn rebatch(&mut self, number: u32, batching: Batching) {
        if let Some(replica) = self.fleet.replica(number) {
            replica.queue.set_batching(batching);
            self.pump(number);
        }
    }

    /// Nothing more will come. What waits for company is told to wait no longer. False if nothing came of it.
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
        self.agenda.next_event() != NEVER
    }

    fn happen(&mut self, happening: Happening) {
        let (replica, now) = (happening.replica, self.now);
        match (happening.change, self.fleet.health(replica)) {
            (Change::Starts, Health::Down | Health::Draining | Health::Failed) => {
                self.fleet.set_health(replica, Health::Up, now);
            }
            (Change::Stops, Health::Up) => {
                self.fleet.set_health(replica, Health::Draining, now);
                self.settle(replica);
            }
            (Change::Fails, Health::Up | Health::Draining) => self.fail(replica),
            _ => return,
        }
        self.fleet.learn_who_lives(self.plan);
    }

    /// A replica that drains is gone once it is empty.
    pub(super) fn settle(&mut self, number: u32) {
        let now = self.now;
        let empty = self.fleet.replica(number).is_some_and(|replica| {
            replica.health == Health::Draining && replica.run.is_none() && replica.queue.is_empty()
        });
        if empty {
            self.fleet.set_health(number, Health::Down, now);
        }
    }

    /// What a failed replica held is lost, and sent again when the failure is noticed.
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
        self.agenda.add(at, Event::Noticed(number));
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
            self.fleet.learn_who_lives(self.plan);
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
            return self.flights.drop_copy(task.flight);
        };
        match self
            .config
            .ledger
            .after_loss(task.attempt.into(), self.now, deadline)
        {
            AfterLoss::Resend => {
                self.next_attempt(task.flight);
                self.resend(task.flight);
            }
            AfterLoss::Exhausted => self.lose(task, Loss::Failed),
            AfterLoss::Expire => self.lose(task, Loss::Expired),
        }
    }

    /// Nobody took the copy: the broker says so at once, and the request is sent again after a pause.
    pub(super) fn bounced(&mut self, task: Task) {
        let Some((number, deadline)) = self.current(task) else {
            return self.flights.drop_copy(task.flight);
        };
        let ledger = &self.config.ledger;
        match ledger.retry_at(number, task.attempt.into(), self.now, deadline) {
            Some(at) => {
                self.next_attempt(task.flight);
                self.agenda.add(at, Event::Resend(task.flight));
            }
            None => self.lose(task, Loss::Failed),
        }
    }

    /// The number and the deadline of a copy's request, if the copy still matters.
    fn current(&self, task: Task) -> Option<(u64, u64)> {
        let flight = self.flights.get(task.flight)?;
        (!flight.done && flight.attempt == task.attempt).then_some((flight.number, flight.deadline))
    }

    fn next_attempt(&mut self, place: u32) {
        if let Some(flight) = self.flights.get_mut(place) {
            flight.attempt += 1;
        }
    }

    /// Sends a request's current attempt from the entry on. The copy that stood for it becomes one copy per entry.
    pub(super) fn resend(&mut self, place: u32) {
        let Some(flight) = self.flights.get_mut(place) else {
            return;
        };
        let plan = self.plan;
        let Some(gear) = plan.gears.get(flight.gear as usize) else {
            return;
        };
        let entries = gear.entries.len() as u32;
        flight.copies += entries.saturating_sub(1);
        flight.open = entries;
        flight.right = true;
        let attempt = flight.attempt;
        for edge in &gear.entries {
            self.deliver(self.task(place, attempt, *edge), *edge);
        }
    }
}
