//! The ingress actor, and how it sends requests.

use std::sync::Arc;

use kaskade_policy::admission::{Admission, AdmissionConfig};
use kaskade_policy::fan_in::Branch;
use kaskade_policy::ledger::{Ledger, LedgerConfig};
use kaskade_policy::plan::Edge;
use tokio::sync::watch;

use super::audits::Audits;
use super::class_names::ClassNames;
use super::client_ids::ClientIds;
use super::config::IngressConfig;
use super::epochs::Epochs;
use super::in_flight::{InFlight, StreamProgress};
use super::process_ingresses::Ingresses;
use crate::{
    audit_counts::AuditCounts,
    dispatch::dispatcher::Dispatcher,
    error::{Code, Fault},
    metrics::Metrics,
    plan::versions::PlanVersions,
    supervision::TaskGuard,
    wire::{Hop, StageRequest, Token, TokenKey},
};

/// The ingress actor.
pub struct Ingress {
    pub(super) id: String,
    pub(super) config: IngressConfig,
    pub(super) ledger: Ledger<InFlight>,
    pub(super) key: TokenKey,
    pub(super) by_client: ClientIds,
    pub(super) admission: Admission,
    /// Epoch whose replicas the admission control is sized for; 0 before the first.
    pub(super) sized_for: u64,
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
    /// Creates an ingress. `id` must be unique in the app; results must carry tokens of `key`.
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
            sized_for: 0,
            plans,
            _guard: dispatcher.supervisor().guard("ingress"),
            dispatcher,
            metrics,
            max_payload,
            epochs: watch::Sender::default(),
            siblings: Ingresses::default(),
        }
    }

    /// Sets the list of all ingresses of the process.
    #[must_use]
    pub(crate) fn with_siblings(mut self, siblings: &Ingresses) -> Self {
        self.siblings = siblings.clone();
        self
    }

    /// Counts audits and labels in the counts shared by the process.
    #[must_use]
    pub(crate) fn with_audit_counts(mut self, audit_counts: &Arc<AuditCounts>) -> Self {
        self.audits.count_in(audit_counts);
        self
    }

    /// Uses these class names to compare labels.
    #[must_use]
    pub(crate) fn with_class_names(mut self, names: &ClassNames) -> Self {
        self.audits.name_by(names);
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
            return self.send_to(&wiring.entry, request);
        }
        let missing = wiring.members().filter(|edge| !entry.tally.has(&edge.stage));
        for edge in missing.collect::<Vec<_>>() {
            // Each member has its own token, which identifies the member in its result.
            let Some(token) = self.issue_token(id, attempt) else {
                return;
            };
            let request = StageRequest {
                token,
                ..request.clone()
            };
            self.send_to(edge, request);
        }
        // The request is at several replicas: if one is lost, the missing members are dispatched again.
        self.ledger.sent(id, attempt, None);
    }

    /// Sends a request along an edge: to its first stage, or to the target of a stage's exit.
    pub(super) fn send_to(&mut self, edge: &Edge, request: StageRequest) {
        let (id, attempt) = (request.id, request.attempt);
        let Some(entry) = self.ledger.get_mut(id) else {
            return;
        };
        entry.dispatch_to(&edge.stage);
        let (version, gear) = (Arc::clone(&entry.version), entry.gear);
        let (deadline, trace) = (entry.deadline, entry.trace);
        // Stages forward requests without telling the ingress, and a branch is only a part of one: any lost replica may
        // have held it.
        let is_unplaced =
            !request.branch.is_root() || version.may_be_forwarded(gear, edge, request.return_to_ingress);
        let to = self
            .dispatcher
            .dispatch(&self.id, &version, edge, request, deadline, trace);
        let replica = to.filter(|_| !is_unplaced);
        self.ledger.sent(id, attempt, replica.as_deref());
    }

    /// Registers a dispatch of a request and issues its token. `None` if the request has been answered.
    fn issue_token(&mut self, id: u64, attempt: u32) -> Option<Token> {
        let dispatch = self.ledger.get_mut(id)?.next_dispatch();
        Some(self.key.issue(id, attempt, dispatch))
    }

    /// Registers a dispatch of a request and builds its stage request: for its first stage, or the target of a stage's
    /// exit. `None` if the request has been answered.
    pub(super) fn stage_request(&mut self, id: u64, attempt: u32, hops: Vec<Hop>) -> Option<StageRequest> {
        let accept_below_threshold = self.ledger.must_accept_below_threshold(id, attempt);
        let return_to_ingress = self.ledger.is_suspect(id);
        let entry = self.ledger.get_mut(id)?;
        let inputs = entry.inputs.get();
        let inputs =
            inputs.inspect_err(|fault| tracing::error!(%fault, "a request could not be decoded again"));
        let dispatch = entry.next_dispatch();
        Some(StageRequest {
            id,
            ingress: self.id.clone(),
            attempt,
            token: self.key.issue(id, attempt, dispatch),
            branch: Branch::ROOT,
            epoch: entry.version.epoch,
            gear: entry.gear,
            stage: String::new(),
            hops,
            stream: entry.progress.is_some(),
            optimistic: matches!(entry.progress, Some(StreamProgress::Optimistic(_))),
            accept_below_threshold,
            return_to_ingress,
            inputs: inputs.ok()?,
        })
    }
}

impl Ingress {
    /// Returns a watch channel of the epochs that the ingress uses.
    pub(crate) fn epochs(&self) -> watch::Receiver<Epochs> {
        self.epochs.subscribe()
    }

    /// Publishes the epochs in use to the watch channel.
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

/// Returns whether another attempt may succeed. A full queue is not retried: overload must be refused quickly, and
/// retries add load.
pub(super) fn may_retry(fault: &Fault) -> bool {
    fault.code.retryable() && fault.code != Code::Overloaded
}
