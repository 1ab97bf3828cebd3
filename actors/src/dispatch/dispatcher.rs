//! The dispatcher: delivers to the mailbox of an actor in this process, or else publishes to a subject.
//!
//! A cascade step inside one process costs two mailbox hops and copies no tensor; between processes it costs one hop
//! over NATS. Senders see no difference.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use crate::actor::{Message, Recipient};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use dashmap::DashMap;
use kaskade_policy::liveness::Liveness;
use kaskade_policy::plan::{Edge, Exit};
use kaskade_policy::rerouting::{Backup, Decision, Dropped, Forwarding};
use kaskade_policy::routing::Destination;
use kaskade_policy::{rerouting, routing};

use crate::{
    bus::Bus,
    bus::publisher::Publisher,
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::local::{LocalReplica, LocalReplicas},
    error::{Code, Fault},
    plan::versions::PlanVersion,
    subjects::{App, SubjectError},
    wire::headers::{self, Trace},
    wire::{Done, DoneResult, Message as _, StageRequest},
};

/// A stage's result, delivered to the ingress that owns the request.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Finished(pub Done);

/// Timing of a request at the end of a pipeline's task: the replica, the time spent, the task's latency budget.
pub(crate) struct TaskTiming<'a> {
    pub(crate) replica: &'a str,
    pub(crate) spent_us: u64,
    pub(crate) budget_us: Option<u64>,
}

/// Routes the messages of one app in one process. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    app: App,
    clock: Clock,
    publisher: Publisher,
    ingresses: DashMap<String, Recipient<Finished>>,
    local: LocalReplicas,
    liveness: Mutex<Liveness>,
    /// One sequence of draws per sender. A sequence shared by all senders would correlate the draws of a request at
    /// successive tasks.
    draws: DashMap<String, u64>,
}

impl Dispatcher {
    /// Creates a dispatcher over `bus`. Call it inside an actix system: it spawns the publishing task.
    pub fn new(bus: &Bus, app: App, clock: Clock) -> Self {
        Self(Arc::new(Inner {
            app,
            clock,
            publisher: Publisher::new(bus),
            ingresses: DashMap::new(),
            local: LocalReplicas::default(),
            liveness: Mutex::default(),
            draws: DashMap::new(),
        }))
    }

    /// Returns the clock that all actors of the process read.
    pub fn clock(&self) -> Clock {
        self.0.clock
    }

    /// Returns the subjects of the app.
    pub fn app(&self) -> &App {
        &self.0.app
    }

