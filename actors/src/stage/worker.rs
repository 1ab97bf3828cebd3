//! The worker: owns devices and runs the replicas that the placement assigns to it.
//!
//! When a plan moves replicas, the worker loads the new ones before it retires the old ones. A retiring replica first
//! answers everything that it has taken.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::actor::{self, Actor, Addr, AsyncContext, Context, Handler, Message};
use futures::future::join_all;
use kaskade_models::{Executor, Model};
use kaskade_policy::liveness::BEAT_PERIOD_US;
use kaskade_policy::plan::{Batching, Replica, Sharing};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::batcher::SetBatching;
use super::hosting::{Hosted, ReplicaActor, Shared};
use super::lease::Device;
use crate::{
    plan::versions::PlanVersion,
    subjects,
    supervision::TaskGuard,
    wire::{Beat, Message as _},
};

/// Loads the model of a replica. Called on the thread that will run it; the error is shown to the operator.
pub type Loader = Arc<dyn Fn(&Replica) -> Result<Box<dyn Model>, String> + Send + Sync>;

/// Configuration of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name, as in placements.
    pub name: String,
    /// Capacity of each replica's queue, requests.
    pub queue_capacity: usize,
}

/// Progress of a worker with the placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Epoch whose placement is in place; 0 before the first.
    pub epoch: u64,
    /// Replicas that could not be loaded, with the reasons.
    pub failed: BTreeMap<String, String>,
}

/// The worker actor.
pub struct Worker {
    config: WorkerConfig,
    shared: Shared,
    loader: Loader,
    replicas: BTreeMap<String, Hosted>,
    loading: BTreeSet<String>,
    failed: BTreeMap<String, String>,
    readiness: watch::Sender<Readiness>,
    subscribing: Vec<JoinHandle<()>>,
    beats: u64,
    /// Lost connections that the heartbeats have accounted for.
    disconnects: u64,
    /// Devices with exclusive use, by their names in the placement.
    devices: BTreeMap<String, Device>,
    /// The epoch whose placement is in place; 0 before the first.
    in_place: u64,
    /// Whether it is shutting down.
    leaving: bool,
    _guard: TaskGuard,
}

/// Aligns the replicas with the running plan.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Reconcile;

/// Announces in every further heartbeat, and in one at once, that the worker leaves; answers with its replicas. It
/// loads and retires nothing from here on.
#[derive(Message)]
#[rtype(result = "Vec<String>")]
pub struct AnnounceLeave;

/// Ends the subscriptions of every replica; the answer tells when all that they took has been answered.
#[derive(Message)]
#[rtype(result = "Draining")]
pub struct Leave;

/// Drops every replica and tells it in a heartbeat at once, which is the last one that matters.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Left;

/// Sends a heartbeat immediately, so that a new replica becomes known without waiting for the next period.
#[derive(Message)]
#[rtype(result = "()")]
struct BeatNow;

#[derive(Message)]
#[rtype(result = "()")]
struct Loaded {
    replica: Replica,
    executor: Result<Executor, String>,
}

/// Replicas that take no more requests.
pub struct Draining(Vec<Emptying>);

struct Emptying {
    /// Held by the replica's subscriptions until they have ended.
    stop: watch::Sender<bool>,
    permits: Arc<Semaphore>,
    capacity: usize,
}

impl Draining {
    /// Returns whether their subscriptions have ended and every request that they took has been answered.
    pub fn done(&self) -> bool {
        self.0
            .iter()
            .all(|one| one.stop.is_closed() && one.permits.available_permits() == one.capacity)
    }
}

impl<A: Actor, M: Message<Result = Draining>> actor::MessageResponse<A, M> for Draining {
    fn handle(self, _: &mut A::Context, sender: Option<actor::OneshotSender<Draining>>) {
        if let Some(sender) = sender {
            let _ = sender.send(self);
        }
    }
}

