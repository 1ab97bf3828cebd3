//! The worker: owns devices and runs the replicas that the placement assigns to it.
//!
//! `placement` has how it follows plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use crate::actor::{self, Actor, AsyncContext, Context, Handler, Message};
use kaskade_models::{Executor, Model};
use kaskade_policy::adoption::retention::Retention;
use kaskade_policy::liveness::HEARTBEAT_PERIOD_US;
use kaskade_policy::load_retry::LoadRetry;
use kaskade_policy::plan::Replica;
use tokio::sync::{Semaphore, oneshot, watch};

use super::announcement::Announcements;
use super::device_lease::Device;
use super::heartbeat_sequence::HeartbeatSequence;
use super::model_thread;
use super::replica::{Hosted, ShardContext};
use crate::{
    bus::ConnectionHealth,
    ids,
    supervision::TaskGuard,
    wire::{Heartbeat, IngressState, Message as _},
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
    /// Largest budget of a request, as [`crate::ingress::IngressConfig::max_budget`]: a past epoch is kept for so long if no ingress says
    /// that it is drained.
    pub max_budget: Duration,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            queue_capacity: 1024,
            max_budget: Duration::from_mins(2),
        }
    }
}

/// Progress of a worker with the placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Epoch whose placement is in place; 0 before the first.
    pub epoch: u64,
    /// Replicas of that epoch that could not be loaded, with the reasons.
    pub failed: BTreeMap<String, String>,
    /// Newest epoch that was in place with every replica loaded; 0 before the first.
    pub complete: u64,
}

/// A replica that could not be loaded.
pub(super) struct FailedLoad {
    /// Why the last attempt failed.
    pub(super) reason: String,
    /// Failures in a row.
    failures: u32,
    /// When it is loaded again, microseconds; `None` while it is loaded.
    pub(super) retry_at: Option<u64>,
}

/// The worker actor.
pub struct Worker {
    pub(super) config: WorkerConfig,
    /// The shard on which it runs.
    pub(super) shared: ShardContext,
    /// The shards of the process, over which it spreads its replicas.
    pub(super) shards: Vec<ShardContext>,
    /// How many replicas it has started.
    hosted: usize,
    pub(super) loader: Loader,
    /// What runs here. Two epochs may place different replicas under one id.
    pub(super) replicas: BTreeMap<Replica, Hosted>,
    pub(super) loading: BTreeSet<Replica>,
    /// The replicas of the newest epoch that could not be loaded.
    pub(super) failed: BTreeMap<Replica, FailedLoad>,
    load_retry: LoadRetry,
    pub(super) readiness: watch::Sender<Readiness>,
    /// Its newest heartbeat, for the health of the process.
    beat: watch::Sender<Arc<Heartbeat>>,
    pub(super) subscribing: Vec<oneshot::Receiver<()>>,
    beats: HeartbeatSequence,
    announcements: Announcements,
    /// Differs from that of an earlier start of the worker.
    instance: u64,
    /// Devices with exclusive use, by their names in the placement.
    pub(super) devices: BTreeMap<String, Device>,
    /// The newest epoch that it has begun to load.
    pub(super) newest: u64,
    /// The newest epoch whose replicas are loaded, and which is in place once their subscriptions are active.
    pub(super) loaded: u64,
    /// The epochs that must stay.
    pub(super) retention: Retention,
    /// Whether it is shutting down.
    pub(super) leaving: bool,
    _guard: TaskGuard,
}

/// Aligns the replicas with the plans.
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

/// The subscriptions of an epoch's replicas are active.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct InPlace(pub(super) Readiness);

/// A model was loaded, or could not be.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Loaded {
    pub(super) replica: Replica,
    pub(super) executor: Result<Executor, String>,
}

/// An ingress has published its state.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct IngressStateReceived(pub(crate) IngressState);

/// Replicas that take no more requests.
pub struct Draining(Vec<DrainingReplica>);

/// One replica that takes no more requests.
struct DrainingReplica {
    /// Each is watched by subscriptions of the replica until they have ended.
    stops: Vec<watch::Sender<bool>>,
    permits: Arc<Semaphore>,
    capacity: usize,
}