    /// Gives access to the liveness of replicas.
    pub fn liveness<T>(&self, look: impl FnOnce(&mut Liveness) -> T) -> T {
        look(&mut self.0.liveness.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Registers an ingress of this process.
    pub fn register_ingress(&self, id: &str, mailbox: Recipient<Finished>) {
        self.0.ingresses.insert(id.to_owned(), mailbox);
    }

    /// Registers a replica of this process for one stage.
    pub fn register_replica(&self, stage: &str, replica: LocalReplica) {
        self.0.local.register(stage, replica);
    }

    /// Removes a replica from every stage: no new request reaches it from inside the process.
    pub fn unregister_replica(&self, replica: &str) {
        self.0.local.unregister(replica);
        self.0.draws.remove(replica);
    }

    /// Publishes raw bytes.
    pub fn publish(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) {
        self.0.publisher.publish(subject, reply, headers, payload);
    }

    /// Sends a result to the ingress that owns the request.
    pub fn done(&self, ingress: &str, done: Done) {
        if let Some(mailbox) = self.0.ingresses.get(ingress) {
            mailbox.do_send(Finished(done));
            return;
        }
        let subject = match self.0.app.done(ingress, done.id) {
            Ok(subject) => subject,
            // Only a forged request names an invalid ingress; there is no one to answer.
            Err(error) => return tracing::warn!(%error, "a result has no valid ingress"),
        };
        let payload = self.0.publisher.encode_checked(&done).or_else(|fault| {
            let result = DoneResult::Fault(fault);
            Done { result, ..done }.encode()
        });
        match payload {
            Ok(payload) => self.0.publisher.send(&subject, None, HeaderMap::new(), &payload),
            Err(error) => tracing::error!(%error, "a result could not be encoded"),
        }
    }

    /// Sends a request along an edge of the plan that admitted it: to a replica of this process if the policy prefers
    /// one, else over the bus. `from` is the sending replica or ingress. Returns the replica if it is known.
    pub fn dispatch(
        &self,
        from: &str,
        version: &PlanVersion,
        edge: &Edge,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Option<String> {
        match self.destination(from, edge) {
            Destination::Replica(id) => {
                let id = id.to_owned();
                self.to_replica(version, edge, &id, request, deadline, trace);
                Some(id)
            }
            Destination::QueueGroup => self.to_group(from, version, edge, request, deadline, trace),
        }
    }

    /// Forwards a child request of a pipeline's task, unless the policy drops it for being late ([`rerouting`]).
    ///
    /// # Errors
    /// Why it was dropped, with the request.
    pub(crate) fn forward(
        &self,
        version: &PlanVersion,
        edge: &Edge,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
        end: &TaskTiming<'_>,
    ) -> Result<(), Box<(StageRequest, Dropped)>> {
        let Destination::Replica(chosen) = self.destination(end.replica, edge) else {
            self.to_group(end.replica, version, edge, request, deadline, trace);
            return Ok(());
        };
        let gear = request.gear;
        let stage = |id: &str| version.stage_at(gear, edge, Some(id));
        let profiled = |id: &str| stage(id).and_then(|stage| stage.profiled);
        let forwarding = Forwarding {
            spent_us: end.spent_us,
            budget_us: end.budget_us,
            left_us: Some(deadline.saturating_sub(self.0.clock.now())),
            run_us: profiled(chosen).map_or(0, |profiled| profiled.run_us),
            last: stage(chosen).is_some_and(|stage| !matches!(stage.exit, Exit::FanOut { .. })),
        };
        let backups = edge.backup.iter().map(String::as_str).filter_map(|id| {
            let profiled = profiled(id).filter(|_| self.reachable(id))?;
            Some(Backup {
                replica: id,
                run_us: profiled.run_us,
                accuracy: profiled.accuracy,
            })
        });
        let backups: Vec<Backup<&str>> = backups.collect();
        let dropping = version.plan.dropping;
        let draw = self.draw(end.replica);
        let to = match rerouting::decide(dropping, &forwarding, backups.iter().copied(), draw) {
            Decision::Forward => chosen,
            Decision::Reroute(backup) => backup,
            Decision::Drop(dropped) => return Err(Box::new((request, dropped))),
        };
        self.to_replica(version, edge, to, request, deadline, trace);
        Ok(())
    }

    fn destination<'a>(&self, from: &str, edge: &'a Edge) -> Destination<&'a str> {
        routing::destination_from(edge, from, |replica| self.reachable(replica), self.draw(from))
    }

    fn to_replica(
        &self,
        version: &PlanVersion,
        edge: &Edge,
        id: &str,
        mut request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) {
        let stage = version.stage_at(request.gear, edge, Some(id));
        let stage = stage.map_or(edge.stage.as_str(), |stage| stage.name.as_str());
        stage.clone_into(&mut request.stage);
        match self.0.local.shortest(stage, |replica| replica.id == id) {
            Some(replica) => self.deliver_locally(&replica, request, deadline, trace),
            None => match self.0.publisher.encode_checked(&request) {
                Ok(payload) => self.send(self.0.app.replica(id), request, &payload, deadline, trace),
                Err(fault) => self.refuse(request, fault),
            },
        }
    }

    fn to_group(
        &self,
        from: &str,
        version: &PlanVersion,
        edge: &Edge,
        mut request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Option<String> {
        edge.stage.clone_into(&mut request.stage);
        let near = self.0.local.shortest(&edge.stage, |replica| {
            routing::prefer_local(replica.depth.load(Ordering::Relaxed), replica.max_batch)
        });
        if let Some(replica) = near {
            self.deliver_locally(&replica, request, deadline, trace);
            return Some(replica.id);
        }
        if let Some(one) = self.replica_past_lost(from, version, edge, request.gear) {
            self.to_replica(version, edge, &one, request, deadline, trace);
            return Some(one);
        }
        let payload = match self.0.publisher.encode_checked(&request) {
            Ok(payload) => payload,
            Err(fault) => {
                self.refuse(request, fault);
                return None;
            }
        };
        if payload.len() <= self.0.publisher.payload_limit() {
            self.send(self.0.app.stage(&edge.stage), request, &payload, deadline, trace);
            return None;
        }
        // The members of a queue group would each get some of the chunks.
        let one = self.group_member(from, version, edge, request.gear);
        match &one {
            Some(id) => self.send(self.0.app.replica(id), request, &payload, deadline, trace),
            None => self.refuse(request, self.0.publisher.too_large::<StageRequest>(payload.len())),
        }
        one
    }

    /// Returns a replica to address instead of the queue group if one of the stage's replicas is lost
    /// ([`routing::past_the_silent`]).
    fn replica_past_lost(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        if !self.liveness(|liveness| liveness.any_lost()) {
            return None;
        }
        let stage = version.stage(gear, &edge.stage)?;
        let placed = version.plan.placement.iter();
        let members = placed
            .filter(|replica| stage.is_run_by(replica))
            .map(|replica| replica.id.as_str());
        let silent = |id: &str| self.liveness(|liveness| liveness.lost(id));
        let one = routing::past_the_silent(members, silent, |id| self.reachable(id), self.draw(from));
        one.map(ToOwned::to_owned)
    }

    /// Returns whether the ingress that owns the request must send it along the edge ([`routing::leave_to_ingress`]).
    pub(crate) fn leaves_to_ingress(
        &self,
        is_root: bool,
        version: &PlanVersion,
        edge: &Edge,
        gear: u32,
    ) -> bool {
        let Some(stage) = version.stage(gear, &edge.stage) else {
            return false;
        };
        let placed = version.plan.placement.iter();
        let serving = placed.filter(|replica| version.serves(gear, stage, replica));
        let ids = serving.map(|replica| replica.id.as_str());
        routing::leave_to_ingress(is_root, ids, |id| self.reachable(id))
    }

    /// Returns a replica of the plan that serves the edge's stage. Actors outside the plan are not considered: they
    /// need not support chunks.
    fn group_member(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        let stage = version.stage(gear, &edge.stage)?;
        let placed = version.plan.placement.iter();
        let members = placed
            .filter(|replica| stage.is_run_by(replica))
            .map(|replica| replica.id.as_str());
        routing::member(members, |id| self.reachable(id), self.draw(from)).map(ToOwned::to_owned)
    }

    fn reachable(&self, replica: &str) -> bool {
        self.liveness(|liveness| liveness.alive(replica)) || self.0.local.has(replica)
    }

    fn deliver_locally(&self, replica: &LocalReplica, request: StageRequest, deadline: u64, trace: Trace) {
        let permit = Arc::clone(&replica.permits).try_acquire_owned().ok();
        let full = permit.is_none();
        let delivery = Delivery::new(request, deadline, trace, self.clone(), &replica.id, permit);
        if full {
            delivery.fail(full_queue(&replica.id));
        } else {
            replica.mailbox.do_send(delivery);
        }
    }

    fn send(
        &self,
        subject: Result<Subject, SubjectError>,
        request: StageRequest,
        payload: &Bytes,
        deadline: u64,
        trace: Trace,
    ) {
        let budget = Duration::from_micros(deadline.saturating_sub(self.0.clock.now()));
        // The reply subject receives the result and the server's "no responders" notice.
        let addressed =
            subject.and_then(|subject| Ok((subject, self.0.app.done(&request.ingress, request.id)?)));
        match addressed {
            Ok((subject, reply)) => {
                let headers = headers::for_hop(budget, &trace.child());
                self.0.publisher.send(&subject, Some(reply), headers, payload);
            }
            Err(error) => self.refuse(request, error.into()),
        }
    }

    /// Answers a request that cannot be forwarded.
    pub(crate) fn refuse(&self, request: StageRequest, fault: Fault) {
        let done = Done {
            id: request.id,
            attempt: request.attempt,
            branch: request.branch,
            stage: request.stage,
            replica: String::new(),
            hops: request.hops,
            result: DoneResult::Fault(fault),
        };
        self.done(&request.ingress, done);
    }

    /// Resolves once everything published so far has reached the broker.
    pub async fn flush(&self) {
        self.0.publisher.flush().await;
    }

    fn draw(&self, from: &str) -> f64 {
        if let Some(mut count) = self.0.draws.get_mut(from) {
            *count += 1;
            return routing::draw(*count);
        }
        self.0.draws.insert(from.to_owned(), 0);
        routing::draw(0)
    }
}

/// The fault of a replica whose queue is full.
pub(crate) fn full_queue(replica: &str) -> Fault {
    Fault::new(
        Code::Overloaded,
        format!("the queue of replica `{replica}` is full; try again later, or add replicas"),
    )
}
