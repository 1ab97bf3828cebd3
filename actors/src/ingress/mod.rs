//! The ingress: the door of an app. It owns every request it accepts until the one terminal reply.
//!
//! The book-keeping from which "exactly one terminal reply, before the budget ends" follows is
//! [`kaskade_plans::ledger`]; when to shed is [`kaskade_plans::admission`]. Here they meet messages and timers.

mod completion;
pub mod durable;
mod intake;
mod reply;
mod tally;

use std::{sync::Arc, time::Duration};

use actix::{Actor, AsyncContext, Context, Handler, Message};
use async_nats::Subject;
use kaskade_models::Tensor;
use kaskade_plans::{
    admission::{Admission, AdmissionConfig},
    drift::DriftConfig,
    gather::{Branch, Gather},
    ledger::{Admitted, Answer, Ledger, LedgerConfig},
    plan::Edge,
    reading::Reading,
    shifting::ShiftConfig,
};
use tokio::sync::OwnedSemaphorePermit;

use completion::End;
pub use intake::{Door, open};
use tally::Ballot;

use crate::{
    dispatch::dispatcher::{Exchange, Finished},
    error::{Code, Fault},
    ingress::durable::{DurableConfig, Submission, Submitted},
    metrics::Metrics,
    plan::versions::{Adopted, PlanBook},
    wire::headers::Trace,
    wire::{ContentType, DoneResult, StageRequest},
};

/// What an ingress allows.
#[derive(Debug, Clone)]
pub struct IngressConfig {
    /// Requests in flight at once; beyond that the client is refused at once.
    pub max_in_flight: usize,
    /// Budget of a request that names none.
    pub default_budget: Duration,
    /// Largest budget granted; a request that asks for more gets this.
    pub max_budget: Duration,
    /// Attempts per request, the first included. Their pauses together are to outlast the time in which a dead replica's silence is
    /// noticed: until then others go on sending to it.
    pub max_attempts: u32,
    /// How durable requests are taken; they are refused where absent.
    pub durable: Option<DurableConfig>,
    /// How it counts and shifts gears.
    pub shift: ShiftConfig,
    /// When it says that the load has drifted from the plan's.
    pub drift: DriftConfig,
}

impl Default for IngressConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 4096,
            default_budget: Duration::from_secs(5),
            max_budget: Duration::from_mins(2),
            max_attempts: 16,
            durable: None,
            shift: ShiftConfig::default(),
            drift: DriftConfig::default(),
        }
    }
}

/// A request as it came in.
#[derive(Message)]
#[rtype(result = "()")]
struct Inbound {
    message: async_nats::Message,
    permit: OwnedSemaphorePermit,
}

/// The broker says that nobody serves what request `id` was sent to.
#[derive(Message)]
#[rtype(result = "()")]
struct Undeliverable {
    id: u64,
}

/// A client waits no more for the requests of this id.
#[derive(Message)]
#[rtype(result = "()")]
struct Cancel {
    id: String,
}

/// Replicas that fell silent.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Lost(pub Vec<String>);

/// The connection was lost and is there again: what was under way may be gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Reconnected;

/// Asks how many requests are in flight.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct InFlight;

/// Answers whatever is still in flight with a `Draining` fault: the grace time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct GiveUp;

/// What the ingress keeps of a request until its terminal reply.
struct Kept {
    client: Client,
    inputs: Vec<Tensor>,
    trace: Trace,
    accepted: u64,
    deadline: u64,
    adopted: Arc<Adopted>,
    gear: u32,
    /// The stage that this ingress sent it to last.
    stage: String,
    /// What the members of an ensemble have answered.
    ballot: Ballot,
    /// What has come of the branches of a pipeline's request.
    gather: Gather<End>,
    /// How far the client has read, if it reads along.
    reading: Option<Reading>,
}

/// Where the reply goes, and in what form.
struct Client {
    to: To,
    content_type: ContentType,
    id: Option<String>,
}

/// Who waits for a reply, and the place that the request takes until then.
enum To {
    /// A client, unless it names no inbox.
    Inbox {
        inbox: Option<Subject>,
        _permit: Option<OwnedSemaphorePermit>,
    },
    /// The stream that it was submitted to.
    Stream(Box<Submission>),
}

/// The ingress actor.
pub struct Ingress {
    id: String,
    config: IngressConfig,
    ledger: Ledger<Kept>,
    admission: Admission,
    book: PlanBook,
    exchange: Exchange,
    metrics: Arc<Metrics>,
    max_payload: usize,
}

/// How often expiries and resends are looked for when no message does it. Coarser than a batch, finer than a budget.
const SWEEP: Duration = Duration::from_millis(5);

