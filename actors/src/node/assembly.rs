//! Starts the actors of a node in order.

use std::{
    num::NonZeroUsize,
    sync::{Arc, mpsc},
    time::Duration,
};

use tokio::sync::watch;

use super::{
    NodeConfig, NodeError, first_plan, plan_watch,
    running_ingress::{self, Common, RunningIngress, RunningIngresses},
    serving::Parts,
    shards::{self, Shards},
};
use crate::{
    actor::{Actor, Addr},
    audit_counts::AuditCounts,
    bus::Bus,
    clock::Clock,
    control::epoch_gate,
    control::failure_detector::FailureDetector,
    control::heartbeats::Heartbeats,
    control::ingress_states,
    control::planner::Planner,
    control::shifter::Shifter,
    dispatch::dispatcher::Dispatcher,
    ingress::{Capacity, ClassNames, IngressConfig, Ingresses, LocalIntake, local},
    metrics::Metrics,
    ops::discovery,
    ops::health::{Health, HealthParts, IngressHealth, WorkerHealth},
    ops::meter::Meter,
    plan::store,
    plan::versions::PlanVersions,
    stage::replica::ShardContext,
    stage::worker::{IngressStateReceived, Loader, Readiness, Worker, WorkerConfig},
    subjects::App,
};

/// Report of the actors' thread that the node serves.
pub(super) struct Up {
    pub(super) bus: Bus,
    pub(super) dispatcher: Dispatcher,
    pub(super) plans: PlanVersions,
    pub(super) metrics: Arc<Metrics>,
    pub(super) meter: Option<Addr<Meter>>,
    pub(super) health: Health,
    pub(super) ingresses: Vec<String>,
    pub(super) local: Option<LocalIntake>,
}

/// Starts a node, reports that it serves, and runs it until it is stopped.
pub(super) async fn run(
    config: NodeConfig,
    shards: NonZeroUsize,
    stopped: watch::Receiver<Option<Duration>>,
    up: mpsc::SyncSender<Result<Up, NodeError>>,
) {
    match assemble(config, shards, stopped.clone()).await {
        Ok((parts, report)) => {
            if up.send(Ok(report)).is_ok() {
                parts.serve(stopped).await;
            }
        }
        Err(error) => {
            let _ = up.send(Err(error));
        }
    }
}

async fn assemble(
    config: NodeConfig,
    shards: NonZeroUsize,
    stopped: watch::Receiver<Option<Duration>>,
) -> Result<(Parts, Up), NodeError> {
    let app = App::new(&config.app)?;
    let bus = Bus::connect_with_control(config.bus.clone()).await?;
    let store = if config.plan.is_some() {
        store::open(&bus, &app).await?
    } else {
        // Only a whole app writes to the store. The permissions of ingress-only and worker-only users do not allow
        // creating it.
        let is_whole = config.ingress.is_some() && config.worker.is_some();
        let is_user = config.bus.nkey.is_some() || config.bus.credentials.is_some();
        let creates = config.planner.is_some() || is_whole || !is_user;
        store::open_or_wait(&bus, &app, creates).await?
    };
    let plans = PlanVersions::new(&config.app);
    first_plan::adopt(&*store, &plans, config.plan).await?;
    let metrics = Arc::new(Metrics::default());
    let node = config
        .worker
        .as_ref()
        .map_or_else(discovery::instance_id, |(worker, _)| worker.name.clone());
    let dispatcher = Dispatcher::new(&bus, app.clone(), Clock::start());
    let shards = Shards::open(shards, &config.bus, &bus, &dispatcher, &plans, &metrics).await?;
    let (close, closed) = watch::channel(false);

    let (worker, instance, worker_health) = match config.worker {
        Some((mut worker, loader)) => {
            if let Some(ingress) = &config.ingress {
                worker.max_budget = worker.max_budget.max(ingress.max_budget);
            }
            let (worker, instance, health) =
                host((worker, loader), config.ingress.is_none(), &shards).await?;
            (Some(worker), Some(instance), Some(health))
        }
        None => (None, None, None),
    };
    let mut heartbeats = Heartbeats::default();
    let ingresses = match &config.ingress {
        Some(limits) => Some(start_ingresses(limits, &shards, &mut heartbeats, instance, closed).await?),
        None => None,
    };
    if let Some(planner) = config.planner {
        let planner = Planner::new(planner, Arc::clone(&store), plans.clone(), dispatcher.clone());
        planner.listen(&bus, &mut heartbeats).await?;
    }
    heartbeats.start(&bus, &dispatcher, &plans).await?;
    let meter = config.power.map(|power| {
        let meter = Meter::new(&node, power, dispatcher.clone(), Arc::clone(&metrics));
        meter.start()
    });
    let followed = plan_watch::Followed::new();
    let health = Health::new(
        &bus,
        (&app, dispatcher.supervisor()),
        plans.clone(),
        Arc::clone(&metrics),
        stopped,
        HealthParts {
            shards: shards.health().await?,
            ingress: ingresses.as_ref().map(|ingresses| IngressHealth {
                permits: Arc::clone(&ingresses.capacity.permits),
                capacity: ingresses.max_in_flight,
            }),
            worker: worker_health,
            followed: followed.interruptions(),
        },
    );
    let running = ingresses.iter().flat_map(|ingresses| &ingresses.running);
    let up = Up {
        bus,
        dispatcher,
        plans: plans.clone(),
        metrics: Arc::clone(&metrics),
        meter,
        health,
        ingresses: running.map(|ingress| ingress.id.clone()).collect(),
        local: ingresses.as_ref().map(|ingresses| ingresses.local.clone()),
    };
    let parts = Parts {
        store,
        plans,
        metrics,
        ingresses,
        worker,
        followed,
        close,
        shards,
    };
    Ok((parts, up))
}

