//! Runs a replica: starts its actor on a shard, subscribes it to its subjects, and ends its model.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use crate::actor::{Actor, Addr, ArbiterHandle, Context};
use async_nats::Subject;
use futures::StreamExt;
use kaskade_models::{Availability, Executor};
use kaskade_policy::plan::{Batching, Replica};
use tokio::sync::{Semaphore, oneshot, watch};

use super::batcher::{Batcher, BatcherParts};
use super::generator::{Cancel, Generator, GeneratorParts};
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
    wire::{Message as _, ModelInterface, ReplicaBeat, StageCancel},
};

/// Task name of subscribing a replica in a node.
pub(super) const SUBSCRIBING_TASK: &str = "subscribing of a replica";

/// Handles shared by the actors of one shard.
#[derive(Clone)]
pub struct ShardContext {
    /// Thread of the shard.
    pub arbiter: ArbiterHandle,
    /// Connection of the shard.
    pub bus: Bus,
    /// Plans known to the process.
    pub plans: PlanVersions,
    /// Dispatcher with which replicas register and through which they send results.
    pub dispatcher: Dispatcher,
    /// Counters of the process.
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

impl ShardContext {
    /// Runs `work` on the thread of the shard, supervised under the name `task`. The receiver gets its result, or an error
    /// if the thread has ended.
    pub(crate) fn run<T, F>(
        &self,
        task: &'static str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (done, result) = oneshot::channel();
        let supervisor = self.dispatcher.supervisor().clone();
        self.arbiter.spawn_fn(move || {
            supervisor.spawn_finite(task, async move {
                let _ = done.send(work().await);
            });
        });
        result
    }
}

/// A replica that this worker runs.
pub(super) struct Hosted {
    pub(super) replica: Replica,
    /// Shard of the replica.
    shard: ShardContext,
    /// Whether the model can answer at present; `None` for local models.
    availability: Option<Availability>,
    /// Interface of the model, if known; `None` for a partition.
    pub(super) interface: Option<ModelInterface>,
    pub(super) local: LocalReplica,
    pub(super) actor: ReplicaActor,
    /// Stages that the replica serves. The subscription to a stage ends when its sender turns true or is dropped.
    pub(super) stages: BTreeMap<String, watch::Sender<bool>>,
    /// Ends the other subscriptions when it turns true or is dropped.
    pub(super) stop: watch::Sender<bool>,
}

impl Hosted {
    /// Starts the batcher or generator of a loaded replica on that shard.
    pub(super) fn start(
        replica: Replica,
        executor: Executor,
        batching: Batching,
        queue_capacity: usize,
        shared: ShardContext,
    ) -> Self {
        let depth = Arc::new(AtomicUsize::new(0));
        let running = Arc::new(AtomicUsize::new(0));
        // Room for a full queue and the running batch.
        let capacity = queue_capacity + batching.max_batch as usize;
        let supervisor = shared.dispatcher.supervisor().clone();
        let router = Router::new(
            &replica.variant,
            shared.plans.clone(),
            Arc::clone(&shared.metrics),
        );
        let clock = shared.dispatcher.clock();
        let (queue_depth, metrics) = (Arc::clone(&depth), Arc::clone(&shared.metrics));
        let availability = executor.availability().cloned();
        let is_whole = replica.partition.is_none_or(|partition| partition.of == 1);
        let interface =
            ModelInterface::from_signature(executor.signature(), executor.answers()).filter(|_| is_whole);
        let actor = if executor.is_continuous() {
            let parts = GeneratorParts {
                variant: replica.variant.clone(),
                executor,
                router,
                plans: shared.plans.clone(),
                clock,
                depth: queue_depth,
                metrics,
                supervisor,
            };
            let start = move |_: &mut Context<Generator>| Generator::new(parts);
            ReplicaActor::Generator(Generator::start_in_arbiter(&shared.arbiter, start))
        } else {
            let parts = BatcherParts {
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
                supervisor,
            };
            let start = move |_: &mut Context<Batcher>| Batcher::new(parts);
            ReplicaActor::Batcher(Batcher::start_in_arbiter(&shared.arbiter, start))
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
            shard: shared,
            availability,
            interface,
        }
    }

    /// Subscribes the replica to a subject on its shard until `stop` turns true. The receiver is notified when the
    /// subscription is open.
    pub(super) fn bind(
        &self,
        subject: Result<Subject, SubjectError>,
        group: Option<String>,
        stop: watch::Receiver<bool>,
    ) -> Option<oneshot::Receiver<()>> {
        // Names of replicas and stages were validated with the plan.
        let subject = subject.ok()?;
        let (bus, dispatcher) = (self.shard.bus.clone(), self.shard.dispatcher.clone());
        let LocalReplica {
            id,
            mailbox,
            permits,
            placed,
            ..
        } = self.local.clone();
        let plans = self.shard.plans.clone();
        let binding = Binding {
            replica: id,
            mailbox,
            permits,
            check: placed.map(|replica| EpochCheck { replica, plans }),
        };
        Some(self.shard.run(SUBSCRIBING_TASK, move || async move {
            let replica = binding.replica.clone();
            if let Err(error) = subscribe::bind(&bus, &dispatcher, subject, group, binding, stop).await {
                tracing::error!(%error, replica, "subscribing a replica failed");
            }
        }))
    }

    /// Ends every subscription of the replica. Once the subscriptions have ended, the returned senders have no
    /// receivers.
    pub(super) fn end_subscriptions(&self) -> Vec<watch::Sender<bool>> {
        let stops: Vec<_> = self.stages.values().chain([&self.stop]).cloned().collect();
        for stop in &stops {
            stop.send_replace(true);
        }
        stops
    }

    /// Passes cancellations from ingresses to a generator while the replica is hosted. `None` for a batcher.
    pub(super) fn listen_for_cancels(&self) -> Option<oneshot::Receiver<()>> {
        let ReplicaActor::Generator(generator) = &self.actor else {
            return None;
        };
        let (generator, mut stop) = (generator.clone(), self.stop.subscribe());
        let (bus, subject) = (self.shard.bus.clone(), self.shard.dispatcher.app().stage_cancel());
        let listening = self.shard.dispatcher.supervisor().clone();
        Some(self.shard.run(SUBSCRIBING_TASK, move || async move {
            let mut cancelled = match bus.subscribe(subject, None).await {
                Ok(cancelled) => cancelled,
                Err(error) => return tracing::error!(%error, "subscribing to cancellations failed"),
            };
            listening.spawn_finite("subscription to cancelled requests", async move {
                loop {
                    let message = tokio::select! {
                        message = cancelled.next() => message,
                        _ = stop.wait_for(|stop| *stop) => None,
                    };
                    let Some(message) = message else { return };
                    match StageCancel::decode(&message.payload) {
                        Ok(StageCancel { ingress, ids }) => generator.do_send(Cancel { ingress, ids }),
                        Err(error) => tracing::warn!(%error, "a cancellation could not be decoded"),
                    }
                }
            });
        }))
    }

    /// Returns the state of the replica for the worker's heartbeat.
    pub(super) fn beat(&self) -> ReplicaBeat {
        ReplicaBeat {
            id: self.replica.id.clone(),
            variant: self.replica.variant.clone(),
            queue: count(self.local.depth.load(Ordering::Relaxed)),
            in_flight: count(self.local.unanswered()),
            unavailable: self
                .availability
                .as_ref()
                .is_some_and(|model| !model.is_available()),
            ..ReplicaBeat::default()
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
