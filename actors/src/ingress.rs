//! The ingress: accepts the requests of an app and owns each of them until its one terminal reply.
//!
//! [`kaskade_policy::ledger`] does the bookkeeping that guarantees one terminal reply before the budget ends;
//! [`kaskade_policy::admission`] decides when to shed load. This folder connects them to messages and timers.
//!
//! | file | holds |
//! |---|---|
//! | `intake` | subscriptions: requests, results, cancellations |
//! | `local` | requests of clients in the same process |
//! | `request` | reading and checking a client's request |
//! | `actor`, `config` | the actor, and how it sends requests; its configuration |
//! | `in_flight`, `reply_target` | the state of each request, and where its reply goes |
//! | `reservation` | the permits and bytes that requests hold |
//! | `messages` | what an ingress handles besides results |
//! | `result_checks` | what results of stages must satisfy |
//! | `client_ids` | requests by the ids that clients gave them |
//! | `completion` | from the results of stages to the reply |
//! | `audits/` | audits of a share of the requests, after their replies |
//! | `feedback`, `label_comparison`, `class_names` | labels that arrive later, how they are compared, and the names of the classes |
//! | `inputs` | the inputs of a request, for each of its dispatches |
//! | `refusal` | refusals under overload, encoded once |
//! | `reply` | encoding and publishing replies |
//! | `process_ingresses` | the ingresses of one process, one per shard |
//! | `state`, `epochs` | publishing the state for workers: replicas to avoid, epochs in use |
//! | `votes` | votes of an ensemble |
//! | [`durable`] | durable requests on JetStream |

mod actor;
mod audits;
mod class_names;
mod client_ids;
mod completion;
mod config;
pub mod durable;
mod epochs;
mod feedback;
mod in_flight;
mod inputs;
mod intake;
mod label_comparison;
pub(crate) mod local;
mod messages;
mod process_ingresses;
mod refusal;
mod reply;
pub(crate) mod reply_target;
mod request;
pub(crate) mod reservation;
pub mod result_checks;
mod state;
mod votes;

use std::{collections::BTreeSet, time::Duration};

use crate::actor::{Actor, AsyncContext, Context, Handler};
use kaskade_policy::fan_in::FanIn;
use kaskade_policy::ledger::{Admitted, AnswerOutcome};

pub use actor::Ingress;
use actor::may_retry;
pub(crate) use class_names::ClassNames;
pub use config::IngressConfig;
use durable::Submitted;
use in_flight::InFlight;
pub use intake::{Capacity, Identity, IntakeParts, open};
pub use local::LocalIntake;
pub(crate) use messages::ProcessReconnected;
use messages::{Cancel, Dropped, Inbound, LocalRequest, Reconnected, Undeliverable};
pub use messages::{DepartedReplicas, FailInFlight, LostReplicas};
pub(crate) use process_ingresses::Ingresses;
use refusal::TOO_MANY_WAIT;
use reply::refuse_at_once;
use reply_target::Destination;
use request::Source;
pub(crate) use state::StatePublisher;
use votes::Tally;

use crate::{
    dispatch::dispatcher::Finished,
    error::{Code, Fault},
    plan::versions::PlanVersion,
    wire::StageOutcome,
};

/// Interval of the check for expired requests and due retries, if no message triggers it: longer than a typical batch,
/// shorter than a budget.
const SWEEP: Duration = Duration::from_millis(5);

impl Ingress {
    /// Answers expired requests and resends due retries. The timer and every message call it, because a timer behind a
    /// full mailbox fires late.
    fn sweep(&mut self, now: u64) {
        if self.ledger.next_wake(now).is_none_or(|wake| wake > now) {
            return;
        }
        let due = self.ledger.due(now);
        for (_, entry) in due.expired {
            let message = "no stage answered within the budget";
            self.close(entry, &Fault::new(Code::Expired, message));
        }
        for (id, entry) in due.exhausted {
            let message = "every attempt was lost with its replica";
            self.cancel_at_replicas(&[id]);
            self.close(entry, &Fault::new(Code::ReplicasLost, message));
        }
        self.resend(due.resend, now);
    }

    fn resend(&mut self, entries: Vec<(u64, u32)>, now: u64) {
        for (id, attempt) in entries {
            if self.ledger.get(id).is_some_and(InFlight::is_begun_once) {
                let message = "the replica was lost after a part of its answer, which no other attempt repeats; send the request again";
                let fault = Fault::new(Code::ReplicasLost, message);
                self.fail_finally(id, attempt, &fault, now);
                continue;
            }
            self.metrics.retried();
            self.send(id, attempt);
        }
    }

    /// Answers requests that clients have cancelled, and notifies the replicas.
    fn cancel(&mut self, numbers: &[u64]) {
        for number in numbers {
            let attempt = self
                .ledger
                .attempt_and_replica(*number)
                .map_or(0, |(attempt, _)| attempt);
            if let AnswerOutcome::First(entry) = self.ledger.answered(*number, attempt) {
                self.admission.ended();
                self.refuse(
                    entry.target,
                    &Fault::new(Code::Cancelled, "the client cancelled it"),
                );
            }
        }
        self.cancel_at_replicas(numbers);
    }

