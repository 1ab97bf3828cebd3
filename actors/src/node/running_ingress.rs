//! One ingress of a node, with its subscriptions, state and service announcement.

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};

use super::NodeError;
use crate::{
    actor::{Actor, Addr},
    audit_counts::AuditCounts,
    ingress::durable::{self, DurableIntake},
    ingress::{
        self, Capacity, ClassNames, Identity, Ingress, IngressConfig, Ingresses, IntakeParts, LocalIntake,
        StatePublisher,
    },
    metrics::Metrics,
    ops::discovery::{self, Announcement},
    stage::replica::ShardContext,
    wire::TokenKey,
};

/// A running ingress. Its handles may be used on any thread.
pub(super) struct RunningIngress {
    pub(super) id: String,
    pub(super) address: Addr<Ingress>,
    /// Counters of the ingress.
    pub(super) metrics: Arc<Metrics>,
    /// Task that accepts requests, until it has ended.
    pub(super) taking: JoinHandle<()>,
    /// Intake of durable requests, if this ingress has it.
    pub(super) durable: Option<DurableIntake>,
    pub(super) announced: Announcement,
    pub(super) state: StatePublisher,
}

impl RunningIngress {
    /// Returns whether every durable request has been settled or returned to the stream.
    pub(super) fn durable_settled(&self) -> bool {
        let durable = self.durable.as_ref();
        durable.is_none_or(|durable| durable.permits.available_permits() == durable.capacity)
    }
}

/// The ingresses of a node, one per shard.
pub(super) struct RunningIngresses {
    pub(super) running: Vec<RunningIngress>,
    pub(super) capacity: Capacity,
    /// Total number of permits for requests in flight.
    pub(super) max_in_flight: usize,
    /// Intake for clients in this process.
    pub(super) local: LocalIntake,
}

impl RunningIngresses {
    /// Returns whether no further request is accepted and every accepted request has its reply.
    pub(super) fn are_idle(&self) -> bool {
        self.running
            .iter()
            .all(|ingress| ingress.taking.is_finished() && ingress.durable_settled())
            && self.capacity.permits.available_permits() == self.max_in_flight
    }
}

/// State that the ingresses of a process share.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) capacity: Capacity,
    pub(super) ingresses: Ingresses,
    /// Counts of audits and stage results.
    pub(super) audit_counts: Arc<AuditCounts>,
    /// Class names for the comparison of labels.
    pub(super) class_names: ClassNames,
    /// Stops all intakes when it turns true.
    pub(super) closed: watch::Receiver<bool>,
    /// Whether this ingress accepts durable requests. Only one per process does, so that `max_in_flight` bounds those
    /// of the process.
    pub(super) takes_durable: bool,
}

/// Starts an ingress with its subscriptions and announces it. Call it on the thread of its shard. `metrics` are the
/// counters of the ingress.
///
/// # Errors
/// [`NodeError`] if the broker or the source of random numbers fails.
pub(super) async fn start(
    limits: IngressConfig,
    shared: ShardContext,
    metrics: Arc<Metrics>,
    common: Common,
) -> Result<RunningIngress, NodeError> {
    let (bus, plans, dispatcher) = (&shared.bus, &shared.plans, &shared.dispatcher);
    let id = discovery::instance_id();
    let key = TokenKey::random().map_err(|error| NodeError::Thread(error.to_string()))?;
    let ingress = Ingress::new(
        &id,
        key.clone(),
        limits.clone(),
        plans.clone(),
        dispatcher.clone(),
        Arc::clone(&metrics),
        bus.max_payload(),
    )
    .with_siblings(&common.ingresses)
    .with_audit_counts(&common.audit_counts)
    .with_class_names(&common.class_names);
    let epochs = ingress.epochs();
    let address = ingress.start();
    let bytes = Arc::clone(&common.capacity.bytes);
    let taking = ingress::open(IntakeParts {
        bus: bus.clone(),
        dispatcher: dispatcher.clone(),
        ingress: address.clone(),
        identity: Identity { id: id.clone(), key },
        capacity: common.capacity,
        max_budget: limits.max_budget,
        metrics: Arc::clone(&metrics),
        stop: common.closed.clone(),
    })
    .await?;
    let durable = if common.takes_durable {
        let (submitted, metrics) = (address.clone().recipient(), Arc::clone(&metrics));
        durable::open(
            bus,
            dispatcher,
            submitted,
            limits.durable,
            metrics,
            bytes,
            common.closed,
        )
        .await?
    } else {
        None
    };
    let state = StatePublisher::start(&id, dispatcher, plans, epochs)?;
    let counted = Arc::clone(&metrics);
    let announced = discovery::announce(bus, dispatcher.app(), &id, counted, dispatcher.supervisor()).await?;
    Ok(RunningIngress {
        id,
        address,
        metrics,
        taking,
        durable,
        announced,
        state,
    })
}
