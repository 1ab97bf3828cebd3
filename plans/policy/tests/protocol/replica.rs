//! A replica: its queue, its batches, and its router.

use std::collections::BTreeSet;
use std::rc::Rc;

use kaskade_policy::{
    batching::{BatchQueue, Next},
    confidence::Scores,
    plan::{Batching, Plan, Replica as Placed},
    routing::{self, Route},
    run_time::RunTimeEstimate,
};

use super::messages::{Delivery, Name, Request, StageReply, Timer};
use super::oracle::{Fault, Oracle};
use super::plans;
use super::sabotage::Sabotage;
use super::scenario::HEAL_US;
use super::world::World;

/// One replica of one variant.
pub(crate) struct Replica {
    /// Unique in its process: two epochs may give one id to different replicas.
    pub(crate) key: Name,
    pub(crate) id: Name,
    /// The replica's placement in the plan.
    pub(crate) placed: Rc<Placed>,
    /// The stages whose requests it receives.
    pub(crate) stages: BTreeSet<String>,
    pub(crate) queue: BatchQueue<Delivery>,
    capacity: usize,
    /// Requests that the queue should contain.
    held: BTreeSet<u64>,
    learned: RunTimeEstimate,
    running: Option<Running>,
    /// Number of the timer that counts; earlier ones were cancelled.
    wake: u64,
    /// Deliveries that are not answered yet, and how many there may be.
    unanswered: usize,
    room: usize,
    /// Published queue length.
    pub(crate) depth: usize,
    /// Largest batch when the replica was loaded.
    pub(crate) max_batch: u32,
    /// The largest batch that the plan allows now.
    allowed: usize,
}

struct Running {
    batch: Vec<Delivery>,
    started: u64,
}

impl Replica {
    pub(crate) fn new(placed: &Rc<Placed>, capacity: usize, sabotage: Option<Sabotage>) -> Self {
        let batching = Batching::default();
        let overfull = sabotage == Some(Sabotage::OverfillsQueue);
        // Room for a full queue and the batch that runs.
        let room = capacity + batching.max_batch as usize;
        Self {
            key: key(placed),
            id: placed.id.as_str().into(),
            placed: Rc::clone(placed),
            stages: BTreeSet::new(),
            queue: BatchQueue::new(batching, if overfull { 2 * capacity } else { capacity }),
            capacity,
            held: BTreeSet::new(),
            learned: RunTimeEstimate::default(),
            running: None,
            wake: 0,
            unanswered: 0,
            room,
            depth: 0,
            max_batch: batching.max_batch,
            allowed: batching.max_batch as usize,
        }
    }

    pub(crate) fn take_room(&mut self) -> bool {
        let free = self.unanswered < self.room;
        self.unanswered += usize::from(free);
        free
    }

    pub(crate) fn is_at_rest(&self) -> bool {
        self.queue.is_empty() && self.running.is_none() && self.unanswered == 0
    }

    /// Takes what came out of the queue off the list of what it holds. False if it did not hold it.
    fn released(&mut self, out: &[Delivery]) -> bool {
        out.iter().all(|delivery| self.held.remove(&delivery.serial))
    }
}

impl World {
    fn replica(&mut self, of: usize, id: &str) -> Option<&mut Replica> {
        self.processes[of].replicas.get_mut(id)
    }

    /// A delivery in the batcher's mailbox.
    pub(crate) fn queue(&mut self, of: usize, id: &Name, delivery: Delivery) {
        let now = self.now;
        let drops = self.sabotage == Some(Sabotage::DropsFromQueue) && delivery.serial % 50 == 7;
        let Some(replica) = self.replica(of, id) else {
            return;
        };
        let (serial, deadline) = (delivery.serial, delivery.deadline);
        if drops {
            replica.held.insert(serial);
        } else if let Err(refused) = replica.queue.push(delivery, now, deadline) {
            replica.unanswered -= 1;
            self.answer_fault(of, &refused.request, Fault::Overloaded);
        } else {
            replica.held.insert(serial);
        }
        self.pump(of, id);
    }

    /// Polls the policy and acts on the result.
    fn pump(&mut self, of: usize, id: &Name) {
        let now = self.now;
        let Some(replica) = self.replica(of, id) else {
            return;
        };
        let poll = replica.queue.poll(now, replica.running.is_none());
        let known = replica.released(&poll.late);
        replica.unanswered -= poll.late.len();
        for late in &poll.late {
            self.answer_fault(of, &late.request, Fault::Expired);
        }
        self.judge.demand(Oracle::QueueKeeps, known, || {
            format!("{id} gives out as late what it does not hold")
        });
        match poll.next {
            Next::Run(batch) => self.run_batch(of, id, batch),
            Next::WaitUntil(at) => {
                self.judge
                    .demand(Oracle::QueueKeeps, at > now, || format!("{id} waits until now"));
                let Some(replica) = self.replica(of, id) else {
                    return;
                };
                replica.wake += 1;
                let number = replica.wake;
                let replica = Rc::clone(id);
                self.timer(of, at - now, Timer::Wake { replica, number });
            }
            Next::Wait => {}
        }
        self.check_queue(of, id);
    }