impl Draining {
    /// Returns whether their subscriptions have ended and every request that they took has been answered.
    pub fn done(&self) -> bool {
        self.0.iter().all(|one| {
            one.stops.iter().all(watch::Sender::is_closed) && one.permits.available_permits() == one.capacity
        })
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
    pub fn new(
        config: WorkerConfig,
        shared: ShardContext,
        loader: Loader,
    ) -> (Self, watch::Receiver<Readiness>) {
        let (readiness, watch) = watch::channel(Readiness::default());
        let max_budget_us = u64::try_from(config.max_budget.as_micros()).unwrap_or(u64::MAX);
        let worker = Self {
            config,
            _guard: shared.dispatcher.supervisor().guard("worker"),
            shards: vec![shared.clone()],
            hosted: 0,
            shared,
            loader,
            replicas: BTreeMap::new(),
            loading: BTreeSet::new(),
            failed: BTreeMap::new(),
            load_retry: LoadRetry::default(),
            readiness,
            beat: watch::Sender::default(),
            subscribing: Vec::new(),
            beats: HeartbeatSequence::default(),
            announcements: Announcements::default(),
            instance: ids::unique(),
            devices: BTreeMap::new(),
            newest: 0,
            loaded: 0,
            retention: Retention::new(max_budget_us),
            leaving: false,
        };
        (worker, watch)
    }

    /// Spreads its replicas over these shards of the process, of which there is at least one.
    #[must_use]
    pub(crate) fn on_shards(mut self, shards: Vec<ShardContext>) -> Self {
        self.shards = shards;
        self
    }

    /// Returns the shard of the next replica: each in turn.
    pub(super) fn next_shard(&mut self) -> ShardContext {
        let shard = self.hosted.checked_rem(self.shards.len()).unwrap_or(0);
        self.hosted += 1;
        self.shards.get(shard).unwrap_or(&self.shared).clone()
    }

    /// Returns the number that its heartbeats carry, which no other start of the worker has.
    pub(crate) fn instance(&self) -> u64 {
        self.instance
    }

    /// Returns a channel of its newest heartbeat.
    pub fn heartbeats(&self) -> watch::Receiver<Arc<Heartbeat>> {
        self.beat.subscribe()
    }

    pub(super) fn beat(&mut self) {
        let connections = || self.shards.iter().map(|shard| shard.bus.connection());
        let disconnects = connections()
            .map(|connection| connection.counts().disconnects)
            .sum();
        // A heartbeat covers the connections on which requests arrive, not only its own.
        let is_sent = connections().all(ConnectionHealth::is_up);
        let mut replicas: Vec<_> = self.listed().map(Hosted::beat).collect();
        replicas.dedup_by(|one, other| one.id == other.id);
        let ready = self.readiness.borrow().clone();
        let models = if is_sent {
            self.announcements.next(self.replicas.values())
        } else {
            BTreeMap::new()
        };
        let beat = Heartbeat {
            models,
            actor: self.config.name.clone(),
            kind: "worker".to_owned(),
            sequence: self.beats.next(disconnects, is_sent),
            instance: self.instance,
            epoch: self.newest,
            in_place: ready.epoch,
            failed: ready.failed.into_keys().collect(),
            leaving: self.leaving,
            queue: replicas.iter().map(|replica| replica.queue).sum(),
            in_flight: replicas.iter().map(|replica| replica.in_flight).sum(),
            fan_outs: self.shared.metrics.fan_outs(),
            runs: self.shared.metrics.runs(),
            replicas,
        };
        if is_sent {
            // The name was validated when the worker was created.
            if let (Ok(subject), Ok(payload)) = (
                self.shared.dispatcher.app().beat(&self.config.name),
                beat.encode(),
            ) {
                self.shared.dispatcher.publish_control(subject, payload);
            }
        }
        self.beat.send_replace(Arc::new(beat));
    }
}

impl Actor for Worker {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.run_interval(Duration::from_micros(HEARTBEAT_PERIOD_US), |worker, ctx| {
            worker.beat();
            if worker.has_loads_to_retry() {
                worker.reconcile(ctx);
            } else {
                worker.release();
            }
        });
        ctx.notify(Reconcile);
    }
}

impl Handler<Reconcile> for Worker {
    type Result = ();

    fn handle(&mut self, _: Reconcile, ctx: &mut Context<Self>) {
        self.reconcile(ctx);
    }
}

impl Handler<InPlace> for Worker {
    type Result = ();

