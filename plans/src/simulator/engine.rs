//! The loop over time, and the way of a request: in, from queue to queue, out.

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::compile::{Compiled, CompiledExit};
use super::config::{Power, SimConfig};
use super::control::Control;
use super::events::{Agenda, Event, Hop, NEVER, Task};
use super::fleet::{Fleet, Health};
use super::flights::{Flight, Flights};
use super::observer::{Answered, Observer};
use super::report::{DeviceReport, Report, VariantReport};
use crate::admission::Admission;
use crate::energy;
use crate::plan::Sharing;
use crate::routing::{self, Destination};

/// One simulation.
pub(super) struct Engine<'a, O> {
    pub(super) plan: &'a Compiled,
    pub(super) config: &'a SimConfig,
    pub(super) observer: &'a mut O,
    pub(super) now: u64,
    pub(super) agenda: Agenda,
    pub(super) flights: Flights,
    pub(super) fleet: Fleet,
    pub(super) control: Control<'a>,
    pub(super) report: Report,
    /// Requests without an outcome.
    pub(super) in_flight: usize,
    /// Joules of the batches; NaN once one of them is unknown.
    pub(super) batches_j: f64,
    /// Requests that a poll found to be late. Empty between events.
    pub(super) late: Vec<Task>,
    /// Room for a batch. Empty between events.
    pub(super) spare: Vec<Task>,
    admission: Option<Admission>,
    rng: ChaCha8Rng,
    draws: u64,
    next_sample: u32,
    /// From a client to the first queue, and from the last replica to the client.
    front_us: u64,
    back_us: u64,
}

/// Why a request gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    Expired,
    Refused,
    Failed,
}

