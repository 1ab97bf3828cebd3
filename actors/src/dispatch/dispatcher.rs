//! The dispatcher: delivers messages to the mailbox of an actor in this process, or else publishes them to a subject.
//!
//! A cascade step inside one process costs two mailbox hops and copies no tensor; between processes it costs one NATS
//! hop. Senders use the same calls for both. The submodule `forwarding` chooses the target of a request.

mod forwarding;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use crate::actor::{Message, Recipient};
use async_nats::{HeaderMap, Message as NatsMessage, Subject};
use bytes::Bytes;
use dashmap::DashMap;
use kaskade_policy::liveness::Liveness;
use kaskade_policy::plan::Replica;
use kaskade_policy::reachability::Reachability;
use tokio::sync::watch;

use crate::{
    bus::Bus,
    bus::publisher::{Permits, Publisher},
    clock::Clock,
    dispatch::local::{LocalReplica, LocalReplicas},
    error::{Code, Fault},
    plan::versions::PlanVersion,
    subjects::{self, App},
    supervision::Supervisor,
    wire::{self, Message as _, StageOutcome, StageReply, StageRequest, Token, headers},
};

/// A stage's result, delivered to the ingress that owns the request.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Finished {
    /// The result.
    pub done: StageReply,
    /// Whether the executor of this process has checked the outputs. The ingress checks all other results.
    pub checked: bool,
    /// Number of the dispatch in the result's token; 0 for a result from this process.
    pub dispatch: u32,
}

/// Timing of a request at the end of a pipeline's task: the replica, the time spent and the task's latency budget,
/// microseconds.
pub(crate) struct TaskTiming<'a> {
    pub(crate) replica: &'a str,
    pub(crate) spent_us: u64,
    pub(crate) budget_us: Option<u64>,
}

/// Routes the messages of one app in one shard of a process. Cheap to clone.
///
/// The dispatchers of a process share their state (`Dispatcher::shard`). A message for an actor of another shard goes
/// directly into its mailbox, from thread to thread.
#[derive(Clone)]
pub struct Dispatcher(Arc<Shard>);

struct Shard {
    publisher: Publisher,
    process: Arc<Process>,
}

/// State shared by all shards of a process.
struct Process {
    app: App,
    clock: Clock,
    /// Publisher of control messages, on the control connection.
    control: Publisher,
    supervisor: Supervisor,
    ingresses: DashMap<String, Recipient<Finished>>,
    local: LocalReplicas,
    /// Liveness of replicas as learned from heartbeats, if the process has an ingress.
    liveness: Mutex<Liveness>,
    /// Replicas that may be sent to: an immutable view, replaced at every change.
    reachability: watch::Sender<Arc<Reachability>>,
    /// Position in the random sequence of each sender. A sequence shared by all senders would correlate the draws of a
    /// request at successive tasks.
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

    /// Creates the dispatcher of another shard, which publishes data over `bus`. Call it on the thread of that shard:
    /// it spawns a publishing task.
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

    /// Calls `access` with the liveness of replicas, and updates the view of reachable replicas if it changes. For
    /// processes that receive heartbeats.
    pub fn liveness<T>(&self, access: impl FnOnce(&mut Liveness) -> T) -> T {
        let mut liveness = self
            .0
            .process
            .liveness
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = liveness.revision();
        let seen = access(&mut liveness);
        if liveness.revision() != before {
            // Under the lock, so that views are published in the order of the changes.
            self.set_reachability(liveness.reachability());
        }
        seen
    }

    /// Replaces the view of which replicas are reachable.
    pub(crate) fn set_reachability(&self, view: Reachability) {
        self.0.process.reachability.send_replace(Arc::new(view));
    }

    /// Returns a watch channel of the view of reachable replicas.
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

    /// Unregisters a replica from every stage: it receives no new requests from inside the process.
    pub fn unregister_replica(&self, replica: &LocalReplica) {
        self.0.process.local.unregister(replica);
        self.0.process.draws.remove(&replica.id);
    }

    /// Unregisters a replica from one stage.
    pub(crate) fn unregister_replica_from(&self, stage: &str, replica: &LocalReplica) {
        self.0.process.local.unregister_from(stage, replica);
    }

    /// Returns whether a replica with that id, as the plan places it, runs in this process.
    pub(crate) fn has_replica(&self, version: &PlanVersion, replica: &str) -> bool {
        self.0.process.local.has(version, replica)
    }

    /// Returns the placements of the replicas in this process; replicas outside any plan are omitted.
    pub(super) fn placed(&self) -> Vec<Arc<Replica>> {
        self.0.process.local.placed()
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

    /// Publishes a control message (heartbeat, state, gear, event) on the control connection. It does not wait behind
    /// data, and is not ordered with respect to data.
    pub fn publish_control(&self, subject: Subject, payload: Bytes) {
        self.0.process.control.control(subject, None, None, payload);
    }

    /// Publishes a reply to a client, and holds `permits` until it has been written to the connection.
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

    /// Sends a result to the ingress that owns the request, with the token of the request. Holds `permits` until the
    /// result has been written to the connection.
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
        // A part may be lost, because the complete answer follows.
        if matches!(done.result, StageOutcome::Part { .. }) {
            return;
        }
        let result = StageOutcome::Fault(fault);
        match (StageReply { result, ..done }).encode() {
            Ok(payload) => self.0.publisher.control(subject, None, None, payload),
            Err(error) => tracing::error!(%error, "a result could not be encoded"),
        }
    }

    /// Answers a request that cannot be forwarded with a fault.
    pub(crate) fn refuse(&self, request: StageRequest, fault: Fault) {
        let done = StageReply {
            id: request.id,
            attempt: request.attempt,
            branch: request.branch,
            stage: request.stage,
            replica: String::new(),
            hops: request.hops,
            result: StageOutcome::Fault(fault),
        };
        let finished = Finished {
            done,
            checked: true,
            dispatch: 0,
        };
        self.done(&request.ingress, request.token, finished, Permits::new());
    }

    /// Refuses a client's message, if replies to its reply subject are allowed.
    pub(crate) fn refuse_message(&self, message: &NatsMessage, fault: &Fault) {
        let inbox = message.reply.clone();
        if let Some(inbox) = inbox.filter(|inbox| subjects::is_reply_allowed(inbox)) {
            let content_type = headers::content_type_of(message.headers.as_ref(), &message.payload);
            let content_type = content_type.unwrap_or_default();
            let payload = wire::encode_fault(content_type, fault);
            let headers = headers::for_fault(content_type, fault);
            self.publish(inbox, None, Some(headers), payload);
        }
    }

    /// Resolves once everything published so far has reached the broker.
    pub async fn flush(&self) {
        tokio::join!(self.0.publisher.flush(), self.0.process.control.flush());
    }
}

/// Returns the retryable fault of a process that does not run a stage under the plan of `epoch`.
pub(super) fn not_served(epoch: u64) -> Fault {
    let message = format!("this worker does not run the stage under epoch {epoch}");
    Fault::new(Code::Unavailable, message)
}

/// Returns the fault of a replica whose queue is full.
pub(crate) fn full_queue(replica: &str) -> Fault {
    Fault::new(
        Code::Overloaded,
        format!("the queue of replica `{replica}` is full; try again later, or add replicas"),
    )
}
