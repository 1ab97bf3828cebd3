//! The dispatcher: delivers to the mailbox of an actor in this process, or else publishes to a subject.
//!
//! A cascade step inside one process costs two mailbox hops and copies no tensor; between processes it costs one hop
//! over NATS. Senders see no difference.

use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::{Message, Recipient};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use dashmap::DashMap;
use kaskade_policy::adoption::arrival;
use kaskade_policy::liveness::Liveness;
use kaskade_policy::plan::{Edge, Exit, Replica};
use kaskade_policy::reachability::Reachability;
use kaskade_policy::rerouting::{Backup, Decision, Dropped, Forwarding};
use kaskade_policy::routing::Destination;
use kaskade_policy::{rerouting, routing};
use tokio::sync::watch;

use crate::{
    bus::Bus,
    bus::publisher::{Permits, Publisher},
    clock::Clock,
    dispatch::delivery::Delivery,
    dispatch::local::{LocalReplica, LocalReplicas},
    error::{Code, Fault},
    plan::versions::PlanVersion,
    subjects::{App, SubjectError},
    supervision::Supervisor,
    wire::headers::{self, Trace},
    wire::{Done, DoneResult, Message as _, StageRequest, Token},
};

/// A stage's result, delivered to the ingress that owns the request.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Finished {
    /// The result.
    pub done: Done,
    /// Whether the executor of this process has checked the outputs. Results of other origin are checked by the ingress.
    pub checked: bool,
}

/// Timing of a request at the end of a pipeline's task: the replica, the time spent, the task's latency budget.
pub(crate) struct TaskTiming<'a> {
    pub(crate) replica: &'a str,
    pub(crate) spent_us: u64,
    pub(crate) budget_us: Option<u64>,
}

/// Routes the messages of one app in one shard of a process. Cheap to clone.
///
/// The dispatchers of a process share what they know (`Dispatcher::shard`): a message for an actor of another shard goes
/// into its mailbox, from thread to thread.
#[derive(Clone)]
pub struct Dispatcher(Arc<Shard>);

struct Shard {
    publisher: Publisher,
    process: Arc<Process>,
}

/// What all shards of a process know.
struct Process {
    app: App,
    clock: Clock,
    /// Publishes control messages, on their own connection.
    control: Publisher,
    supervisor: Supervisor,
    ingresses: DashMap<String, Recipient<Finished>>,
    local: LocalReplicas,
    /// What this process hears of the workers' heartbeats, if it has an ingress.
    liveness: Mutex<Liveness>,
    /// The replicas to which it may send: an immutable view, replaced at every change.
    reachability: watch::Sender<Arc<Reachability>>,
    /// One sequence of draws per sender. A sequence shared by all senders would correlate the draws of a request at
    /// successive tasks.
    draws: DashMap<String, u64>,
}

impl Dispatcher {
    /// Creates a dispatcher over `bus`. Call it inside an actix system: it spawns the publishing tasks.
    pub fn new(bus: &Bus, app: App, clock: Clock) -> Self {
        let supervisor = Supervisor::default();
        let publisher = Publisher::new(bus, clock, &supervisor);
        let process = Arc::new(Process {
            app,
            clock,
            control: Publisher::new(bus.control(), clock, &supervisor),
            supervisor,
            ingresses: DashMap::new(),
            local: LocalReplicas::default(),
            liveness: Mutex::default(),
            reachability: watch::Sender::default(),
            draws: DashMap::new(),
        });
        Self(Arc::new(Shard { publisher, process }))
    }

    /// Creates the dispatcher of another shard, which publishes data over `bus`. Call it on the thread of that shard: it spawns
    /// a publishing task.
    pub(crate) fn shard(&self, bus: &Bus) -> Self {
        let Process {
            clock, supervisor, ..
        } = &*self.0.process;
        Self(Arc::new(Shard {
            publisher: Publisher::new(bus, *clock, supervisor),
            process: Arc::clone(&self.0.process),
        }))
    }

    /// Returns the clock that all actors of the process read.
    pub fn clock(&self) -> Clock {
        self.0.process.clock
    }

    /// Returns the subjects of the app.
    pub fn app(&self) -> &App {
        &self.0.process.app
    }

    /// Returns the supervisor of the process's core tasks.
    pub fn supervisor(&self) -> &Supervisor {
        &self.0.process.supervisor
    }