    fn replicas_lost(&mut self, replicas: &[String], now: u64) {
        let entries = self.ledger.replicas_lost(replicas, now);
        tracing::warn!(?replicas, resent = entries.len(), "lost replicas");
        self.resend(entries, now);
    }

    /// Sizes the admission control by the replicas of a plan, divided among the ingresses of the process.
    fn size_admission(&mut self, version: &PlanVersion) {
        if self.sized_for != version.epoch {
            self.sized_for = version.epoch;
            let at_once = version.plan.runs_at_once();
            self.admission
                .set_replicas(at_once.div_ceil(self.siblings.count().max(1)));
        }
    }

    fn accept(&mut self, source: &Source<'_>, mut to: Destination, now: u64) {
        let Some((version, gear)) = self.plans.current() else {
            let fault = Fault::new(Code::Unavailable, "no plan has been adopted yet");
            return self.refuse(source.reply_target(to), &fault);
        };
        if self.plans.is_loading() {
            let fault = Fault::new(
                Code::Unavailable,
                "the workers load their models; send the request again",
            );
            return self.refuse(source.reply_target(to), &fault);
        }
        let read = source.read(&self.config);
        let read = read.and_then(|read| read.check(&mut to).map(|()| read));
        let read = match read {
            Ok(read) => read,
            Err(fault) => return self.refuse(source.reply_target(to), &fault),
        };
        let target = read.reply_target(to);
        self.size_admission(&version);
        if !self.admission.admit(now, self.ledger.len(), read.budget_us) {
            return refuse_at_once(&self.dispatcher, &self.metrics, target, &TOO_MANY_WAIT);
        }
        let one_answer = version
            .gear(gear)
            .is_some_and(|gear| gear.wiring.has_single_answer());
        let entry = InFlight {
            target,
            id_guard: None,
            inputs: read.inputs,
            trace: read.trace.child(),
            parent: read.trace.span_id,
            accepted: now,
            deadline: now.saturating_add(read.budget_us),
            version,
            gear,
            dispatched: Vec::new(),
            forwarded: BTreeSet::new(),
            refused_by: Vec::new(),
            tally: Tally::default(),
            fan_in: FanIn::default(),
            progress: read.stream.progress().filter(|_| one_answer),
            parts_lost: false,
            once: None,
        };
        match self.ledger.admit(now, read.budget_us, entry) {
            Ok(Admitted { id, attempt }) => {
                self.metrics.accepted();
                if let Some(entry) = self.ledger.get_mut(id) {
                    let named = entry.target.id.as_deref();
                    entry.id_guard = named.map(|named| self.by_client.list(named, id));
                }
                self.send(id, attempt);
            }
            Err((refusal, entry)) => {
                self.refuse(entry.target, &refusal::not_admitted(refusal));
            }
        }
    }
}

impl Actor for Ingress {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.dispatcher
            .register_ingress(&self.id, ctx.address().recipient());
        self.siblings.add(&self.id, &ctx.address());
        ctx.run_interval(SWEEP, |ingress, _| {
            let now = ingress.dispatcher.clock().now();
            ingress.sweep(now);
            ingress.sweep_audits(now);
            ingress.note_epochs();
        });
    }
}

impl Handler<Inbound> for Ingress {
    type Result = ();

    fn handle(&mut self, Inbound { message, held }: Inbound, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        self.sweep(now);
        self.accept(
            &Source::Message(&message),
            Destination::inbox(&message, held),
            now,
        );
    }
}

impl Handler<LocalRequest> for Ingress {
    type Result = ();

    fn handle(&mut self, local: LocalRequest, _: &mut Context<Self>) {
        let LocalRequest { request, options, to } = local;
        let now = self.dispatcher.clock().now();
        self.sweep(now);
        self.accept(&Source::Local(&request, &options), Destination::Local(to), now);
    }
}

impl Handler<Dropped> for Ingress {
    type Result = ();

    fn handle(&mut self, Dropped { id }: Dropped, _: &mut Context<Self>) {
        let mut dropped = self.by_client.numbers(&id);
        dropped.retain(|number| {
            let entry = self.ledger.get(*number);
            entry.is_some_and(|entry| entry.target.destination.is_dropped())
        });
        self.cancel(&dropped);
    }
}

impl Handler<Submitted> for Ingress {
    type Result = ();

    fn handle(&mut self, Submitted { message, submission }: Submitted, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        self.sweep(now);
        let to = Destination::Stream(Box::new(submission));
        self.accept(&Source::Message(&message), to, now);
    }
}

impl Handler<Finished> for Ingress {
    type Result = ();