    fn handle(&mut self, InPlace(ready): InPlace, ctx: &mut Context<Self>) {
        self.retention
            .placed(ready.epoch, self.shared.dispatcher.clock().now());
        let failed = ready.failed.len();
        tracing::info!(epoch = ready.epoch, failed, "a plan is in place at this worker");
        self.readiness.send_replace(ready);
        // Announces it at once, instead of with the next period.
        self.beat();
        self.reconcile(ctx);
    }
}

impl Handler<Loaded> for Worker {
    type Result = ();

    fn handle(&mut self, Loaded { replica, executor }: Loaded, ctx: &mut Context<Self>) {
        self.loading.remove(&replica);
        if self.leaving {
            if let Ok(mut executor) = executor {
                model_thread::end(&mut executor);
            }
            return;
        }
        match executor {
            Ok(executor) => {
                if self.failed.remove(&replica).is_some() {
                    // The epoch is reported again, with one failure less.
                    self.loaded = 0;
                }
                self.host(replica, executor);
            }
            Err(reason) => {
                tracing::error!(
                    replica = replica.id,
                    variant = replica.variant,
                    reason,
                    "loading a replica failed"
                );
                let before = self.failed.get(&replica).map_or(0, |failed| failed.failures);
                let failures = before.saturating_add(1);
                let now = self.shared.dispatcher.clock().now();
                let failed = FailedLoad {
                    reason,
                    failures,
                    retry_at: Some(now.saturating_add(self.load_retry.pause_after(failures))),
                };
                self.failed.insert(replica, failed);
            }
        }
        self.reconcile(ctx);
    }
}

impl Handler<IngressStateReceived> for Worker {
    type Result = ();

    fn handle(&mut self, IngressStateReceived(state): IngressStateReceived, ctx: &mut Context<Self>) {
        let now = self.shared.dispatcher.clock().now();
        let admitted = |retention: &Retention| (retention.admitted(), retention.admitted_everywhere());
        let before = admitted(&self.retention);
        self.retention
            .record(&state.ingress, state.admits, state.oldest, state.gone, now);
        if admitted(&self.retention) == before {
            self.release();
        } else {
            self.reconcile(ctx);
            // What it lists may have changed.
            self.beat();
        }
    }
}

impl Handler<AnnounceLeave> for Worker {
    type Result = Vec<String>;

    fn handle(&mut self, _: AnnounceLeave, _: &mut Context<Self>) -> Vec<String> {
        self.leaving = true;
        self.beat();
        let mut ids: Vec<String> = self.replicas.keys().map(|replica| replica.id.clone()).collect();
        ids.dedup();
        ids
    }
}

impl Handler<Leave> for Worker {
    type Result = Draining;

    fn handle(&mut self, _: Leave, _: &mut Context<Self>) -> Draining {
        let draining = self.replicas.values().map(|hosted| {
            self.shared.dispatcher.unregister_replica(&hosted.local);
            DrainingReplica {
                stops: hosted.end_subscriptions(),
                permits: Arc::clone(&hosted.local.permits),
                capacity: hosted.local.capacity,
            }
        });
        Draining(draining.collect())
    }
}

impl Handler<Left> for Worker {
    type Result = ();

    fn handle(&mut self, _: Left, _: &mut Context<Self>) {
        self.replicas.clear();
        self.beat();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};

    use kaskade_models::{Inputs, ModelError, Outputs};
    use kaskade_policy::plan::Plan;

    use super::*;
    use crate::actor::{Arbiter, System};
    use crate::bus::{Bus, BusConfig};
    use crate::clock::Clock;
    use crate::dispatch::dispatcher::Dispatcher;
    use crate::plan::versions::PlanVersions;
    use crate::subjects::App;

    const APP: &str = "worker";

    /// Waits, before it leaves memory, until it may; says whether it might.
    struct Lingering {
        may_go: mpsc::Receiver<()>,
        went: mpsc::Sender<bool>,
    }