    fn check_queue(&mut self, of: usize, id: &Name) {
        let Some(replica) = self.replica(of, id) else {
            return;
        };
        let (length, held, capacity) = (replica.queue.len(), replica.held.len(), replica.capacity);
        replica.depth = length;
        self.judge
            .demand(Oracle::QueueKeeps, length == held && length <= capacity, || {
                format!("{id} holds {length} requests, took {held} and has room for {capacity}")
            });
    }

    fn run_batch(&mut self, of: usize, id: &Name, batch: Vec<Delivery>) {
        let (now, size) = (self.now, batch.len());
        let hangs = self.sabotage == Some(Sabotage::Hangs) && now >= HEAL_US && id.starts_with("small-2/");
        let Some(replica) = self.replica(of, id) else {
            return;
        };
        let (known, allowed, idle) = (
            replica.released(&batch),
            replica.allowed,
            replica.running.is_none(),
        );
        let run_us = plans::run_us(&replica.placed.variant, size);
        replica.wake += 1;
        replica.running = Some(Running { batch, started: now });
        self.note(format_args!("{id} runs a batch of {size}"));
        self.judge.demand(Oracle::QueueKeeps, known && idle, || {
            format!("{id} runs what it does not hold, or two batches at once")
        });
        self.judge
            .demand(Oracle::BatchFits, (1..=allowed).contains(&size), || {
                format!("{id} runs a batch of {size}, the plan allows {allowed}")
            });
        if !hangs {
            let replica = Rc::clone(id);
            self.timer(of, run_us, Timer::BatchEnds { replica });
        }
    }

    pub(crate) fn wake(&mut self, of: usize, id: &Name, number: u64) {
        if self.replica(of, id).is_some_and(|replica| replica.wake == number) {
            self.pump(of, id);
        }
    }

    /// The model thread is done: the next batch may begin, and the router sends the results on their way.
    pub(crate) fn batch_ends(&mut self, of: usize, id: &Name) {
        let now = self.now;
        let mixes = self.sabotage == Some(Sabotage::MixesAnswers);
        let Some(replica) = self.replica(of, id) else {
            return;
        };
        let Some(Running { mut batch, started }) = replica.running.take() else {
            return;
        };
        replica.learned.observe(batch.len(), now - started);
        replica.queue.set_expected_run(replica.learned.line());
        self.pump(of, id);
        if mixes {
            mix_up(&mut batch);
        }
        for delivery in batch {
            self.route(of, id, &delivery);
            if let Some(replica) = self.replica(of, id) {
                replica.unanswered -= 1;
            }
        }
    }

    fn route(&mut self, of: usize, id: &Name, delivery: &Delivery) {
        let request = &delivery.request;
        let variant = self.replica(of, id).map(|replica| replica.placed.variant.clone());
        self.examine_model(of, request, variant.as_ref());
        if self.chance(if self.now < HEAL_US {
            self.scenario.model_fails
        } else {
            0.0
        }) {
            return self.answer_fault(of, request, Fault::ModelFailed);
        }
        // Retryable: this process may learn of the epoch in the meantime.
        let Some(plan) = self.plan_at(of, request.epoch) else {
            return self.answer_fault(of, request, Fault::Unavailable);
        };
        let from = self
            .replica(of, id)
            .map_or_else(|| Rc::clone(id), |replica| Rc::clone(&replica.id));
        let (plan, epoch, gear) = if self.sabotage == Some(Sabotage::RoutesByNewest) {
            let process = &self.processes[of];
            let newest = process
                .adoption
                .current()
                .map_or(plan, |(_, newest, _)| Rc::clone(newest));
            (newest, process.epoch(), process.gear())
        } else {
            (plan, request.epoch, request.gear)
        };
        let mut request = request.clone();
        request.accept_below_threshold |= self.sabotage == Some(Sabotage::SettlesEarly);
        let request = &request;
        match way(&plan, gear, request) {
            Err(fault) => self.answer_fault(of, request, fault),
            Ok((Route::Forward(_), confidence)) if self.is_foreign(variant.as_deref()) => {
                self.return_result(of, request, confidence);
            }
            Ok((Route::Forward(edge), _)) => {
                let edge = edge.clone();
                self.dispatch(of, &from, &edge, request.clone(), delivery.deadline);
            }
            Ok((_, confidence)) => {
                let done = StageReply {
                    owner: request.owner,
                    id: request.id,
                    attempt: request.attempt,
                    token: request.token,
                    stage: Rc::clone(&request.stage),
                    routed: true,
                    decided_by: (epoch, gear),
                    accept_below_threshold: request.accept_below_threshold,
                    confidence,
                    result: Ok(()),
                };
                self.done(of, done);
            }
        }
    }