impl Worker {
    /// Creates a worker without replicas, and a channel of its progress.
    pub fn new(config: WorkerConfig, shared: Shared, loader: Loader) -> (Self, watch::Receiver<Readiness>) {
        let (readiness, watch) = watch::channel(Readiness::default());
        let worker = Self {
            config,
            _guard: shared.dispatcher.supervisor().guard("worker"),
            shared,
            loader,
            replicas: BTreeMap::new(),
            loading: BTreeSet::new(),
            failed: BTreeMap::new(),
            readiness,
            subscribing: Vec::new(),
            beats: 0,
            disconnects: 0,
            devices: BTreeMap::new(),
            in_place: 0,
            leaving: false,
        };
        (worker, watch)
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        if self.leaving {
            return;
        }
        let Some((version, gear)) = self.shared.plans.current() else {
            return;
        };
        if self.in_place == version.epoch {
            // Only the gear has changed: every model is loaded, every subject served.
            return self.set_batching(&version, gear);
        }
        let wanted: BTreeMap<&str, &Replica> = version
            .plan
            .placement
            .iter()
            .filter(|replica| replica.worker == self.config.name)
            .map(|replica| (replica.id.as_str(), replica))
            .collect();
        self.failed.retain(|id, _| wanted.contains_key(id.as_str()));
        for replica in wanted.values() {
            let known = self
                .replicas
                .get(&replica.id)
                .is_some_and(|hosted| hosted.replica == **replica);
            if !known && !self.failed.contains_key(&replica.id) && self.loading.insert(replica.id.clone()) {
                self.load((*replica).clone(), ctx);
            }
        }
        if !self.loading.is_empty() {
            return;
        }
        // Everything new is loaded: retire the old replicas.
        let leaving: Vec<String> = self
            .replicas
            .keys()
            .filter(|id| !wanted.contains_key(id.as_str()))
            .cloned()
            .collect();
        for id in leaving {
            self.retire(&id);
        }
        self.set_batching(&version, gear);
        self.serve_stages(&version, ctx.address());
        self.in_place = version.epoch;
    }

    fn set_batching(&mut self, version: &PlanVersion, gear: u32) {
        for hosted in self.replicas.values() {
            // A generator forms its batch at every step; it has no batching parameters.
            let ReplicaActor::Batcher(batcher) = &hosted.actor else {
                continue;
            };
            let device = (version.plan.sharing == Sharing::Exclusive).then(|| {
                let device = self.devices.entry(hosted.replica.device.clone());
                device.or_default().clone()
            });
            if let Some(batching) = version.batching(gear, &hosted.replica.variant) {
                let max_batch = &hosted.local.max_batch;
                max_batch.store(batching.max_batch, Ordering::Relaxed);
                batcher.do_send(SetBatching { batching, device });
            }
        }
    }

    fn load(&self, replica: Replica, ctx: &mut Context<Self>) {
        let (loader, worker) = (Arc::clone(&self.loader), ctx.address());
        actor::spawn(async move {
            let wanted = replica.clone();
            let executor = tokio::task::spawn_blocking(move || {
                Executor::spawn(&wanted.id.clone(), move || loader(&wanted))
                    .map_err(|error| error.to_string())
            });
            let executor = executor
                .await
                .unwrap_or_else(|_| Err("loading the model panicked".to_owned()));
            worker.do_send(Loaded { replica, executor });
        });
    }

    fn host(&mut self, replica: Replica, executor: Executor, batching: Batching) {
        self.retire(&replica.id);
        let hosted = Hosted::start(
            replica,
            executor,
            batching,
            self.config.queue_capacity,
            &self.shared,
        );
        self.subscribing.extend(hosted.listen_for_abandoned(&self.shared));
        let subject = self.shared.dispatcher.app().replica(&hosted.replica.id);
        self.subscribing.extend(hosted.bind(&self.shared, subject, None));
        self.replicas.insert(hosted.replica.id.clone(), hosted);
    }

    /// Makes every replica serve every stage that any gear of the plan has for its variant.
    fn serve_stages(&mut self, version: &PlanVersion, worker: Addr<Self>) {
        let mut replicas = std::mem::take(&mut self.replicas);
        for hosted in replicas.values_mut() {
            for stage in version.stages_of(&hosted.replica) {
                if hosted.stages.contains(&stage) {
                    continue;
                }
                let subject = self.shared.dispatcher.app().stage(&stage);
                let group = Some(subjects::STAGE_GROUP.to_owned());
                self.subscribing.extend(hosted.bind(&self.shared, subject, group));
                self.shared
                    .dispatcher
                    .register_replica(&stage, hosted.local.clone());
                hosted.stages.insert(stage);
            }
        }
        self.replicas = replicas;
        let ready = Readiness {
            epoch: version.epoch,
            failed: self.failed.clone(),
        };
        let (bus, readiness) = (self.shared.bus.clone(), self.readiness.clone());
        let subscribing = std::mem::take(&mut self.subscribing);
        actor::spawn(async move {
            join_all(subscribing).await;
            // Only a round trip proves that the subscriptions are active.
            let _ = bus.barrier().await;
            let _ = worker.send(BeatNow).await;
            readiness.send_replace(ready);
        });
    }