impl Ingress {
    /// An ingress of that id, unique among all that serve the app.
    pub fn new(
        id: &str,
        config: IngressConfig,
        book: PlanBook,
        exchange: Exchange,
        metrics: Arc<Metrics>,
        max_payload: usize,
    ) -> Self {
        let limits = LedgerConfig {
            max_in_flight: config.max_in_flight,
            max_attempts: config.max_attempts,
            ..LedgerConfig::default()
        };
        Self {
            id: id.to_owned(),
            config,
            ledger: Ledger::new(limits),
            admission: Admission::new(AdmissionConfig::default()),
            book,
            exchange,
            metrics,
            max_payload,
        }
    }

    /// Sends the request to the first stage of its wiring.
    fn send(&mut self, id: u64, attempt: u32, now: u64) {
        let Some(kept) = self.ledger.get(id) else { return };
        let Some(gear) = kept.adopted.gear(kept.gear) else {
            return;
        };
        let request = self.stage_request(id, attempt, kept, Vec::new());
        let entry = gear.wiring.entry.clone();
        if gear.wiring.ensemble.is_empty() {
            let roams = kept.adopted.roams(kept.gear, &entry);
            self.send_to(&entry, request, now);
            if roams {
                // Whoever routes it on does not say so here: whoever is lost, it may have been there.
                self.ledger.sent(id, attempt, None, now);
            }
            return;
        }
        let missing = gear.wiring.members().filter(|edge| !kept.ballot.has(&edge.stage));
        for edge in missing.cloned().collect::<Vec<_>>() {
            self.send_to(&edge, request.clone(), now);
        }
        // It is in several places: whoever of them is lost, the missing members are asked again.
        self.ledger.sent(id, attempt, None, now);
    }

    fn send_to(&mut self, edge: &Edge, request: StageRequest, now: u64) {
        let (id, attempt) = (request.id, request.attempt);
        let Some(kept) = self.ledger.get_mut(id) else {
            return;
        };
        edge.stage.clone_into(&mut kept.stage);
        let adopted = Arc::clone(&kept.adopted);
        let (deadline, trace) = (kept.deadline, kept.trace);
        let to = self
            .exchange
            .dispatch(&self.id, &adopted, edge, request, deadline, trace);
        self.ledger.sent(id, attempt, to.as_deref(), now);
    }

    fn stage_request(&self, id: u64, attempt: u32, kept: &Kept, hops: Vec<crate::wire::Hop>) -> StageRequest {
        StageRequest {
            id,
            ingress: self.id.clone(),
            attempt,
            branch: Branch::ROOT,
            epoch: kept.adopted.epoch,
            gear: kept.gear,
            stage: String::new(),
            hops,
            stream: kept.reading.is_some(),
            settle: self.ledger.must_settle(attempt),
            inputs: kept.inputs.clone(),
        }
    }

    /// Answers what expired and resends what is due. Called by the timer and by every message, because a timer behind a
    /// busy mailbox comes late.
    fn sweep(&mut self, now: u64) {
        if self.ledger.next_wake(now).is_none_or(|wake| wake > now) {
            return;
        }
        let due = self.ledger.due(now);
        for (_, kept) in due.expired {
            self.close(
                kept,
                &Fault::new(Code::Expired, "no stage answered within the budget"),
            );
        }
        for (_, kept) in due.exhausted {
            let message = "every attempt was lost with the replica that had it";
            self.close(kept, &Fault::new(Code::ReplicasLost, message));
        }
        self.resend(due.resend, now);
    }

    fn resend(&mut self, entries: Vec<(u64, u32)>, now: u64) {
        for (id, attempt) in entries {
            self.metrics.retried();
            self.send(id, attempt, now);
        }
    }

    fn lose(&mut self, replica: &str, now: u64) {
        let entries = self.ledger.lost(replica, now);
        tracing::warn!(replica, resent = entries.len(), "a replica is lost");
        self.resend(entries, now);
    }

    fn accept(&mut self, message: &async_nats::Message, to: To, now: u64) {
        let Some((adopted, gear)) = self.book.current() else {
            let fault = Fault::new(Code::Unavailable, "no plan has been adopted yet");
            return self.refuse(Client::of(message, to), &fault);
        };
        let read = intake::read(message, &self.config).and_then(|read| read.check(&to).map(|()| read));
        let read = match read {
            Ok(read) => read,
            Err(fault) => return self.refuse(Client::of(message, to), &fault),
        };
        let client = read.client(to);
        if !self.admission.admit(now, self.ledger.len(), read.budget_us) {
            let message =
                "more requests wait than can be answered within the budget; try again later, or add replicas";
            return self.refuse(client, &Fault::new(Code::Overloaded, message));
        }
        let one_answer = adopted
            .gear(gear)
            .is_some_and(|gear| gear.wiring.gives_one_answer());
        let kept = Kept {
            client,
            inputs: read.inputs,
            trace: read.trace,
            accepted: now,
            deadline: now.saturating_add(read.budget_us),
            adopted,
            gear,
            stage: String::new(),
            ballot: Ballot::default(),
            gather: Gather::default(),
            reading: (read.stream && one_answer).then(Reading::default),
        };
        match self.ledger.admit(now, read.budget_us, kept) {
            Ok(Admitted { id, attempt }) => {
                self.metrics.accepted();
                self.send(id, attempt, now);
            }
            Err((refusal, kept)) => {
                self.refuse(kept.client, &Fault::new(Code::Overloaded, refusal.to_string()));
            }
        }
    }
}