    fn handle(&mut self, finished: Finished, _: &mut Context<Self>) {
        let Finished {
            done,
            checked,
            dispatch,
        } = finished;
        let now = self.dispatcher.clock().now();
        let mut done = if checked {
            done
        } else {
            result_checks::checked(done)
        };
        if audits::is_audit(done.id) {
            return self.audit_ended(done);
        }
        self.fill_defaults(&mut done, dispatch);
        match &done.result {
            StageOutcome::Outputs { routed: true, .. } => self.answer(done, now),
            StageOutcome::Outputs { routed: false, .. } => self.route_for_stage(done, now),
            StageOutcome::Part { .. } => self.forward_part(done),
            StageOutcome::Fault(fault) => {
                let fault = fault.clone();
                if fault.code == Code::Unreadable {
                    self.metrics.decode_error();
                }
                if self.forward_too_long(&done, &fault) {
                    // The next stage answers.
                } else if !done.branch.is_root() && !may_retry(&fault) {
                    self.gather(done, now);
                } else if self.is_stream_interrupted(&done, &fault) {
                    self.fail_finally(done.id, done.attempt, &fault, now);
                } else if !self.fail_member(&done, &fault, now) {
                    self.fail(done.id, done.attempt, &fault, now);
                }
            }
        }
        self.sweep(now);
    }
}

impl Handler<Undeliverable> for Ingress {
    type Result = ();

    fn handle(&mut self, notice: Undeliverable, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        let Undeliverable {
            id,
            attempt,
            dispatch,
        } = notice;
        if audits::is_audit(id) {
            return self.audit_failed(id);
        }
        let (Some((current, replica)), Some(entry)) =
            (self.ledger.attempt_and_replica(id), self.ledger.get(id))
        else {
            return;
        };
        if attempt != current {
            // The request has moved on: the notice says nothing about the replica that has it now.
            return self.metrics.stale();
        }
        // The ledger names the replica of the last dispatch only.
        let is_last = dispatch == entry.dispatches();
        if let Some(replica) = replica.filter(|_| is_last).map(ToOwned::to_owned)
            && self
                .dispatcher
                .liveness(|liveness| liveness.declare_lost(&replica))
        {
            // The replica's own subject has no subscriber, so its other requests are lost too; do not wait for missed
            // heartbeats.
            self.siblings
                .lost_at_others(&self.id, std::slice::from_ref(&replica));
            return self.replicas_lost(&[replica], now);
        }
        let message = "no replica serves the next stage: the last one is gone, or none was started";
        self.fail(id, attempt, &Fault::new(Code::Unavailable, message), now);
    }
}

/// Request id whose cancellation makes the ingress panic in tests.
#[cfg(test)]
pub(crate) const PANICS: &str = "panics";

impl Handler<Cancel> for Ingress {
    type Result = ();

    fn handle(&mut self, Cancel { id }: Cancel, _: &mut Context<Self>) {
        #[cfg(test)]
        assert_ne!(id, PANICS, "scripted to panic");
        let cancelled = self.by_client.numbers(&id);
        self.cancel(&cancelled);
    }
}

impl Handler<LostReplicas> for Ingress {
    type Result = ();

    fn handle(&mut self, LostReplicas(replicas): LostReplicas, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        self.replicas_lost(&replicas, now);
    }
}

impl Handler<DepartedReplicas> for Ingress {
    type Result = ();

    fn handle(&mut self, DepartedReplicas(replicas): DepartedReplicas, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        for replica in replicas {
            let entries = self.ledger.replica_left(&replica, now);
            tracing::info!(replica, resent = entries.len(), "a replica has left");
            self.resend(entries, now);
        }
    }
}

impl Handler<Reconnected> for Ingress {
    type Result = ();

    fn handle(&mut self, _: Reconnected, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        // Requests handed to replicas of this process never used the connection.
        let is_local = |entry: &InFlight, replica: &str| self.dispatcher.has_replica(&entry.version, replica);
        let entries = self.ledger.connection_lost(now, is_local);
        self.ledger.for_each_mut(|entry| {
            entry.parts_lost |= entry.target.has_parts && !entry.target.destination.is_local();
        });
        tracing::warn!(resent = entries.len(), "reconnected to the broker");
        self.resend(entries, now);
    }
}

impl Handler<ProcessReconnected> for Ingress {
    type Result = ();

    fn handle(&mut self, _: ProcessReconnected, _: &mut Context<Self>) {
        let now = self.dispatcher.clock().now();
        // Requests at a known replica used the connection of this ingress, which the ingress watches itself.
        let entries = self.ledger.connection_lost(now, |_, _| true);
        tracing::warn!(resent = entries.len(), "a connection of the process broke");
        self.resend(entries, now);
    }
}

impl Handler<FailInFlight> for Ingress {
    type Result = ();

    fn handle(&mut self, _: FailInFlight, _: &mut Context<Self>) {
        let message =
            "the service is shutting down and the grace time is over; send the request again".to_owned();
        let fault = Fault::new(Code::Draining, message);
        for (_, entry) in self.ledger.drain_all() {
            self.refuse(entry.target, &fault);
        }
    }
}

#[cfg(test)]
mod tests;