/// Starts one ingress per shard and their shared parts: shifter, failure detector and epoch gate. `worker` is the
/// instance of the worker in this process.
async fn start_ingresses(
    limits: &IngressConfig,
    shards: &Shards,
    heartbeats: &mut Heartbeats,
    worker: Option<u64>,
    closed: watch::Receiver<bool>,
) -> Result<RunningIngresses, NodeError> {
    let (capacity, ingresses) = (Capacity::of(limits), Ingresses::default());
    let audit_counts = Arc::<AuditCounts>::default();
    let class_names = ClassNames::default();
    let mut running: Vec<RunningIngress> = Vec::new();
    for shard in shards.shared() {
        let metrics = match shards.shared() {
            [_] => Arc::clone(&shard.metrics),
            _ => Arc::new(Metrics::of_shard(&shard.metrics)),
        };
        let common = Common {
            capacity: capacity.clone(),
            ingresses: ingresses.clone(),
            audit_counts: Arc::clone(&audit_counts),
            class_names: class_names.clone(),
            closed: closed.clone(),
            takes_durable: running.is_empty(),
        };
        let (limits, shared) = (limits.clone(), shard.clone());
        let started = shard.run("start of an ingress", move || {
            running_ingress::start(limits, shared, metrics, common)
        });
        running.push(started.await.map_err(|_| shards::ended())??);
    }
    let (Some(shard), Some(first)) = (shards.shared().first(), running.first()) else {
        return Err(shards::ended());
    };
    let ShardContext {
        bus,
        plans,
        dispatcher,
        metrics,
        ..
    } = shard;
    // The shifter counts the arrivals at all ingresses of the process.
    let shifter = Shifter::new(
        &first.id,
        limits.shift,
        limits.load_drift,
        plans.clone(),
        dispatcher.clone(),
        Arc::clone(metrics),
        audit_counts,
    );
    shifter.listen(bus, heartbeats).await?;
    heartbeats.detect(FailureDetector::new(bus, dispatcher, &ingresses).with_local_worker(worker));
    epoch_gate::watch(heartbeats, dispatcher, plans);
    let planned = plans.clone();
    heartbeats.listen(move |beat| class_names.record(beat, |variant| planned.has_variant(variant)));
    let entries = running.iter().map(|ingress| local::Entry {
        ingress: ingress.address.clone(),
        metrics: Arc::clone(&ingress.metrics),
    });
    let local = LocalIntake::new(
        entries.collect(),
        capacity.clone(),
        plans.clone(),
        closed,
        bus.max_payload(),
    );
    Ok(RunningIngresses {
        running,
        local,
        capacity,
        max_in_flight: limits.max_in_flight,
    })
}

/// Starts the worker on the first shard and waits until it has loaded its replicas of the first plan. `alone` is set if
/// the process has no ingress. Returns the worker, its instance and its health.
async fn host(
    (config, loader): (WorkerConfig, Loader),
    alone: bool,
    shards: &Shards,
) -> Result<(Addr<Worker>, u64, WorkerHealth), NodeError> {
    let first = shards.shared().first().ok_or_else(shards::ended)?;
    let queue_capacity = config.queue_capacity;
    let (worker, readiness) = Worker::new(config, first.clone(), loader);
    let worker = worker.on_shards(shards.shared().to_vec());
    let instance = worker.instance();
    let health = WorkerHealth {
        readiness: readiness.clone(),
        beat: worker.heartbeats(),
        queue_capacity,
    };
    let worker = worker.start();
    let listener = worker.clone();
    let on_state = move |state| listener.do_send(IngressStateReceived(state));
    // An ingress in the same process updates the dispatcher from heartbeats directly.
    ingress_states::follow(&first.bus, &first.dispatcher, alone, on_state).await?;
    ready(&first.plans, readiness).await?;
    Ok((worker, instance, health))
}

/// Waits until the worker has loaded its replicas of the first plan.
async fn ready(plans: &PlanVersions, mut readiness: watch::Receiver<Readiness>) -> Result<(), NodeError> {
    let Some(adopted) = plans.newest() else {
        return Ok(());
    };
    let reached = readiness.wait_for(|ready| ready.epoch >= adopted.epoch).await;
    match reached.map(|ready| ready.clone()) {
        Ok(ready) if ready.failed.is_empty() => Ok(()),
        Ok(ready) => Err(NodeError::Replicas(ready)),
        Err(_) => Err(NodeError::Thread("the worker ended".to_owned())),
    }
}
