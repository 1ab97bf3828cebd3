//! The requests that an ingress owns, and the messages that it takes.

use std::{sync::Arc, time::Duration};

use crate::actor::Message;
use async_nats::Subject;
use kaskade_models::Tensor;
use kaskade_plans::{
    admission::{Admission, AdmissionConfig},
    drift::DriftConfig,
    gather::{Branch, Gather},
    ledger::{Ledger, LedgerConfig},
    plan::Edge,
    reading::Reading,
    shifting::ShiftConfig,
};
use tokio::sync::OwnedSemaphorePermit;

use super::durable::{DurableConfig, Submission};
use super::tally::Tally;
use crate::{
    dispatch::dispatcher::Dispatcher,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::{PlanVersion, PlanVersions},
    wire::headers::Trace,
    wire::{ContentType, Done, Hop, StageRequest},
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
pub(super) struct Inbound {
    pub(super) message: async_nats::Message,
    pub(super) permit: OwnedSemaphorePermit,
}

/// The broker says that nobody serves what request `id` was sent to.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Undeliverable {
    pub(super) id: u64,
}

/// A client waits no more for the requests of this id.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Cancel {
    pub(super) id: String,
}

/// Replicas that fell silent.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LostReplicas(pub Vec<String>);

/// The connection was lost and is there again: what was under way may be gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reconnected;

/// Asks how many requests are in flight.
#[derive(Message)]
#[rtype(result = "usize")]
pub struct CountInFlight;

/// Answers whatever is still in flight with a `Draining` fault: the grace time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FailInFlight;

/// What the ingress keeps of a request until its terminal reply.
pub(super) struct InFlight {
    pub(super) client: Client,
    pub(super) inputs: Vec<Tensor>,
    pub(super) trace: Trace,
    pub(super) accepted: u64,
    pub(super) deadline: u64,
    pub(super) version: Arc<PlanVersion>,
    pub(super) gear: u32,
    /// The stage that this ingress sent it to last.
    pub(super) stage: String,
    /// What the members of an ensemble have answered.
    pub(super) tally: Tally,
    /// What has come of the branches of a pipeline's request.
    pub(super) gather: Gather<Done>,
    /// How far the client has read, if it reads along.
    pub(super) reading: Option<Reading>,
}

/// Where the reply goes, and in what form.
pub(super) struct Client {
    pub(super) to: To,
    pub(super) content_type: ContentType,
    pub(super) id: Option<String>,
}

/// Who waits for a reply, and the place that the request takes until then.
pub(super) enum To {
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
    pub(super) id: String,
    pub(super) config: IngressConfig,
    pub(super) ledger: Ledger<InFlight>,
    pub(super) admission: Admission,
    pub(super) plans: PlanVersions,
    pub(super) dispatcher: Dispatcher,
    pub(super) metrics: Arc<Metrics>,
    pub(super) max_payload: usize,
}

impl Ingress {
    /// An ingress of that id, unique among all that serve the app.
    pub fn new(
        id: &str,
        config: IngressConfig,
        plans: PlanVersions,
        dispatcher: Dispatcher,
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
            plans,
            dispatcher,
            metrics,
            max_payload,
        }
    }

    /// Sends the request to the first stage of its wiring.
    pub(super) fn send(&mut self, id: u64, attempt: u32, now: u64) {
        let Some(entry) = self.ledger.get(id) else { return };
        let Some(gear) = entry.version.gear(entry.gear) else {
            return;
        };
        let request = self.stage_request(id, attempt, entry, Vec::new());
        let first = gear.wiring.entry.clone();
        if gear.wiring.ensemble.is_empty() {
            let may_be_forwarded = entry.version.may_be_forwarded(entry.gear, &first);
            self.send_to(&first, request, now);
            if may_be_forwarded {
                // Whoever routes it on does not say so here: whoever is lost, it may have been there.
                self.ledger.sent(id, attempt, None, now);
            }
            return;
        }
        let missing = gear.wiring.members().filter(|edge| !entry.tally.has(&edge.stage));
        for edge in missing.cloned().collect::<Vec<_>>() {
            self.send_to(&edge, request.clone(), now);
        }
        // It is in several places: whoever of them is lost, the missing members are asked again.
        self.ledger.sent(id, attempt, None, now);
    }

    pub(super) fn send_to(&mut self, edge: &Edge, request: StageRequest, now: u64) {
        let (id, attempt) = (request.id, request.attempt);
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        edge.stage.clone_into(&mut entry.stage);
        let version = Arc::clone(&entry.version);
        let (deadline, trace) = (entry.deadline, entry.trace);
        let to = self
            .dispatcher
            .dispatch(&self.id, &version, edge, request, deadline, trace);
        self.ledger.sent(id, attempt, to.as_deref(), now);
    }

    pub(super) fn stage_request(
        &self,
        id: u64,
        attempt: u32,
        entry: &InFlight,
        hops: Vec<Hop>,
    ) -> StageRequest {
        StageRequest {
            id,
            ingress: self.id.clone(),
            attempt,
            branch: Branch::ROOT,
            epoch: entry.version.epoch,
            gear: entry.gear,
            stage: String::new(),
            hops,
            stream: entry.reading.is_some(),
            settle: self.ledger.must_settle(attempt),
            inputs: entry.inputs.clone(),
        }
    }
}

/// Whether another attempt may do better. A full queue is not asked again: the client was promised a quick refusal, and a
/// resend only adds load.
pub(super) fn may_retry(fault: &Fault) -> bool {
    fault.code.retryable() && fault.code != Code::Overloaded
}
