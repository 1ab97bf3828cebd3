//! Starts the actors of a replica and binds them to its subjects.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::actor::{self, Actor, Addr};
use async_nats::Subject;
use futures::StreamExt;
use kaskade_models::Executor;
use kaskade_policy::plan::{Batching, Replica};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::batcher::{Batcher, BatcherParts};
use super::generator::{Abandon, Generator, GeneratorParts};
use crate::{
    bus::Bus,
    dispatch::dispatcher::Dispatcher,
    dispatch::epoch_check::EpochCheck,
    dispatch::exits::Router,
    dispatch::local::LocalReplica,
    dispatch::subscribe::{self, Binding},
    metrics::Metrics,
    plan::versions::PlanVersions,
    subjects::SubjectError,
    wire::{Abandoned, Message as _, ReplicaBeat},
};

/// Handles shared by all replicas of a worker.
#[derive(Clone)]
pub struct Shared {
    /// The connection to the broker.
    pub bus: Bus,
    /// The plans that the process knows.
    pub plans: PlanVersions,
    /// Where the replicas register, and where they send their results.
    pub dispatcher: Dispatcher,
    /// The counters of the process.
    pub metrics: Arc<Metrics>,
}

/// The actor that serves a replica.
#[derive(Clone)]
pub(super) enum ReplicaActor {
    /// Runs the model batch by batch.
    Batcher(Addr<Batcher>),
    /// Runs a language model step by step.
    Generator(Addr<Generator>),
}

/// A replica that this worker runs.
pub(super) struct Hosted {
    pub(super) replica: Replica,
    pub(super) local: LocalReplica,
    pub(super) actor: ReplicaActor,
    /// The stages that it serves; the subscription to one ends when its sender turns true or is dropped.
    pub(super) stages: BTreeMap<String, watch::Sender<bool>>,
    /// Ends its other subscriptions when it turns true or is dropped.
    pub(super) stop: watch::Sender<bool>,
}

impl Hosted {
    /// Starts the router and the batcher or generator of a loaded replica.
    pub(super) fn start(
        replica: Replica,
        executor: Executor,
        batching: Batching,
        queue_capacity: usize,
        shared: &Shared,
    ) -> Self {
        let depth = Arc::new(AtomicUsize::new(0));
        let running = Arc::new(AtomicUsize::new(0));
        // A full queue and the running batch.
        let capacity = queue_capacity + batching.max_batch as usize;
        let router = Router::new(
            &replica.variant,
            shared.plans.clone(),
            Arc::clone(&shared.metrics),
        )
        .start();
        let clock = shared.dispatcher.clock();
        let (queue_depth, metrics) = (Arc::clone(&depth), Arc::clone(&shared.metrics));
        let actor = if executor.is_continuous() {
            let generator = Generator::new(GeneratorParts {
                variant: replica.variant.clone(),
                executor,
                router,
                plans: shared.plans.clone(),
                clock,
                depth: queue_depth,
                metrics,
            });
            ReplicaActor::Generator(generator.start())
        } else {
            let batcher = Batcher::new(BatcherParts {
                replica: replica.id.clone(),
                batching,
                capacity: queue_capacity,
                executor,
                router,
                plans: shared.plans.clone(),
                clock,
                depth: queue_depth,
                running: Arc::clone(&running),
                metrics,
            });
            ReplicaActor::Batcher(batcher.start())
        };
        let local = LocalReplica {
            id: replica.id.clone(),
            placed: Some(Arc::new(replica.clone())),
            mailbox: match &actor {
                ReplicaActor::Batcher(batcher) => batcher.clone().recipient(),
                ReplicaActor::Generator(generator) => generator.clone().recipient(),
            },
            permits: Arc::new(Semaphore::new(capacity)),
            capacity,
            depth,
            running,
            max_batch: Arc::new(AtomicU32::new(batching.max_batch)),
        };
        let (stop, _) = watch::channel(false);
        Self {
            local,
            actor,
            stages: BTreeMap::new(),
            stop,
            replica,
        }
    }

    /// Subscribes the replica to a subject in a task of its own, until `stop` turns true.
    pub(super) fn bind(
        &self,
        shared: &Shared,
        subject: Result<Subject, SubjectError>,
        group: Option<String>,
        stop: watch::Receiver<bool>,
    ) -> Option<JoinHandle<()>> {
        // The names of replicas and stages are validated with the plan.
        let subject = subject.ok()?;
        let (bus, dispatcher) = (shared.bus.clone(), shared.dispatcher.clone());
        let LocalReplica {
            id,
            mailbox,
            permits,
            placed,
            ..
        } = self.local.clone();
        let plans = shared.plans.clone();
        let binding = Binding {
            replica: id,
            mailbox,
            permits,
            check: placed.map(|replica| EpochCheck { replica, plans }),
        };
        Some(actor::spawn(async move {
            let replica = binding.replica.clone();
            if let Err(error) = subscribe::bind(&bus, &dispatcher, subject, group, binding, stop).await {
                tracing::error!(%error, replica, "subscribing a replica failed");
            }
        }))
    }

    /// Forwards cancellations from ingresses to a generator, for as long as it is hosted.
    pub(super) fn listen_for_abandoned(&self, shared: &Shared) -> Option<JoinHandle<()>> {
        let ReplicaActor::Generator(generator) = &self.actor else {
            return None;
        };
        let (generator, mut stop) = (generator.clone(), self.stop.subscribe());
        let (bus, subject) = (shared.bus.clone(), shared.dispatcher.app().abandon());
        Some(actor::spawn(async move {
            let mut abandoned = match bus.subscribe(subject, None).await {
                Ok(abandoned) => abandoned,
                Err(error) => return tracing::error!(%error, "subscribing to cancellations failed"),
            };
            actor::spawn(async move {
                loop {
                    let message = tokio::select! {
                        message = abandoned.next() => message,
                        _ = stop.wait_for(|stop| *stop) => None,
                    };
                    let Some(message) = message else { return };
                    match Abandoned::decode(&message.payload) {
                        Ok(Abandoned { ingress, ids }) => generator.do_send(Abandon { ingress, ids }),
                        Err(error) => tracing::warn!(%error, "a cancellation could not be decoded"),
                    }
                }
            });
        }))
    }

    /// The state that the worker's heartbeat reports.
    pub(super) fn beat(&self) -> ReplicaBeat {
        ReplicaBeat {
            id: self.replica.id.clone(),
            variant: self.replica.variant.clone(),
            queue: count(self.local.depth.load(Ordering::Relaxed)),
            in_flight: count(self.local.taken()),
            ..ReplicaBeat::default()
        }
    }
}

/// Ends a model without blocking the actors' thread while it finishes its batch and leaves memory.
pub(super) fn end(executor: &mut Executor) {
    let ending = executor.end();
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || ending.wait())),
        // The system has ended, and this thread serves no other actor.
        Err(_) => ending.wait(),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
