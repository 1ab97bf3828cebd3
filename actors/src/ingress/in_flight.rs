//! The requests that an ingress owns, and the messages that it handles.

use std::{sync::Arc, time::Duration};

use crate::actor::Message;
use async_nats::Subject;
use kaskade_models::Tensor;
use kaskade_policy::admission::{Admission, AdmissionConfig};
use kaskade_policy::drift::DriftConfig;
use kaskade_policy::gather::{Branch, Gather};
use kaskade_policy::ledger::{Ledger, LedgerConfig};
use kaskade_policy::plan::Edge;
use kaskade_policy::shifting::ShiftConfig;
use kaskade_policy::stream_offset::StreamOffset;
use tokio::sync::OwnedSemaphorePermit;

use super::client_ids::{ClientIds, Listed};
use super::durable::{DurableConfig, Submission};
use super::tally::Tally;
use crate::{
    dispatch::dispatcher::Dispatcher,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::{PlanVersion, PlanVersions},
    wire::headers::Trace,
    wire::{ContentType, Done, Hop, StageRequest, TokenKey},
};

/// Configuration of an ingress.
#[derive(Debug, Clone)]
pub struct IngressConfig {
    /// Requests in flight; beyond that, clients are refused immediately.
    pub max_in_flight: usize,
    /// Budget of a request without one.
    pub default_budget: Duration,
    /// Largest budget; longer ones are reduced to it.
    pub max_budget: Duration,
    /// Attempts per request, including the first. The pauses between them together must exceed the time in which the
    /// failure detector notices a lost replica: until then others still send to it.
    pub max_attempts: u32,
    /// How durable requests are handled; `None` refuses them.
    pub durable: Option<DurableConfig>,
    /// Configuration of load counting and gear shifts.
    pub shift: ShiftConfig,
    /// Configuration of drift detection.
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

/// A request as received.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Inbound {
    pub(super) message: async_nats::Message,
    pub(super) permit: OwnedSemaphorePermit,
}

/// The broker reports that no subscriber serves the subject to which this dispatch of a request was sent.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Undeliverable {
    pub(super) id: u64,
    pub(super) attempt: u32,
    pub(super) dispatch: u32,
}

/// A client cancels the requests of this id.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Cancel {
    pub(super) id: String,
}

/// The failure detector has lost these replicas.
#[derive(Message)]
#[rtype(result = "()")]
pub struct LostReplicas(pub Vec<String>);

/// The connection was lost and is up again: messages in transit may be gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Reconnected;

/// Answers all requests in flight with a `Draining` fault: the grace time is over.
#[derive(Message)]
#[rtype(result = "()")]
pub struct FailInFlight;

/// State of a request until its terminal reply.
pub(super) struct InFlight {
    pub(super) client: Client,
    /// Its place in the index of client ids.
    pub(super) listed: Option<Listed>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) trace: Trace,
    pub(super) accepted: u64,
    pub(super) deadline: u64,
    pub(super) version: Arc<PlanVersion>,
    pub(super) gear: u32,
    /// The stage to which this ingress sent it last.
    pub(super) stage: String,
    /// How often this ingress has sent it.
    pub(super) dispatches: u32,
    /// The votes of an ensemble.
    pub(super) tally: Tally,
    /// The results of a pipeline's branches.
    pub(super) gather: Gather<Done>,
    /// Progress of a streamed answer, if the client asked for streaming.
    pub(super) reading: Option<StreamOffset>,
}

/// Where the reply goes, and in which format.
pub(super) struct Client {
    pub(super) to: To,
    pub(super) content_type: ContentType,
    pub(super) id: Option<String>,
}

/// The recipient of the reply, and the permit that the request holds until then.
pub(super) enum To {
    /// A client's inbox; `None` if it gave no reply subject.
    Inbox {
        inbox: Option<Subject>,
        _permit: Option<OwnedSemaphorePermit>,
    },
    /// The stream of durable requests.
    Stream(Box<Submission>),
}

/// The ingress actor.
pub struct Ingress {
    pub(super) id: String,
    pub(super) config: IngressConfig,
    pub(super) ledger: Ledger<InFlight>,
    pub(super) key: TokenKey,
    pub(super) by_client: ClientIds,
    pub(super) admission: Admission,
    pub(super) plans: PlanVersions,
    pub(super) dispatcher: Dispatcher,
    pub(super) metrics: Arc<Metrics>,
    pub(super) max_payload: usize,
}

impl Ingress {
    /// Creates an ingress of that id, which must be unique in the app. Results must carry tokens of `key`.
    pub fn new(
        id: &str,
        key: TokenKey,
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
            key,
            by_client: ClientIds::default(),
            admission: Admission::new(AdmissionConfig::default()),
            plans,
            dispatcher,
            metrics,
            max_payload,
        }
    }

    /// Sends the request to the first stage of its wiring.
    pub(super) fn send(&mut self, id: u64, attempt: u32, now: u64) {
        let Some(request) = self.stage_request(id, attempt, Vec::new()) else {
            return;
        };
        let Some(entry) = self.ledger.get(id) else { return };
        let Some(gear) = entry.version.gear(entry.gear) else {
            return;
        };
        let first = gear.wiring.entry.clone();
        if gear.wiring.ensemble.is_empty() {
            let may_be_forwarded = entry.version.may_be_forwarded(entry.gear, &first);
            self.send_to(&first, request, now);
            if may_be_forwarded {
                // Stages forward it without telling the ingress: any lost replica may have had it.
                self.ledger.sent(id, attempt, None, now);
            }
            return;
        }
        let missing = gear.wiring.members().filter(|edge| !entry.tally.has(&edge.stage));
        for edge in missing.cloned().collect::<Vec<_>>() {
            self.send_to(&edge, request.clone(), now);
        }
        // It is at several replicas: if one is lost, the missing members are asked again.
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

    /// Begins a dispatch of a request: to its first stage, or to where a stage's exit leads. `None` if it has been
    /// answered.
    pub(super) fn stage_request(&mut self, id: u64, attempt: u32, hops: Vec<Hop>) -> Option<StageRequest> {
        let settle = self.ledger.must_accept_below_threshold(attempt);
        let entry = self.ledger.get_mut(id)?;
        entry.dispatches = entry.dispatches.saturating_add(1);
        Some(StageRequest {
            id,
            ingress: self.id.clone(),
            attempt,
            token: self.key.issue(id, attempt, entry.dispatches),
            branch: Branch::ROOT,
            epoch: entry.version.epoch,
            gear: entry.gear,
            stage: String::new(),
            hops,
            stream: entry.reading.is_some(),
            settle,
            inputs: entry.inputs.clone(),
        })
    }
}

/// Returns whether another attempt may succeed. A full queue is not retried: overload must be refused quickly, and a
/// resend only adds load.
pub(super) fn may_retry(fault: &Fault) -> bool {
    fault.code.retryable() && fault.code != Code::Overloaded
}
