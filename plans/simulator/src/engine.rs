//! The event loop, and the path of a request: admission, queues, reply.

#![expect(
    clippy::inline_always,
    reason = "on the way of every request: measured by benches/simulator.rs"
)]

mod batches;
mod contention;
mod control;
mod forward;
mod outcomes;
mod replan;
mod run;

use std::borrow::Cow;
use std::sync::Arc;

use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::branches::{Branch, Branches, NO_COPY, Paths, ROOT};
use super::compile::{Compiled, CompiledExit};
use super::config::SimConfig;
use super::control::Control;
use super::epochs::Epochs;
use super::events::{Event, EventQueue, Hop, NEVER, ON_ARRIVAL, Task};
use super::fleet::{Fleet, Health};
use super::hop_times::HopTimes;
use super::in_flight::{Flight, RequestSlab};
use super::observer::{Loss, Observer};
use super::replan::Replanning;
use super::report::Report;
use super::run_tables::RunTables;
use super::simulator::Simulator;
use kaskade_policy::admission::Admission;
use kaskade_policy::routing::{self, Destination};

/// One simulation.
pub(super) struct Engine<'a, O> {
    pub(super) tables: Cow<'a, RunTables>,
    pub(super) epochs: Epochs,
    pub(super) config: &'a SimConfig,
    pub(super) observer: &'a mut O,
    pub(super) now: u64,
    pub(super) events: EventQueue,
    pub(super) flights: RequestSlab,
    pub(super) branches: Branches,
    pub(super) paths: Paths,
    pub(super) fleet: Fleet,
    pub(super) control: Control<'a>,
    pub(super) replanning: Option<Replanning<'a>>,
    pub(super) report: Report,
    /// Requests without an outcome.
    pub(super) in_flight: usize,
    /// Requests that a poll found to be late. Empty between events.
    pub(super) late: Vec<Task>,
    /// Room for a batch. Empty between events.
    pub(super) spare: Vec<Task>,
    pub(super) admission: Option<Admission>,
    pub(super) rng: ChaCha8Rng,
    draws: u64,
    /// Rotates the choice among equally busy replicas of a process.
    pub(super) turn: u64,
    next_sample: u32,
    samples: u32,
    hops: HopTimes<'a>,
    /// Time from a client to the first queue, and from the last replica to the client.
    front_us: u64,
    pub(super) back_us: u64,
}

/// The ways into a gear: one, or one per member of an ensemble.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entries {
    /// The first edge; the others follow it.
    first: u32,
    pub(super) count: u32,
    pipeline: bool,
}

impl<'a, O: Observer> Engine<'a, O> {
    pub(super) fn new(
        simulator: &'a Simulator,
        replanning: Option<Replanning<'a>>,
        observer: &'a mut O,
    ) -> Self {
        let (plan, config) = (&simulator.plan, &simulator.config);
        let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
        let first_decision = replanning.as_ref().map_or(NEVER, |_| config.control_interval_us);
        let fleet = first_fleet(simulator);
        let ticks = config.shift.is_some() || replanning.is_some() || observer.wants_ticks();
        let mut report = Report::default();
        report.grow(&simulator.tables);
        Self {
            tables: Cow::Borrowed(&simulator.tables),
            epochs: Epochs::new(Arc::clone(plan), &fleet),
            config,
            observer,
            now: 0,
            events: EventQueue::default(),
            flights: RequestSlab::default(),
            branches: Branches::default(),
            paths: Paths::default(),
            fleet,
            control: Control::new(
                simulator.shifter.clone(),
                config,
                &simulator.timeline,
                first_decision,
                ticks,
            ),
            replanning,
            report,
            in_flight: 0,
            late: Vec::new(),
            spare: Vec::new(),
            admission: config.admission.map(Admission::new),
            draws: rng.random(),
            rng,
            turn: 0,
            next_sample: 0,
            samples: plan.samples,
            hops: HopTimes::new(config),
            front_us: config.entry_hop_us / 2,
            back_us: config.entry_hop_us - config.entry_hop_us / 2,
        }
    }

