//! The ingress: the ledger, admission, and the shifter beside them.

use std::collections::BTreeMap;
use std::rc::Rc;

use kaskade_policy::{
    admission::{Admission, AdmissionConfig},
    arrivals::ArrivalCounter,
    ledger::{AnswerOutcome, FailureOutcome, Ledger, LedgerConfig},
    plan::{Edge, Plan},
    routing::{self, Route},
    shifting::{self, ShiftConfig},
};

use super::messages::{Beat, Name, Request, StageReply, Timer};
use super::oracle::{Fault, Oracle, Owner};
use super::replica::way;
use super::sabotage::Sabotage;
use super::scenario::{STOP_US, SWEEP_US};
use super::world::World;

/// Length of the shifter's tick, microseconds.
pub(crate) const TICK_US: u64 = 100_000;

/// A run has few requests: the load is the mean of half a second, so that gears shift often.
fn shift_config() -> ShiftConfig {
    ShiftConfig {
        sample: 0,
        ..ShiftConfig::default()
    }
}

/// A sweep of a ledger that never empties is given up this long after everything else.
const SWEEP_TIMEOUT_US: u64 = 3_000_000;

/// State that the ingress keeps of a request.
pub(crate) struct Kept {
    token: usize,
    accepted: u64,
    deadline: u64,
    plan: Rc<Plan>,
    epoch: u64,
    gear: u32,
}

/// One ingress and its shifter.
pub(crate) struct Ingress {
    pub(crate) id: Name,
    pub(crate) ledger: Ledger<Kept>,
    admission: Admission,
    /// Requests that arrived at this ingress.
    pub(crate) arrivals: u64,
    pub(crate) load: ArrivalCounter,
    pub(crate) policy: shifting::Shifter,
    /// The epoch whose gears the shifting policy uses.
    pub(crate) epoch: u64,
    pub(crate) last_tick: u64,
    pub(crate) ticks: u64,
    /// Arrivals that the ingress has counted as load.
    pub(crate) counted: u64,
    /// The epoch under which it admits, and the oldest of its requests, as published.
    pub(crate) published: (u64, u64),
    /// Last heartbeat of each worker, with the variants and queues of its replicas.
    pub(crate) queues: BTreeMap<Name, (u64, Beat)>,
}

impl Ingress {
    /// An ingress has another id in every life.
    pub(crate) fn new(process: usize, life: u32, now: u64, max_attempts: u32) -> Self {
        let config = LedgerConfig {
            max_in_flight: 4096,
            max_attempts,
            ..LedgerConfig::default()
        };
        let id: Name = format!("in-{process}-{life:02}").into();
        let mut load = ArrivalCounter::new(now);
        load.record(&id, 0, now);
        Self {
            id,
            ledger: Ledger::new(config),
            admission: Admission::new(AdmissionConfig::default()),
            arrivals: 0,
            load,
            policy: shifting::Shifter::new(&[], shift_config()),
            epoch: 0,
            last_tick: now,
            ticks: 0,
            counted: 0,
            published: (0, 0),
            queues: BTreeMap::new(),
        }
    }

    pub(crate) fn receive_queues(&mut self, beat: &Beat, now: u64) {
        self.queues.insert(Rc::clone(&beat.worker), (now, beat.clone()));
    }
}

impl World {
    fn ingress(&mut self, of: usize) -> Option<&mut Ingress> {
        self.processes[of].ingress.as_mut()
    }