    /// Whether a replica of this variant leaves it to the ingress where a result goes.
    fn is_foreign(&self, variant: Option<&str>) -> bool {
        self.scenario.foreign && variant == plans::variants(&self.scenario).first().copied()
    }

    /// Returns a result to the ingress that owns the request, which routes it.
    fn return_result(&mut self, of: usize, request: &Request, confidence: f64) {
        let done = StageReply {
            owner: request.owner,
            id: request.id,
            attempt: request.attempt,
            token: request.token,
            stage: Rc::clone(&request.stage),
            routed: false,
            decided_by: (request.epoch, request.gear),
            accept_below_threshold: request.accept_below_threshold,
            confidence,
            result: Ok(()),
        };
        self.done(of, done);
    }

    /// Whether the plan of the request has this variant for its stage.
    fn examine_model(&mut self, of: usize, request: &Request, variant: Option<&String>) {
        let plan = (request.epoch <= self.store.newest()).then(|| self.store.at(request.epoch));
        let gear = plan
            .as_ref()
            .and_then(|plan| plan.gears.get(request.gear as usize));
        let mut stages = gear.into_iter().flat_map(|gear| &gear.wiring.stages);
        let stage = stages.find(|stage| *stage.name == *request.stage);
        let right = stage.map(|stage| &stage.variant);
        self.judge.demand(Oracle::RightModel, right == variant, || {
            format!(
                "p{of} runs {variant:?} at stage {} of epoch {}, which has {right:?}",
                request.stage, request.epoch
            )
        });
    }

    /// The gear has shifted, or the plan has changed.
    pub(crate) fn rebatch(&mut self, of: usize) {
        let oversized = self.sabotage == Some(Sabotage::OversizedBatches);
        let process = &mut self.processes[of];
        let Some((_, plan, gear)) = process.adoption.current() else {
            return;
        };
        let Some(gear) = plan.gears.get(gear as usize).cloned() else {
            return;
        };
        let ids: Vec<Name> = process.replicas.keys().cloned().collect();
        for id in ids {
            let Some(replica) = self.replica(of, &id) else {
                continue;
            };
            let Some(mut batching) = gear.batching(&replica.placed.variant) else {
                continue;
            };
            replica.allowed = batching.max_batch as usize;
            if oversized {
                batching.max_batch *= 2;
                batching.min_queue = batching.max_batch;
            }
            replica.queue.set_batching(batching);
            self.pump(of, &id);
        }
    }
}

/// Identifies what a plan places.
pub(crate) fn key(placed: &Placed) -> Name {
    format!("{}/{}/{}", placed.id, placed.variant, placed.device).into()
}

/// The exit of a stage for a model's result: a function of the result, and of whether the request must be accepted below the threshold.
pub(crate) fn way<'a>(plan: &'a Plan, gear: u32, request: &Request) -> Result<(Route<'a>, f64), Fault> {
    let gear = plan.gears.get(gear as usize).ok_or(Fault::Internal)?;
    let stage = gear
        .wiring
        .stages
        .iter()
        .find(|known| *known.name == *request.stage)
        .ok_or(Fault::Internal)?;
    let variant = plan.variants.iter().find(|variant| variant.name == stage.variant);
    let calibration = variant
        .and_then(|variant| variant.calibration)
        .ok_or(Fault::Internal)?;
    let given = routing::draw(request.token as u64 * 31 + stage.variant.len() as u64);
    let confidence = calibration
        .confidence(&Scores::Given(given))
        .map_err(|_| Fault::BadOutput)?;
    let pick = if request.accept_below_threshold {
        routing::accept_below_threshold
    } else {
        routing::route
    };
    let route = pick(&stage.exit, Some(confidence)).map_err(|_| Fault::Internal)?;
    Ok((route, confidence))
}

/// Gives every request the answer of its neighbour.
fn mix_up(batch: &mut [Delivery]) {
    let mut tokens: Vec<usize> = batch.iter().map(|delivery| delivery.request.token).collect();
    tokens.rotate_left(1);
    for (delivery, token) in batch.iter_mut().zip(tokens) {
        delivery.request.token = token;
    }
}