    /// Processes the arrivals and all events that follow from them.
    pub(super) fn run(mut self, mut arrivals: impl Iterator<Item = u64>) -> Report {
        let mut sent = arrivals.next();
        loop {
            // Whatever is sent later than the first of them arrives, arrives later.
            while let Some(next) = sent
                && self.events.next_entry() >= next
            {
                self.hops.count(next);
                let at = next.saturating_add(self.drawn_hop(self.front_us));
                self.events.add_entry(at, next);
                sent = arrivals.next();
            }
            let arrival = self.events.next_entry();
            let (event, hop) = (self.events.next_event(), self.events.next_hop());
            let next = event.min(hop).min(arrival);
            // A timer wakes a queue at the deadline of a request, which has been answered long since.
            let is_answered = arrival == NEVER && hop == NEVER && self.in_flight == 0;
            if is_answered && self.events.pop_timer() {
                continue;
            }
            if next == NEVER {
                if self.drain() {
                    continue;
                }
                break;
            }
            if self.control.is_due_before(next) && !self.is_over() {
                self.control();
                continue;
            }
            self.now = next;
            self.report.events += 1;
            if event == next {
                self.event();
            } else if hop == next {
                if let Some(hop) = self.events.pop_hop() {
                    self.deliver(hop.task, hop.edge, hop.replica);
                }
            } else if let Some(sent) = self.events.pop_entry() {
                self.arrive(sent);
            }
        }
        self.finish()
    }

    /// Whether no request is to come and every request has its outcome. The events that are left change nothing, and a controller that
    /// continues planning would prevent the schedule from becoming empty.
    fn is_over(&self) -> bool {
        self.replanning.is_some() && self.events.next_entry() == NEVER && self.in_flight == 0
    }

    fn event(&mut self) {
        match self.events.pop_event() {
            Some((at, Event::RunEnds(replica))) => self.run_ends(replica, at),
            Some((at, Event::Timer(replica))) => self.timer(replica, at),
            Some((_, Event::Noticed(replica))) => self.failure_noticed(replica),
            Some((_, Event::Resend(place))) => self.resend(place),
            Some((at, Event::Loaded(replica))) => self.loaded(replica, at),
            None => {}
        }
    }

    fn arrive(&mut self, sent: u64) {
        let (number, sample) = (self.report.requests, self.next_sample);
        self.report.requests += 1;
        self.control.arrivals += 1;
        self.next_sample = if sample + 1 < self.samples { sample + 1 } else { 0 };
        if !self.admits() {
            self.report.duration_us = self.now;
            return self.count_loss(Loss::Refused, sent);
        }
        let (epoch, gear) = (self.epochs.current_place(), self.control.gear);
        let Some(entries) = self.entries(epoch, gear) else {
            return;
        };
        let deadline = match self.config.budget_us {
            Some(budget) => sent.saturating_add(budget),
            None => NEVER,
        };
        let place = self.flights.add(Flight {
            arrived: sent,
            number,
            deadline,
            sample,
            open: entries.count,
            copies: entries.count,
            hops: 0,
            gear,
            epoch,
            attempt: 1,
            losses: 0,
            right: true,
            done: false,
        });
        if self.replanning.is_some() {
            self.epochs.enter();
        }
        self.in_flight += 1;
        self.report.max_in_flight = self.report.max_in_flight.max(self.in_flight);
        self.set_out(place, entries);
    }

    /// The entries of a gear.
    #[inline(always)]
    pub(super) fn entries(&self, epoch: u32, gear: u32) -> Option<Entries> {
        let gear = self.epochs.get(epoch)?.plan.gears.get(gear as usize)?;
        Some(Entries {
            first: *gear.entries.first()?,
            count: gear.entries.len() as u32,
            pipeline: gear.pipeline,
        })
    }