    /// Admits a request.
    pub(crate) fn inbound(&mut self, of: usize, token: usize, budget_us: u64) {
        let (now, owner) = (self.now, self.processes[of].owner(of));
        self.arrivals += 1;
        if let Some(ingress) = self.ingress(of) {
            ingress.arrivals += 1;
        }
        self.sweep(of);
        let running = self.processes[of].adoption.current();
        let running = running.map(|(epoch, plan, gear)| (epoch, Rc::clone(plan), gear));
        let (Some((epoch, plan, gear)), Some(ingress)) = (running, self.processes[of].ingress.as_mut())
        else {
            return self.judge.refused(token, now);
        };
        if !ingress.admission.admit(now, ingress.ledger.len(), budget_us) {
            return self.judge.refused(token, now);
        }
        let deadline = now + budget_us;
        let kept = Kept {
            token,
            accepted: now,
            deadline,
            plan,
            epoch,
            gear,
        };
        let Ok(admitted) = ingress.ledger.admit(now, budget_us, kept) else {
            return self.judge.refused(token, now);
        };
        self.note(format_args!(
            "p{of} accepts request {token} for {budget_us} us under epoch {epoch}, gear {gear}"
        ));
        self.judge.accepted(token, owner, now, deadline, (epoch, gear));
        if self.sabotage == Some(Sabotage::NeverSweeps) && token % 50 == 7 {
            return;
        }
        self.send(of, admitted.id, admitted.attempt);
        if self.sabotage == Some(Sabotage::SendsTwice) && token % 50 == 7 {
            self.send(of, admitted.id, admitted.attempt + 1);
        }
    }

    /// Sends an attempt to the first stage of its wiring.
    fn send(&mut self, of: usize, id: u64, attempt: u32) {
        let Some(kept) = self.ingress(of).and_then(|ingress| ingress.ledger.get(id)) else {
            return;
        };
        let Some(gear) = kept.plan.gears.get(kept.gear as usize) else {
            return;
        };
        let (entry, token) = (gear.wiring.entry.clone(), kept.token);
        self.judge.sent(token, attempt);
        self.send_along(of, &entry, id, attempt, false);
    }

    /// Sends an attempt along an edge of its wiring: to its first stage, or `forwarded` from a stage that leaves this to the ingress.
    fn send_along(&mut self, of: usize, edge: &Edge, id: u64, attempt: u32, forwarded: bool) {
        let owner = self.processes[of].owner(of);
        let Some(ingress) = self.processes[of].ingress.as_mut() else {
            return;
        };
        let Some(kept) = ingress.ledger.get(id) else {
            return;
        };
        let gear = kept.plan.gears.get(kept.gear as usize);
        // The next router does not report here: it may be at any replica, also one that is lost.
        let moves_on = gear.is_some_and(|gear| gear.wiring.may_be_forwarded(edge, false));
        let request = Request {
            owner,
            id,
            attempt,
            token: kept.token,
            epoch: kept.epoch,
            gear: kept.gear,
            stage: edge.stage.as_str().into(),
            accept_below_threshold: ingress.ledger.must_accept_below_threshold(id, attempt),
        };
        let (token, deadline, from) = (kept.token, kept.deadline, Rc::clone(&ingress.id));
        let to = self.dispatch(of, &from, edge, request, deadline);
        self.note(format_args!(
            "p{of} sends request {token}, attempt {attempt}, to {to:?}"
        ));
        let places = forwarded && self.sabotage == Some(Sabotage::PlacesWhatMovesOn);
        let Some(ingress) = self.ingress(of) else { return };
        let at = to.filter(|_| places || !moves_on);
        ingress.ledger.sent(id, attempt, at.as_deref());
    }

    /// The connection was lost and is up again: what may have used it is sent again.
    pub(crate) fn send_scattered(&mut self, of: usize) {
        let now = self.now;
        let process = &mut self.processes[of];
        let Some(ingress) = &mut process.ingress else {
            return;
        };
        let replicas = &process.replicas;
        let is_local = |kept: &Kept, id: &str| {
            let mut named = replicas.values().filter(|replica| *replica.id == *id);
            named.any(|replica| kept.plan.placement.contains(&replica.placed))
        };
        let entries = ingress.ledger.connection_lost(now, is_local);
        self.resend(of, entries);
    }

    pub(crate) fn sweep_timer(&mut self, of: usize) {
        let waits = self.processes[of]
            .ingress
            .as_ref()
            .is_some_and(|ingress| !ingress.ledger.is_empty());
        if self.now < STOP_US || (waits && self.now < STOP_US + SWEEP_TIMEOUT_US) {
            let rarely = self.sabotage == Some(Sabotage::SweepsRarely);
            self.timer(of, if rarely { 60 * SWEEP_US } else { SWEEP_US }, Timer::Sweep);
        }
        if self.sabotage == Some(Sabotage::Spins) {
            self.timer(of, 1, Timer::Sweep);
        }
        self.sweep(of);
        self.publish_state_if_changed(of);
    }