impl<'a, O: Observer> Engine<'a, O> {
    pub(super) fn new(
        plan: &'a Compiled,
        config: &'a SimConfig,
        sharing: Sharing,
        down: &[u32],
        control: Control<'a>,
        observer: &'a mut O,
    ) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        Self {
            plan,
            config,
            observer,
            now: 0,
            agenda: Agenda::default(),
            flights: Flights::default(),
            fleet: Fleet::new(plan, config, down, sharing),
            control,
            report: blank(plan),
            in_flight: 0,
            batches_j: 0.0,
            late: Vec::new(),
            spare: Vec::new(),
            admission: config.admission.map(Admission::new),
            draws: rng.random(),
            rng,
            next_sample: 0,
            front_us: config.entry_hop_us / 2,
            back_us: config.entry_hop_us - config.entry_hop_us / 2,
        }
    }

    /// Works off the arrivals and everything that follows from them.
    pub(super) fn run(mut self, mut arrivals: impl Iterator<Item = u64>) -> Report {
        let mut sent = arrivals.next();
        loop {
            // At the first queue, and never before the arrival ahead of it.
            let arrival = sent.map_or(NEVER, |sent| sent.saturating_add(self.front_us).max(self.now));
            let (event, hop) = (self.agenda.next_event(), self.agenda.next_hop());
            let next = event.min(hop).min(arrival);
            if next == NEVER {
                if self.drain() {
                    continue;
                }
                break;
            }
            if self.control.is_due_before(next) {
                self.control();
                continue;
            }
            self.now = next;
            self.report.events += 1;
            if event == next {
                self.event();
            } else if hop == next {
                if let Some(hop) = self.agenda.pop_hop() {
                    self.deliver(hop.task, hop.edge);
                }
            } else {
                self.arrive(next - self.front_us);
                sent = arrivals.next();
            }
        }
        self.finish()
    }

    fn event(&mut self) {
        match self.agenda.pop_event() {
            Some((at, Event::RunEnds(replica))) => self.run_ends(replica, at),
            Some((at, Event::Timer(replica))) => self.timer(replica, at),
            Some((_, Event::Noticed(replica))) => self.failure_noticed(replica),
            Some((_, Event::Resend(place))) => self.resend(place),
            None => {}
        }
    }

    fn arrive(&mut self, sent: u64) {
        let (number, sample) = (self.report.requests, self.next_sample);
        self.report.requests += 1;
        self.control.arrivals += 1;
        self.next_sample = if sample + 1 < self.plan.samples {
            sample + 1
        } else {
            0
        };
        if !self.admits() {
            self.report.refused += 1;
            self.report.duration_us = self.now;
            return;
        }
        let plan = self.plan;
        let Some(gear) = plan.gears.get(self.control.gear as usize) else {
            return;
        };
        let place = self.flights.add(Flight {
            arrived: sent,
            number,
            deadline: self
                .config
                .budget_us
                .map_or(NEVER, |budget| sent.saturating_add(budget)),
            sample,
            open: gear.entries.len() as u32,
            copies: gear.entries.len() as u32,
            hops: 0,
            gear: self.control.gear,
            attempt: 1,
            right: true,
            done: false,
        });
        self.in_flight += 1;
        self.report.max_in_flight = self.report.max_in_flight.max(self.in_flight);
        for edge in &gear.entries {
            self.deliver(self.task(place, 1, *edge), *edge);
        }
    }

    fn admits(&mut self) -> bool {
        if self.in_flight >= self.config.ledger.max_in_flight {
            return false;
        }
        let budget = self.config.budget_us.unwrap_or(NEVER);
        match &mut self.admission {
            Some(admission) => admission.admit(self.now, self.in_flight, budget),
            None => true,
        }
    }

    pub(super) fn task(&self, flight: u32, attempt: u16, edge: u32) -> Task {
        let edge = self.plan.edges.get(edge as usize);
        Task {
            flight,
            stage: edge.map_or(0, |edge| edge.stage),
            attempt,
        }
    }

    /// Sends a copy along an edge.
    fn send(&mut self, task: Task, edge: u32) {
        if self.config.hop_us == 0 {
            return self.deliver(task, edge);
        }
        let at = self.now.saturating_add(self.config.hop_us);
        self.agenda.add_hop(Hop { at, task, edge });
    }

    /// Brings a copy to the queue that an edge leads to.
    pub(super) fn deliver(&mut self, task: Task, edge: u32) {
        self.draws = self.draws.wrapping_add(1);
        let replica = match self.fleet.destination(edge, routing::draw(self.draws)) {
            Destination::Replica(replica) => Some(replica),
            Destination::QueueGroup => self.any_of_group(edge),
        };
        let Some(number) = replica.filter(|replica| self.fleet.health(*replica) == Health::Up) else {
            return self.bounced(task);
        };
        let deadline = if self.config.budget_us.is_some() {
            self.flights
                .get(task.flight)
                .map_or(NEVER, |flight| flight.deadline)
        } else {
            NEVER
        };
        let now = self.now;
        let Some(replica) = self.fleet.replica(number) else {
            return;
        };
        let refused = replica.queue.push(task, now, deadline).err();
        self.report.max_queue = self.report.max_queue.max(replica.queue.len());
        self.pump(number);
        if let Some(task) = refused {
            self.lose(task, Loss::Refused);
        }
    }

    /// The broker's choice among the replicas of an edge's stage: any, with equal chance.
    fn any_of_group(&mut self, edge: u32) -> Option<u32> {
        let edge = self.plan.edges.get(edge as usize)?;
        match self.fleet.group(edge.variant) {
            [] => None,
            [only] => Some(*only),
            group => group.get(self.rng.random_range(0..group.len())).copied(),
        }
    }

    /// What becomes of a copy that a replica of this variant has run.
    pub(super) fn resolve(&mut self, task: Task, variant: u32) {
        let plan = self.plan;
        let Some(flight) = self.flights.get_mut(task.flight) else {
            return;
        };
        flight.hops += 1;
        if flight.done || flight.attempt != task.attempt {
            return self.flights.drop_copy(task.flight);
        }
        let stage = plan.stages.get(usize::from(task.stage));
        let Some(outcome) = stage.and_then(|stage| stage.outcome(variant, flight.sample)) else {
            return self.lose(task, Loss::Failed);
        };
        match plan.exits.get(outcome.exit()) {
            Some(CompiledExit::Forward(edge)) => {
                self.send(self.task(task.flight, task.attempt, *edge), *edge);
            }
            Some(CompiledExit::FanOut(children)) => {
                if !self.fan_out(task, children) {
                    self.reply(task, variant, outcome.right());
                }
            }
            Some(CompiledExit::Reply) | None => self.reply(task, variant, outcome.right()),
        }
    }

    /// Sends every child its copies: the whole part of its multiplicity, and one more with the chance of the rest. False if
    /// that came to none, so that the result at hand is the last on its way.
    fn fan_out(&mut self, task: Task, children: &[(u32, f64)]) -> bool {
        let mut copies = Vec::with_capacity(children.len());
        for (edge, multiplicity) in children {
            let more = self.rng.random::<f64>() < multiplicity.fract();
            copies.push((*edge, multiplicity.trunc() as u32 + u32::from(more)));
        }
        let total: u32 = copies.iter().map(|(_, copies)| copies).sum();
        let Some(flight) = self.flights.get_mut(task.flight).filter(|_| total > 0) else {
            return false;
        };
        flight.open += total - 1;
        flight.copies += total - 1;
        for (edge, copies) in copies {
            for _ in 0..copies {
                self.send(self.task(task.flight, task.attempt, edge), edge);
            }
        }
        true
    }

    /// One copy has its reply. With the last one the request is answered.
    fn reply(&mut self, task: Task, variant: u32, right: bool) {
        let Some(flight) = self.flights.get_mut(task.flight) else {
            return;
        };
        flight.right &= right;
        flight.open = flight.open.saturating_sub(1);
        if flight.open == 0 {
            flight.done = true;
            let flight = *flight;
            self.answer(&flight, variant);
        }
        self.flights.drop_copy(task.flight);
    }

    fn answer(&mut self, flight: &Flight, variant: u32) {
        let at_us = self.now.saturating_add(self.back_us);
        self.in_flight -= 1;
        self.report.duration_us = self.report.duration_us.max(at_us);
        // The ingress replies with an error at the deadline, and the answer that comes later is dropped.
        if at_us >= flight.deadline {
            self.report.expired += 1;
            return;
        }
        if let Some(admission) = &mut self.admission {
            admission.completed(self.now);
        }
        let gear = self.plan.gears.get(flight.gear as usize);
        let ballot = gear.and_then(|gear| gear.vote.as_ref()?.get(flight.sample as usize));
        let (variant, right) =
            ballot.map_or((variant, flight.right), |ballot| (ballot.variant, ballot.right));
        let latency_us = at_us - flight.arrived;
        self.report.answered += 1;
        self.report.right += u64::from(right);
        self.report.latency.record(latency_us);
        if let Some(variant) = self.report.variants.get_mut(variant as usize) {
            variant.answered += 1;
        }
        self.observer.answered(&Answered {
            at_us,
            latency_us,
            gear: flight.gear,
            variant,
            right,
            hops: flight.hops,
        });
    }

    /// A copy comes to nothing, and its request with it, unless that has its outcome or a newer attempt.
    pub(super) fn lose(&mut self, task: Task, loss: Loss) {
        if let Some(flight) = self.flights.get_mut(task.flight)
            && !flight.done
            && flight.attempt == task.attempt
        {
            flight.done = true;
            self.in_flight -= 1;
            self.report.duration_us = self.report.duration_us.max(self.now);
            match loss {
                Loss::Expired => self.report.expired += 1,
                Loss::Refused => self.report.refused += 1,
                Loss::Failed => self.report.failed += 1,
            }
        }
        self.flights.drop_copy(task.flight);
    }

    fn finish(mut self) -> Report {
        self.report.lost = self.in_flight as u64;
        self.report.max_places = self.flights.places();
        let duration = self.report.duration_us;
        for (device, state) in self.report.devices.iter_mut().zip(&self.fleet.devices) {
            (device.busy_us, device.up_us) = state.times(self.now.max(duration));
            device.utilisation = device.busy_us as f64 / self.now.max(duration).max(1) as f64;
        }
        self.report.energy_j = self.energy_j();
        self.report
    }

    fn energy_j(&self) -> Option<f64> {
        let mut joules = 0.0;
        for device in &self.report.devices {
            let (up_s, busy_s) = (device.up_us as f64 / 1e6, device.busy_us as f64 / 1e6);
            joules += match self.config.power? {
                Power::Modelled(model) => energy::modelled_joules(up_s, busy_s, model)?,
                Power::Profiled { idle_watts } => up_s * idle_watts,
            };
        }
        if let Some(Power::Profiled { .. }) = self.config.power {
            joules += self.batches_j;
        }
        joules.is_finite().then_some(joules)
    }
}

/// A report of nothing.
fn blank(plan: &Compiled) -> Report {
    let variant = |name: &String| VariantReport {
        name: name.clone(),
        ..VariantReport::default()
    };
    let device = |(worker, device): &(String, String)| DeviceReport {
        worker: worker.clone(),
        device: device.clone(),
        ..DeviceReport::default()
    };
    Report {
        variants: plan.variants.iter().map(variant).collect(),
        devices: plan.devices.iter().map(device).collect(),
        ..Report::default()
    }
}