/// Whether another attempt may do better. A full queue is not asked again: the client was promised a quick refusal, and a
/// resend only adds load.
fn may_retry(fault: &Fault) -> bool {
    fault.code.retryable() && fault.code != Code::Overloaded
}

impl Actor for Ingress {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.exchange.join_ingress(&self.id, ctx.address().recipient());
        ctx.run_interval(SWEEP, |ingress, _| {
            let now = ingress.exchange.clock().now();
            ingress.sweep(now);
        });
    }
}

impl Handler<Inbound> for Ingress {
    type Result = ();

    fn handle(&mut self, Inbound { message, permit }: Inbound, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        self.sweep(now);
        self.accept(&message, To::inbox(&message, Some(permit)), now);
    }
}

impl Handler<Submitted> for Ingress {
    type Result = ();

    fn handle(&mut self, Submitted { message, submission }: Submitted, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        self.sweep(now);
        self.accept(&message, To::Stream(Box::new(submission)), now);
    }
}

impl Handler<Finished> for Ingress {
    type Result = ();

    fn handle(&mut self, Finished(mut done): Finished, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        self.complete(&mut done);
        match &done.result {
            DoneResult::Outputs { routed: true, .. } => self.answer(done, now),
            DoneResult::Outputs { routed: false, .. } => self.route_on_behalf(done, now),
            DoneResult::Part { .. } => self.pass_on(done),
            DoneResult::Fault(fault) => {
                let fault = fault.clone();
                if !done.branch.is_root() && !may_retry(&fault) {
                    self.gather(done, now);
                } else if !self.abstain(&done, &fault, now) {
                    self.fail(done.id, done.attempt, &fault, now);
                }
            }
        }
        self.sweep(now);
    }
}

impl Handler<Undeliverable> for Ingress {
    type Result = ();

    fn handle(&mut self, Undeliverable { id }: Undeliverable, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        let Some((attempt, replica)) = self.ledger.place(id) else {
            return;
        };
        if let Some(replica) = replica.map(ToOwned::to_owned)
            && self.exchange.liveness(|liveness| liveness.declare_lost(&replica))
        {
            // It had a subject of its own, and that is gone: so are its other requests. No need to wait for its silence.
            return self.lose(&replica, now);
        }
        let message = "nobody serves the next stage: its last replica is gone, or was never started";
        self.fail(id, attempt, &Fault::new(Code::Unavailable, message), now);
    }
}

impl Handler<Cancel> for Ingress {
    type Result = ();

    fn handle(&mut self, Cancel { id }: Cancel, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        let named = self
            .ledger
            .iter()
            .filter(|(_, kept)| kept.client.id.as_ref() == Some(&id));
        let cancelled: Vec<u64> = named.map(|(number, _)| number).collect();
        for number in &cancelled {
            let attempt = self.ledger.place(*number).map_or(0, |(attempt, _)| attempt);
            if let Answer::First(kept) = self.ledger.answered(*number, attempt, now) {
                self.admission.completed(now);
                self.refuse(
                    kept.client,
                    &Fault::new(Code::Cancelled, "the client cancelled it"),
                );
            }
        }
        self.abandon(&cancelled);
    }
}

impl Handler<Lost> for Ingress {
    type Result = ();

    fn handle(&mut self, Lost(replicas): Lost, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        for replica in replicas {
            self.lose(&replica, now);
        }
    }
}

impl Handler<Reconnected> for Ingress {
    type Result = ();

    fn handle(&mut self, _: Reconnected, _: &mut Context<Self>) {
        let now = self.exchange.clock().now();
        let entries = self.ledger.scattered(now);
        tracing::warn!(resent = entries.len(), "the connection is there again");
        self.resend(entries, now);
    }
}

impl Handler<InFlight> for Ingress {
    type Result = usize;

    fn handle(&mut self, _: InFlight, _: &mut Context<Self>) -> usize {
        self.ledger.len()
    }
}

impl Handler<GiveUp> for Ingress {
    type Result = ();

    fn handle(&mut self, _: GiveUp, _: &mut Context<Self>) {
        let message =
            "the service is shutting down and the grace time is over; send it again elsewhere".to_owned();
        let fault = Fault::new(Code::Draining, message);
        for (_, kept) in self.ledger.drain_all() {
            self.refuse(kept.client, &fault);
        }
    }
}