    /// Gives access to the liveness of replicas. If `look` changes which replicas are reachable, the view of the process
    /// changes with it. For processes that hear heartbeats.
    pub fn liveness<T>(&self, look: impl FnOnce(&mut Liveness) -> T) -> T {
        let mut liveness = self
            .0
            .process
            .liveness
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = liveness.revision();
        let seen = look(&mut liveness);
        if liveness.revision() != before {
            // Under the lock, so that views follow each other as the changes do.
            self.set_reachability(liveness.reachability());
        }
        seen
    }

    /// Replaces the view of which replicas are reachable.
    pub(crate) fn set_reachability(&self, view: Reachability) {
        self.0.process.reachability.send_replace(Arc::new(view));
    }

    /// Returns the view of which replicas are reachable, and its changes.
    pub fn reachability(&self) -> watch::Receiver<Arc<Reachability>> {
        self.0.process.reachability.subscribe()
    }

    fn view(&self) -> Arc<Reachability> {
        Arc::clone(&self.0.process.reachability.borrow())
    }

    /// Registers an ingress of this process.
    pub fn register_ingress(&self, id: &str, mailbox: Recipient<Finished>) {
        self.0.process.ingresses.insert(id.to_owned(), mailbox);
    }

    /// Registers a replica of this process for one stage.
    pub fn register_replica(&self, stage: &str, replica: LocalReplica) {
        self.0.process.local.register(stage, replica);
    }

    /// Removes a replica from every stage: no new request reaches it from inside the process.
    pub fn unregister_replica(&self, replica: &LocalReplica) {
        self.0.process.local.unregister(replica);
        self.0.process.draws.remove(&replica.id);
    }

    /// Removes a replica from one stage.
    pub(crate) fn unregister_replica_from(&self, stage: &str, replica: &LocalReplica) {
        self.0.process.local.unregister_from(stage, replica);
    }

    /// Returns the replicas of this process that plans place.
    pub(super) fn placed(&self) -> Vec<Arc<Replica>> {
        self.0.process.local.placed()
    }

    /// Delivers to the replica of this process that a plan places so.
    ///
    /// # Errors
    /// The request, if it has been unloaded.
    pub(super) fn hand_over(
        &self,
        placed: &Replica,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) -> Result<(), Box<StageRequest>> {
        match self.0.process.local.of(placed) {
            Some(replica) => {
                self.deliver_locally(&replica, request, deadline, trace);
                Ok(())
            }
            None => Err(Box::new(request)),
        }
    }

    /// Sends a request of a stage's queue group on to one of the replicas that the plan of its epoch places elsewhere.
    pub(super) fn send_on(
        &self,
        me: &Replica,
        version: &PlanVersion,
        request: StageRequest,
        deadline: u64,
        trace: Trace,
    ) {
        let edge = Edge::to(request.stage.clone());
        let members = arrival::members(&version.plan, request.gear, &request.stage)
            .filter(|member| member.worker != me.worker)
            .map(|member| member.id.as_str());
        let draw = self.draw(&me.id);
        let view = self.view();
        match routing::member(members, |id| self.is_reachable(&view, version, id), draw) {
            Some(id) => self.to_replica(version, &edge, id, request, deadline, trace),
            None => self.refuse(request, not_served(version.epoch)),
        }
    }

    /// Publishes a small message that must not wait for data: a heartbeat, a refusal, a notice.
    pub fn publish(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) {
        self.0.publisher.control(subject, reply, headers, payload);
    }

    /// Publishes a control message on its own connection: a heartbeat, a state, a gear, an event. It does not wait behind
    /// data, and is not ordered with respect to it.
    pub fn publish_control(&self, subject: Subject, payload: Bytes) {
        self.0.process.control.control(subject, None, None, payload);
    }

    /// Publishes a reply to a client. It holds `permits` until it has been written to the connection.
    ///
    /// # Errors
    /// [`Code::Overloaded`] if the queue of outgoing messages is full.
    pub(crate) fn reply(
        &self,
        subject: &Subject,
        headers: Option<HeaderMap>,
        payload: &Bytes,
        permits: Permits,
    ) -> Result<(), Fault> {
        let headers = headers.unwrap_or_default();
        self.0
            .publisher
            .send(subject, None, headers, None, payload, permits)
    }

