//! The ingress actor, and how it sends requests.

use std::sync::Arc;

use kaskade_policy::admission::{Admission, AdmissionConfig};
use kaskade_policy::fan_in::Branch;
use kaskade_policy::ledger::{Ledger, LedgerConfig};
use kaskade_policy::plan::Edge;
use tokio::sync::watch;

use super::audits::Audits;
use super::client_ids::ClientIds;
use super::config::IngressConfig;
use super::epochs::Epochs;
use super::in_flight::{InFlight, Reading};
use super::process_ingresses::Ingresses;
use crate::{
    audit_counts::AuditCounts,
    dispatch::dispatcher::Dispatcher,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::PlanVersions,
    supervision::TaskGuard,
    wire::{Hop, StageRequest, TokenKey},
};

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
    pub(super) epochs: watch::Sender<Epochs>,
    /// The ingresses of the process.
    pub(super) siblings: Ingresses,
    pub(super) audits: Audits,
    _guard: TaskGuard,
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
            audits: Audits::new(id, &config),
            config,
            ledger: Ledger::new(limits),
            key,
            by_client: ClientIds::default(),
            admission: Admission::new(AdmissionConfig::default()),
            plans,
            _guard: dispatcher.supervisor().guard("ingress"),
            dispatcher,
            metrics,
            max_payload,
            epochs: watch::Sender::default(),
            siblings: Ingresses::default(),
        }
    }

    /// Makes it one of several ingresses of a process.
    #[must_use]
    pub(crate) fn beside(mut self, siblings: &Ingresses) -> Self {
        self.siblings = siblings.clone();
        self
    }

    /// Makes its counts of audits and labels part of those of the process.
    #[must_use]
    pub(crate) fn watched_by(mut self, watched: &Arc<AuditCounts>) -> Self {
        self.audits.count_in(watched);
        self
    }

    /// Sends the request to the first stage of its wiring.
    pub(super) fn send(&mut self, id: u64, attempt: u32) {
        let Some(request) = self.stage_request(id, attempt, Vec::new()) else {
            return;
        };
        let Some(entry) = self.ledger.get(id) else { return };
        let (version, gear) = (Arc::clone(&entry.version), entry.gear);
        let Some(wiring) = version.gear(gear).map(|gear| &gear.wiring) else {
            return;
        };
        if wiring.ensemble.is_empty() {
            let first = &wiring.entry;
            let may_be_forwarded = version.may_be_forwarded(gear, first) && !request.return_to_ingress;
            self.send_to(first, request);
            if may_be_forwarded {
                // Stages forward it without telling the ingress: any lost replica may have had it.
                self.ledger.sent(id, attempt, None);
            }
            return;
        }
        let missing = wiring.members().filter(|edge| !entry.tally.has(&edge.stage));
        for edge in missing.collect::<Vec<_>>() {
            self.send_to(edge, request.clone());
        }
        // It is at several replicas: if one is lost, the missing members are asked again.
        self.ledger.sent(id, attempt, None);
    }

    pub(super) fn send_to(&mut self, edge: &Edge, request: StageRequest) {
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
        self.ledger.sent(id, attempt, to.as_deref());
    }

    /// Begins a dispatch of a request: to its first stage, or to where a stage's exit leads. `None` if it has been
    /// answered.
    pub(super) fn stage_request(&mut self, id: u64, attempt: u32, hops: Vec<Hop>) -> Option<StageRequest> {
        let accept_below_threshold = self.ledger.must_accept_below_threshold(attempt);
        let return_to_ingress = self.ledger.is_suspect(id);
        let entry = self.ledger.get_mut(id)?;
        let inputs = entry.inputs.get();
        let inputs =
            inputs.inspect_err(|fault| tracing::error!(%fault, "a request could not be decoded again"));
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
            optimistic: matches!(entry.reading, Some(Reading::Optimistic(_))),
            accept_below_threshold,
            return_to_ingress,
            inputs: inputs.ok()?,
        })
    }
}

impl Ingress {
    /// Returns the epochs that it uses, as they change.
    pub(crate) fn epochs(&self) -> watch::Receiver<Epochs> {
        self.epochs.subscribe()
    }

    /// Notes the epochs that it uses now.
    pub(super) fn note_epochs(&self) {
        let admits = self.plans.current().map_or(0, |(version, _)| version.epoch);
        // Requests are in order of admission, and epochs only grow.
        let first = self.ledger.iter().next();
        let oldest = first.map_or(admits, |(_, entry)| entry.version.epoch);
        let epochs = Epochs { admits, oldest };
        self.epochs
            .send_if_modified(|known| std::mem::replace(known, epochs) != epochs);
    }
}

/// Returns whether another attempt may succeed. A full queue is not retried: overload must be refused quickly, and a
/// resend only adds load.
pub(super) fn may_retry(fault: &Fault) -> bool {
    fault.code.retryable() && fault.code != Code::Overloaded
}