    /// Brings a request's current attempt to the entries of its gear.
    #[inline(always)]
    pub(super) fn set_out(&mut self, place: u32, entries: Entries) {
        let Some(flight) = self.flights.get(place) else {
            return;
        };
        let (epoch, attempt, deadline) = (flight.epoch, flight.attempt, flight.deadline);
        if entries.pipeline {
            self.branches.begin(place);
        }
        // The entries of a gear are numbered one after the other.
        for edge in entries.first..entries.first + entries.count {
            let mut task = self.task(place, attempt, entries.pipeline.then_some(ROOT));
            let near = self.near_ingress(epoch, edge);
            let replica = near.map_or(ON_ARRIVAL, |(replica, stage)| {
                task.stage = stage;
                replica
            });
            self.deliver_to(task, edge, replica, epoch, deadline);
        }
    }

    fn admits(&mut self) -> bool {
        if self.in_flight >= self.config.ledger.max_in_flight {
            return false;
        }
        let budget = self.config.budget_us.unwrap_or(NEVER);
        match &mut self.admission {
            Some(admission) => {
                admission.set_replicas(self.epochs.current().plan.at_once);
                admission.admit(self.now, self.in_flight, budget)
            }
            None => true,
        }
    }

    /// A copy of a request on its way to a stage, which is resolved on arrival. A pipeline's copy carries the path that it has
    /// taken.
    #[inline(always)]
    pub(super) fn task(&mut self, flight: u32, attempt: u16, path: Option<u32>) -> Task {
        let joined = self.now;
        Task {
            flight,
            stage: 0,
            attempt,
            copy: path.map_or(NO_COPY, |path| self.branches.add(Branch { joined, path })),
        }
    }

    /// Returns the time of one message, microseconds.
    #[inline]
    pub(super) fn drawn_hop(&mut self, median_us: u64) -> u64 {
        self.hops.draw(median_us, &mut self.rng)
    }

    /// Sends a copy along an edge.
    pub(super) fn send(&mut self, task: Task, edge: u32, replica: u32) {
        if self.config.hop_us == 0 {
            return self.deliver(task, edge, replica);
        }
        let at = self.now.saturating_add(self.drawn_hop(self.config.hop_us));
        self.events.add_hop(Hop {
            at,
            task,
            edge,
            replica,
        });
    }

    fn deliver(&mut self, task: Task, edge: u32, replica: u32) {
        if let Some(flight) = self.flights.get(task.flight) {
            self.deliver_to(task, edge, replica, flight.epoch, flight.deadline);
        }
    }

    /// Brings a copy to a queue: that of the replica that was chosen for it, or of one that the edge leads to now.
    fn deliver_to(&mut self, mut task: Task, edge: u32, replica: u32, epoch: u32, deadline: u64) {
        let replica = if replica == ON_ARRIVAL {
            self.choose(epoch, edge).map(|(replica, stage)| {
                task.stage = stage;
                replica
            })
        } else {
            Some(replica)
        };
        let Some(number) = replica.filter(|replica| self.fleet.health(*replica) == Health::Up) else {
            return self.no_replica_took(task);
        };
        if task.copy != NO_COPY {
            task.stage = self.branch_joins(task, edge, epoch, number);
        }
        let now = self.now;
        let in_branch = task.copy != NO_COPY;
        let latest = in_branch.then(|| self.latest_end(task, epoch)).flatten();
        let Some(replica) = self.fleet.replica(number) else {
            return;
        };
        let refused = replica.queue.push(task, now, latest.unwrap_or(deadline)).err();
        self.report.max_queue = self.report.max_queue.max(replica.queue.len());
        self.pump(number);
        if let Some(task) = refused {
            self.lose(task, Loss::Refused);
        }
    }

    /// Notes when a pipeline's copy joins the queue of a replica, and gives the stage of its task that is the replica's.
    #[inline(never)]
    fn branch_joins(&mut self, task: Task, edge: u32, epoch: u32, replica: u32) -> u16 {
        self.branches.joins(task.copy, self.now);
        let edge = self
            .epochs
            .get(epoch)
            .and_then(|epoch| epoch.plan.edges.get(edge as usize));
        let replica = self.fleet.replicas.get(replica as usize);
        match (edge, replica) {
            (Some(edge), Some(replica)) => edge.stage_for(replica.variant),
            _ => task.stage,
        }
    }