    /// Sends a result to the ingress that owns the request, with the token of the request that it answers. It holds
    /// `permits` until it has been written to the connection.
    pub fn done(&self, ingress: &str, token: Token, finished: Finished, permits: Permits) {
        if let Some(mailbox) = self.0.process.ingresses.get(ingress) {
            mailbox.do_send(finished);
            return;
        }
        let done = finished.done;
        let subject = match self
            .0
            .process
            .app
            .done(ingress, done.id, done.attempt, &token.to_string())
        {
            Ok(subject) => subject,
            // Only a forged request names an invalid ingress; there is no one to answer.
            Err(error) => return tracing::warn!(%error, "a result has no valid ingress"),
        };
        let sent = self.0.publisher.encode_checked(&done).and_then(|payload| {
            let headers = HeaderMap::new();
            self.0
                .publisher
                .send(&subject, None, headers, None, &payload, permits)
        });
        let Err(fault) = sent else { return };
        // A part may be lost: the complete answer follows.
        if matches!(done.result, DoneResult::Part { .. }) {
            return;
        }
        let result = DoneResult::Fault(fault);
        match (Done { result, ..done }).encode() {
            Ok(payload) => self.0.publisher.control(subject, None, None, payload),
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
        match self.destination(from, version, edge) {
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
        let Destination::Replica(chosen) = self.destination(end.replica, version, edge) else {
            self.to_group(end.replica, version, edge, request, deadline, trace);
            return Ok(());
        };
        let gear = request.gear;
        let stage = |id: &str| version.stage_at(gear, edge, Some(id));
        let profiled = |id: &str| stage(id).and_then(|stage| stage.profiled);
        let after_us = |id: &str| stage(id).map_or(0, |stage| version.after_us(gear, &stage.name));
        let forwarding = Forwarding {
            spent_us: end.spent_us,
            budget_us: end.budget_us,
            left_us: Some(deadline.saturating_sub(self.0.process.clock.now())),
            run_us: profiled(chosen).map_or(0, |profiled| profiled.run_us),
            after_us: after_us(chosen),
            last: stage(chosen).is_some_and(|stage| !matches!(stage.exit, Exit::FanOut { .. })),
        };
        let view = self.view();
        let backups = edge.backup.iter().map(String::as_str).filter_map(|id| {
            let profiled = profiled(id).filter(|_| self.is_reachable(&view, version, id))?;
            Some(Backup {
                replica: id,
                run_us: profiled.run_us,
                after_us: after_us(id),
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

    fn destination<'a>(&self, from: &str, version: &PlanVersion, edge: &'a Edge) -> Destination<&'a str> {
        let view = self.view();
        let reachable = |replica: &str| self.is_reachable(&view, version, replica);
        routing::destination_from(edge, from, reachable, self.draw(from))
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
        let (gear, stage) = (request.gear, version.stage_at(request.gear, edge, Some(id)));
        let stage = stage.map_or(edge.stage.as_str(), |stage| stage.name.as_str());
        stage.clone_into(&mut request.stage);
        let is_it = |replica: &LocalReplica| replica.id == id && replica.serves(version, gear, stage);
        match self.0.process.local.least_busy(stage, is_it) {
            Some(replica) => self.deliver_locally(&replica, request, deadline, trace),
            None => match self.0.publisher.encode_checked(&request) {
                Ok(payload) => self.send(self.0.process.app.replica(id), request, &payload, deadline, trace),
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
        let gear = request.gear;
        let near = self.0.process.local.least_busy(&edge.stage, |replica| {
            replica.has_room_in_next_batch() && replica.serves(version, gear, &edge.stage)
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
        let fits = payload.len() <= self.0.publisher.payload_limit();
        if fits && !request.via_ingress {
            self.send(
                self.0.process.app.stage(&edge.stage),
                request,
                &payload,
                deadline,
                trace,
            );
            return None;
        }
        // The members of a queue group would each get some of the chunks, and nothing tells which one got the request.
        let one = self.group_member(from, version, edge, request.gear);
        match &one {
            Some(id) => self.send(self.0.process.app.replica(id), request, &payload, deadline, trace),
            None if fits => self.refuse(request, no_replica(version.epoch, &edge.stage)),
            None => self.refuse(request, self.0.publisher.too_large::<StageRequest>(payload.len())),
        }
        one
    }

    /// Returns a replica to address instead of the queue group if one of the stage's replicas is lost or leaving
    /// ([`routing::past_the_silent`]).
    fn replica_past_lost(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        let view = self.view();
        if !view.avoids_any() {
            return None;
        }
        let stage = version.stage(gear, &edge.stage)?;
        let placed = version.plan.placement.iter();
        let members = placed
            .filter(|replica| stage.is_run_by(replica))
            .map(|replica| replica.id.as_str());
        let alive = |id: &str| self.is_reachable(&view, version, id);
        let one = routing::past_the_silent(members, |id| view.is_avoided(id), alive, self.draw(from));
        one.map(ToOwned::to_owned)
    }

    /// Returns whether the ingress that owns the request must send it along the edge ([`routing::leave_to_ingress`]): also if
    /// this process has not learned from that ingress which replicas live.
    pub(crate) fn leaves_to_ingress(
        &self,
        is_root: bool,
        version: &PlanVersion,
        edge: &Edge,
        gear: u32,
        ingress: &str,
    ) -> bool {
        let Some(stage) = version.stage(gear, &edge.stage) else {
            return false;
        };
        let view = self.view();
        if !view.is_informed_by(ingress) {
            return is_root;
        }
        let placed = version.plan.placement.iter();
        let serving = placed.filter(|replica| version.serves(gear, stage, replica));
        let ids = serving.map(|replica| replica.id.as_str());
        routing::leave_to_ingress(is_root, ids, |id| self.is_reachable(&view, version, id))
    }

    /// Returns a replica of the plan that serves the edge's stage. Actors outside the plan are not considered: they
    /// need not support chunks.
    fn group_member(&self, from: &str, version: &PlanVersion, edge: &Edge, gear: u32) -> Option<String> {
        let stage = version.stage(gear, &edge.stage)?;
        let placed = version.plan.placement.iter();
        let members = placed
            .filter(|replica| stage.is_run_by(replica))
            .map(|replica| replica.id.as_str());
        let view = self.view();
        let alive = |id: &str| self.is_reachable(&view, version, id);
        routing::member(members, alive, self.draw(from)).map(ToOwned::to_owned)
    }

    fn is_reachable(&self, view: &Reachability, version: &PlanVersion, replica: &str) -> bool {
        view.is_reachable(replica) || self.0.process.local.has(version, replica)
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
        // The reply subject receives the result and the server's "no responders" notice.
        let StageRequest {
            ingress,
            id,
            attempt,
            token,
            ..
        } = &request;
        let reply = self
            .0
            .process
            .app
            .done(ingress, *id, *attempt, &token.to_string());
        let addressed = subject.and_then(|subject| Ok((subject, reply?)));
        match addressed {
            Ok((subject, reply)) => {
                let headers = headers::for_trace(&trace);
                let publisher = &self.0.publisher;
                let sent = publisher.send(
                    &subject,
                    Some(reply),
                    headers,
                    Some(deadline),
                    payload,
                    Permits::new(),
                );
                if let Err(fault) = sent {
                    self.refuse(request, fault);
                }
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
        let finished = Finished { done, checked: true };
        self.done(&request.ingress, request.token, finished, Permits::new());
    }

    /// Resolves once everything published so far has reached the broker.
    pub async fn flush(&self) {
        tokio::join!(self.0.publisher.flush(), self.0.process.control.flush());
    }

    fn draw(&self, from: &str) -> f64 {
        if let Some(mut count) = self.0.process.draws.get_mut(from) {
            *count += 1;
            return routing::draw(*count);
        }
        self.0.process.draws.insert(from.to_owned(), 0);
        routing::draw(0)
    }
}

/// The retryable fault of a process that does not run a stage under the plan of an epoch.
pub(super) fn not_served(epoch: u64) -> Fault {
    let message = format!("this worker does not run the stage under epoch {epoch}");
    Fault::new(Code::Unavailable, message)
}

/// The retryable fault of a request that must go to a named replica of a stage for which the plan of an epoch has none.
fn no_replica(epoch: u64, stage: &str) -> Fault {
    let message = format!("epoch {epoch} has no replica for stage `{stage}`");
    Fault::new(Code::Unavailable, message)
}

/// The fault of a replica whose queue is full.
pub(crate) fn full_queue(replica: &str) -> Fault {
    Fault::new(
        Code::Overloaded,
        format!("the queue of replica `{replica}` is full; try again later, or add replicas"),
    )
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