    /// Publishes the state when the epochs that the ingress needs have changed.
    fn publish_state_if_changed(&mut self, of: usize) {
        let admits = self.processes[of].epoch();
        let Some(ingress) = self.ingress(of) else { return };
        let first = ingress.ledger.iter().next();
        let oldest = first.map_or(admits, |(_, kept)| kept.epoch);
        if std::mem::replace(&mut ingress.published, (admits, oldest)) != (admits, oldest) {
            self.publish_state(of, true);
        }
    }

    /// Answers what expired and sends again what is due.
    pub(crate) fn sweep(&mut self, of: usize) {
        let now = self.now;
        let sabotage = self.sabotage;
        let Some(ingress) = self.ingress(of) else { return };
        if sabotage == Some(Sabotage::NeverSweeps)
            || ingress.ledger.next_wake(now).is_none_or(|wake| wake > now)
        {
            return;
        }
        let due = ingress.ledger.due(now);
        for (_, kept) in due.expired {
            if sabotage != Some(Sabotage::ForgetsExpired) {
                self.reply(of, &kept, Err(Fault::Expired));
            }
        }
        for (_, kept) in due.exhausted {
            self.reply(of, &kept, Err(Fault::Unavailable));
        }
        self.resend(of, due.resend);
    }

    fn resend(&mut self, of: usize, entries: Vec<(u64, u32)>) {
        for (id, attempt) in entries {
            self.send(of, id, attempt);
        }
    }

    /// A replica is gone; what it had, or may have had, is sent again.
    pub(crate) fn lose(&mut self, of: usize, replica: &str) {
        let now = self.now;
        let ignores = self.sabotage == Some(Sabotage::IgnoresLosses);
        let Some(ingress) = self.ingress(of).filter(|_| !ignores) else {
            return;
        };
        let entries = ingress.ledger.replica_lost(replica, now);
        self.note(format_args!(
            "p{of} loses {replica}: {} requests go again",
            entries.len()
        ));
        self.resend(of, entries);
    }

    /// A replica has left in good order; what it still had is sent again.
    pub(crate) fn has_left(&mut self, of: usize, replica: &str) {
        let (now, silently) = (self.now, self.sabotage == Some(Sabotage::LeavesSilently));
        let Some(ingress) = self.ingress(of).filter(|_| !silently) else {
            return;
        };
        let entries = ingress.ledger.replica_left(replica, now);
        self.resend(of, entries);
    }

    /// The broker reports that the destination of a request has no listener.
    pub(crate) fn undeliverable(&mut self, of: usize, owner: Owner, id: u64, attempt: u32) {
        if self.processes[of].owner(of) != owner {
            return;
        }
        let named = self.scenario.glue.notices_name_attempts.then_some(attempt);
        let Some(ingress) = self.processes[of].ingress.as_ref() else {
            return;
        };
        let Some((current, replica)) = ingress.ledger.attempt_and_replica(id) else {
            return;
        };
        if named.is_some_and(|named| named != current) {
            return self.note(format_args!(
                "p{of}: the notice is about attempt {attempt}, {current} is under way"
            ));
        }
        if let Some(replica) = replica.map(Name::from)
            && self.processes[of].liveness.declare_lost(&replica)
        {
            self.refresh(of);
            return self.lose(of, &replica);
        }
        self.fail(of, id, current, Fault::Unavailable);
    }

    /// A stage's answer.
    pub(crate) fn finished(&mut self, of: usize, done: &StageReply) {
        if self.processes[of].owner(of) != done.owner {
            return;
        }
        match done.result {
            Ok(()) if !done.routed => self.route_for_stage(of, done),
            Ok(()) => self.answer(of, done),
            Err(fault) => self.fail(of, done.id, done.attempt, fault),
        }
        self.sweep(of);
    }