    /// The replica that an edge leads to now, and the stage that the edge names.
    #[inline(always)]
    fn choose(&mut self, epoch: u32, edge: u32) -> Option<(u32, u16)> {
        self.draws = self.draws.wrapping_add(1);
        self.choose_by(epoch, edge, self.draws)
    }

    /// The replica that an edge leads to, by its shares, or the broker's choice among the replicas of its stage, any with
    /// equal chance; and the stage that the edge names.
    #[inline(always)]
    pub(super) fn choose_by(&mut self, epoch: u32, edge: u32, draws: u64) -> Option<(u32, u16)> {
        let epoch = self.epochs.get(epoch)?;
        let (destination, stage) = epoch.destination(edge, routing::draw(draws))?;
        if let Destination::Replica(replica) = destination {
            return Some((replica, stage));
        }
        let replica = match epoch.group(edge) {
            [] => return None,
            [only] => *only,
            group => *group.get(self.rng.random_range(0..group.len()))?,
        };
        Some((replica, stage))
    }

    /// Forwards or ends a copy that a replica has run.
    #[inline]
    pub(super) fn resolve(&mut self, task: Task, replica: u32, variant: u32) {
        let Some(flight) = self.flights.get_mut(task.flight) else {
            return;
        };
        flight.hops += 1;
        if flight.done || flight.attempt != task.attempt {
            return self.drop_copy(task);
        }
        let plan = self.epochs.get(flight.epoch).map(|epoch| &epoch.plan);
        let stage = plan.and_then(|plan| plan.stages.get(usize::from(task.stage)));
        let outcome = stage.and_then(|stage| stage.outcome(variant, flight.sample));
        let (Some(plan), Some(outcome)) = (plan, outcome) else {
            return self.lose(task, Loss::Failed);
        };
        let ledger = &self.config.ledger;
        let settle = ledger.must_accept_below_threshold(flight.attempt.into());
        if settle && stage.is_some_and(|stage| stage.settles) {
            return self.reply(task, variant, outcome.right());
        }
        match plan.exits.get(outcome.exit()) {
            Some(CompiledExit::Forward(edge)) => {
                let edge = *edge;
                self.pass_on(task, replica, variant, edge);
            }
            Some(CompiledExit::Paired(edge)) => {
                let edge = *edge;
                self.pass_to_partner(task, replica, variant, edge);
            }
            Some(CompiledExit::FanOut(_)) => {
                let plan = Arc::clone(plan);
                self.fan_out(&plan, task, replica, variant, outcome);
            }
            Some(CompiledExit::Reply) | None => self.reply(task, variant, outcome.right()),
        }
    }

    /// Removes a copy. The place of a request is freed with its last copy, and the replicas of a plan that no longer admits with its
    /// last request.
    #[inline(always)]
    pub(super) fn drop_copy(&mut self, task: Task) {
        self.branches.free(task.copy);
        let freed = self.flights.drop_copy(task.flight);
        if self.replanning.is_some()
            && let Some(epoch) = freed
            && self.epochs.leave(epoch)
        {
            self.retire();
        }
    }

    fn finish(mut self) -> Report {
        self.report.lost = self.in_flight as u64;
        self.report.max_places = self.flights.places();
        self.report.branches_left = self.branches.in_use();
        self.report.take_paths(&self.paths, &self.tables);
        let end = self.now.max(self.report.duration_us);
        self.report.take_devices(&self.fleet, end, self.config);
        self.report
    }
}

/// The replicas of the first plan in its first gear, all up but those that are down at the start.
fn first_fleet(simulator: &Simulator) -> Fleet {
    let plan: &Compiled = &simulator.plan;
    let mut fleet = Fleet::new(plan.sharing);
    fleet.grow(&simulator.tables, &simulator.config);
    let gear = plan.gears.get(simulator.config.start_gear as usize);
    for number in &plan.placement {
        if let Some(replica) = fleet.replica(*number) {
            let batching = gear.and_then(|gear| *gear.batching.get(replica.variant as usize)?);
            replica.queue.set_batching(batching.unwrap_or_default());
            replica.out = simulator.down.contains(number);
        }
        if !simulator.down.contains(number) {
            fleet.set_health(*number, Health::Up, 0);
        }
    }
    fleet
}