    impl Model for Lingering {
        fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            Vec::new()
        }
    }

    impl Drop for Lingering {
        fn drop(&mut self) {
            let may_go = self.may_go.recv_timeout(Duration::from_secs(20)).is_ok();
            self.went.send(may_go).unwrap();
        }
    }

    fn shared(bus: Bus) -> ShardContext {
        ShardContext {
            arbiter: Arbiter::current(),
            plans: PlanVersions::new(APP),
            dispatcher: Dispatcher::new(&bus, App::new(APP).unwrap(), Clock::start()),
            metrics: Arc::default(),
            bus,
        }
    }

    fn config() -> WorkerConfig {
        WorkerConfig {
            name: "w".to_owned(),
            queue_capacity: 1,
            ..WorkerConfig::default()
        }
    }

    struct Silent;

    impl Model for Silent {
        fn run(&mut self, _: &[Inputs]) -> Vec<Result<Outputs, ModelError>> {
            Vec::new()
        }
    }

    /// It was unloaded after two minutes, under requests with a larger budget.
    #[test]
    fn a_past_epoch_is_kept_for_the_largest_budget() {
        System::new().block_on(async {
            const MINUTE: u64 = 60_000_000;
            let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
            let loader = |_: &Replica| Err("none".to_owned());
            let config = WorkerConfig {
                max_budget: Duration::from_hours(1),
                ..config()
            };
            let (mut worker, _readiness) = Worker::new(config, shared(bus), Arc::new(loader));
            worker.retention.placed(1, 0);
            worker.retention.placed(2, 0);
            assert!(worker.retention.keeps(2, 60 * MINUTE - 1).contains(&1));
            assert!(!worker.retention.keeps(2, 60 * MINUTE).contains(&1));
        });
    }

    /// It was missing until the next plan.
    #[test]
    fn a_replica_that_could_not_be_loaded_is_loaded_again_under_the_same_plan() {
        System::new().block_on(async {
            let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
            let shared = shared(bus);
            let plan = Plan::cascade(APP).stage("only", "v").worker("w");
            shared.plans.adopt(1, plan.build().unwrap()).unwrap();
            let attempts = AtomicU32::new(0);
            let (let_load, may_load) = mpsc::channel();
            let may_load = Mutex::new(may_load);
            let loader = move |_: &Replica| {
                if attempts.fetch_add(1, Ordering::Relaxed) < 2 {
                    return Err("no memory".to_owned());
                }
                may_load.lock().unwrap().recv().unwrap();
                Ok(Box::new(Silent) as Box<dyn Model>)
            };
            let (mut worker, mut readiness) = Worker::new(config(), shared, Arc::new(loader));
            worker.load_retry = LoadRetry {
                pause_us: 0,
                max_pause_us: 0,
            };
            let mut beats = worker.heartbeats();
            let worker = worker.start();
            let failed = readiness
                .wait_for(|ready| ready.epoch == 1)
                .await
                .unwrap()
                .failed
                .clone();
            assert_eq!(failed.len(), 1, "the epoch does not wait for it");
            let_load.send(()).unwrap();
            let whole = |ready: &Readiness| ready.epoch == 1 && ready.failed.is_empty();
            readiness.wait_for(whole).await.unwrap();
            let beat = beats.wait_for(|beat| !beat.replicas.is_empty()).await.unwrap();
            assert!(beat.failed.is_empty());
            drop(worker);
        });
    }

    #[test]
    fn a_model_that_was_loaded_in_vain_leaves_memory_beside_the_actors() {
        System::new().block_on(async {
            let bus = Bus::connect(BusConfig::new(APP)).await.unwrap();
            let loader = |_: &Replica| Err("none".to_owned());
            let (worker, _readiness) = Worker::new(config(), shared(bus), Arc::new(loader));
            let worker = worker.start();
            worker.send(AnnounceLeave).await.unwrap();
            let ((let_go, may_go), (went, gone)) = (mpsc::channel(), mpsc::channel());
            let model = Lingering { may_go, went };
            let load = move || Ok::<_, String>(Box::new(model) as Box<dyn Model>);
            worker.do_send(Loaded {
                replica: Replica {
                    id: "r".to_owned(),
                    variant: "v".to_owned(),
                    worker: "w".to_owned(),
                    device: "cpu".to_owned(),
                    partition: None,
                    checkpoint: None,
                },
                executor: Executor::spawn("r", load).map_err(|error| error.to_string()),
            });
            worker.send(AnnounceLeave).await.unwrap();
            let_go.send(()).unwrap();
            assert!(gone.recv().unwrap(), "the worker waited for the model");
        });
    }
}