    /// Routes a result for a stage that does not.
    fn route_for_stage(&mut self, of: usize, done: &StageReply) {
        let Some(ingress) = self.ingress(of) else { return };
        let Some(kept) = ingress.ledger.get(done.id) else {
            return;
        };
        let request = Request {
            owner: done.owner,
            id: done.id,
            attempt: done.attempt,
            token: kept.token,
            epoch: kept.epoch,
            gear: kept.gear,
            stage: Rc::clone(&done.stage),
            accept_below_threshold: ingress.ledger.must_accept_below_threshold(done.id, done.attempt),
        };
        let plan = Rc::clone(&kept.plan);
        match way(&plan, request.gear, &request) {
            Err(fault) => self.fail(of, done.id, done.attempt, fault),
            Ok((Route::Forward(edge), _)) => self.send_along(of, edge, done.id, done.attempt, true),
            Ok((_, confidence)) => {
                let done = StageReply {
                    routed: true,
                    decided_by: (request.epoch, request.gear),
                    accept_below_threshold: request.accept_below_threshold,
                    confidence,
                    ..done.clone()
                };
                self.answer(of, &done);
            }
        }
    }

    fn answer(&mut self, of: usize, done: &StageReply) {
        let now = self.now;
        let Some(ingress) = self.ingress(of) else { return };
        match ingress.ledger.answered(done.id, done.attempt) {
            AnswerOutcome::First(kept) => {
                ingress.admission.completed(now, now - kept.accepted);
                self.examine(&kept, done);
                self.reply(of, &kept, Ok(()));
            }
            AnswerOutcome::Stale if self.sabotage == Some(Sabotage::AnswersStale) => {
                self.judge.replied(done.token, Ok(()), now, 0);
            }
            AnswerOutcome::Stale => {}
        }
    }

    fn fail(&mut self, of: usize, id: u64, attempt: u32, fault: Fault) {
        let now = self.now;
        let Some(ingress) = self.ingress(of) else { return };
        let outcome = if fault == Fault::Overloaded {
            ingress.ledger.overloaded(id, attempt, now)
        } else {
            ingress.ledger.failed(id, attempt, fault.may_retry(), now)
        };
        if let FailureOutcome::Terminal(kept) = outcome {
            ingress.admission.ended();
            self.reply(of, &kept, Err(fault));
        }
    }

    fn reply(&mut self, of: usize, kept: &Kept, outcome: Result<(), Fault>) {
        let token = kept.token;
        self.note(format_args!("p{of} replies to request {token}: {outcome:?}"));
        self.judge
            .replied(token, outcome, self.now, self.processes[of].paused_until);
    }

    /// Whether the answer is that of the request, given by the rules of the plan that admitted it.
    ///
    /// Below the threshold, only an attempt that may be accepted below it answers.
    fn examine(&mut self, kept: &Kept, done: &StageReply) {
        let ledger = self.processes[done.owner.process].ingress.as_ref();
        let may_accept =
            ledger.is_some_and(|ingress| ingress.ledger.must_accept_below_threshold(done.id, done.attempt));
        let (token, theirs) = (kept.token, done.token);
        self.judge.demand(Oracle::OwnAnswer, token == theirs, || {
            format!("request {token} is answered with what was made of request {theirs}")
        });
        let admitted_by = self.judge.admitted_by(token);
        self.judge.demand(
            Oracle::AdmittedEpoch,
            admitted_by == Some(done.decided_by),
            || {
                format!(
                    "request {token} was admitted by {admitted_by:?} and ended by {:?}",
                    done.decided_by
                )
            },
        );
        let gear = kept.plan.gears.get(kept.gear as usize);
        let stage = gear.and_then(|gear| gear.wiring.stages.iter().find(|stage| *stage.name == *done.stage));
        let accept_below_threshold = done.accept_below_threshold && may_accept;
        let pick = if accept_below_threshold {
            routing::accept_below_threshold
        } else {
            routing::route
        };
        let ends = stage.map(|stage| pick(&stage.exit, Some(done.confidence)));
        self.judge
            .demand(Oracle::AdmittedEpoch, ends == Some(Ok(Route::Reply)), || {
                format!(
                    "request {token} ends at stage {} with confidence {}",
                    done.stage, done.confidence
                )
            });
    }
}