    fn retire(&mut self, id: &str) {
        if let Some(hosted) = self.replicas.remove(id) {
            self.shared.dispatcher.unregister_replica(id);
            hosted.stop.send_replace(true);
        }
    }

    fn beat(&mut self) {
        let disconnects = self.shared.bus.connection().counts().disconnects;
        if disconnects > std::mem::replace(&mut self.disconnects, disconnects) {
            // Messages on their way here are lost as after a restart, so restart the sequence.
            self.beats = 0;
        }
        self.beats += 1;
        let replicas = self.replicas.values().map(Hosted::beat).collect::<Vec<_>>();
        let epoch = self
            .shared
            .plans
            .current()
            .map_or(0, |(version, _)| version.epoch);
        let beat = Beat {
            actor: self.config.name.clone(),
            kind: "worker".to_owned(),
            sequence: self.beats,
            epoch,
            in_place: 0,
            leaving: self.leaving,
            queue: replicas.iter().map(|replica| replica.queue).sum(),
            in_flight: replicas.iter().map(|replica| replica.in_flight).sum(),
            fan_outs: self.shared.metrics.fan_outs(),
            runs: self.shared.metrics.runs(),
            replicas,
        };
        // The name was validated when the worker was created.
        if let (Ok(subject), Ok(payload)) = (
            self.shared.dispatcher.app().beat(&self.config.name),
            beat.encode(),
        ) {
            self.shared.dispatcher.publish(subject, None, None, payload);
        }
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(Duration::from_micros(BEAT_PERIOD_US), |worker, _| worker.beat());
        ctx.notify(Reconcile);
    }
}

impl Handler<Reconcile> for Worker {
    type Result = ();

    fn handle(&mut self, _: Reconcile, ctx: &mut Context<Self>) {
        self.reconcile(ctx);
    }
}

impl Handler<BeatNow> for Worker {
    type Result = ();

    fn handle(&mut self, _: BeatNow, _: &mut Context<Self>) {
        self.beat();
    }
}

impl Handler<Loaded> for Worker {
    type Result = ();

    fn handle(&mut self, Loaded { replica, executor }: Loaded, ctx: &mut Context<Self>) {
        self.loading.remove(&replica.id);
        if self.leaving {
            return;
        }
        let batching = self
            .shared
            .plans
            .current()
            .and_then(|(version, gear)| version.batching(gear, &replica.variant));
        match executor {
            Ok(executor) => self.host(replica, executor, batching.unwrap_or_default()),
            Err(reason) => {
                tracing::error!(
                    replica = replica.id,
                    variant = replica.variant,
                    reason,
                    "loading a replica failed"
                );
                self.failed.insert(replica.id, reason);
            }
        }
        self.reconcile(ctx);
    }
}

impl Handler<AnnounceLeave> for Worker {
    type Result = Vec<String>;

    fn handle(&mut self, _: AnnounceLeave, _: &mut Context<Self>) -> Vec<String> {
        self.leaving = true;
        self.beat();
        self.replicas.keys().cloned().collect()
    }
}

impl Handler<Leave> for Worker {
    type Result = Draining;

    fn handle(&mut self, _: Leave, _: &mut Context<Self>) -> Draining {
        let emptying = self.replicas.iter().map(|(id, hosted)| {
            self.shared.dispatcher.unregister_replica(id);
            hosted.stop.send_replace(true);
            Emptying {
                stop: hosted.stop.clone(),
                permits: Arc::clone(&hosted.local.permits),
                capacity: hosted.local.capacity,
            }
        });
        Draining(emptying.collect())
    }
}

impl Handler<Left> for Worker {
    type Result = ();

    fn handle(&mut self, _: Left, _: &mut Context<Self>) {
        self.replicas.clear();
        self.beat();
    }
}
