//! A node: the actors of one process, assembled on one actix system.

pub mod attach;
mod first_plan;
mod follow;
pub mod service;
pub mod stage;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use crate::actor::{self, Actor, Addr};
use kaskade_models::power::PowerMeter;
use kaskade_policy::plan::Plan;
use thiserror::Error;
use tokio::sync::{Semaphore, watch};

use crate::{
    bus::{Bus, BusConfig, BusError},
    clock::Clock,
    control::failure_detector,
    control::planner::{Planner, PlannerConfig},
    control::shifter::Shifter,
    dispatch::dispatcher::Dispatcher,
    ingress::durable::{self, DurableError, DurableIntake},
    ingress::{self, FailInFlight, Ingress, IngressConfig},
    metrics::Metrics,
    ops::discovery::{self, Announcement},
    ops::health::{Health, HealthParts, IngressHealth, WorkerHealth},
    ops::meter::{Meter, ReadEnergy},
    plan::store::{self, PlanStore, StoreError},
    plan::versions::{AdoptError, PlanVersions},
    stage::hosting::Shared,
    stage::worker::{Leave, Loader, Readiness, Reconcile, Worker, WorkerConfig},
    subjects::{App, SubjectError},
    wire::EnergyReport,
};

/// Configuration of a node.
pub struct NodeConfig {
    /// The app it serves.
    pub app: String,
    /// The broker.
    pub bus: BusConfig,
    /// The ingress, if the node has one.
    pub ingress: Option<IngressConfig>,
    /// The worker and its model loader, if the node has one.
    pub worker: Option<(WorkerConfig, Loader)>,
    /// The initial plan; `None` uses the plan store's.
    pub plan: Option<Plan>,
    /// The planner, if the node has one.
    pub planner: Option<PlannerConfig>,
    /// The power meter, if energy is to be metered.
    pub power: Option<PowerMeter>,
    /// How long a shutdown waits for requests in flight.
    pub grace: Duration,
}

/// Why a node did not start.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The app's name is not a valid subject token.
    #[error(transparent)]
    App(#[from] SubjectError),
    /// The broker is unreachable, too old, or failed.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The plan store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Durable requests cannot be accepted.
    #[error(transparent)]
    Durable(#[from] DurableError),
    /// The plan was refused.
    #[error(transparent)]
    Plan(#[from] AdoptError),
    /// Replicas could not be loaded.
    #[error("{} of the worker's replicas failed to load: {}", .0.failed.len(), reasons(.0))]
    Replicas(Readiness),
    /// The thread of the actors did not start, or died.
    #[error("the actors' thread failed: {0}")]
    Thread(String),
}

fn reasons(readiness: &Readiness) -> String {
    let reasons = readiness
        .failed
        .iter()
        .map(|(replica, reason)| format!("`{replica}`: {reason}"));
    reasons.collect::<Vec<_>>().join("; ")
}

/// A running node. Dropping it stops it without a grace time; [`Node::stop`] drains it first.
pub struct Node {
    bus: Bus,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
    meter: Option<Addr<Meter>>,
    health: Health,
    dispatcher: Dispatcher,
    stop: watch::Sender<Option<Duration>>,
    thread: Option<thread::JoinHandle<()>>,
    grace: Duration,
}

/// What the actors' thread reports once it serves.
struct Up {
    bus: Bus,
    dispatcher: Dispatcher,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
    meter: Option<Addr<Meter>>,
    health: Health,
}

impl Node {
    /// Starts the actors on a thread of their own and returns once they serve: replicas loaded, subscriptions active.
    ///
    /// # Errors
    /// [`NodeError`]; nothing is left running.
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        let (stop, stopped) = watch::channel(None);
        let (up, started) = mpsc::sync_channel(1);
        let grace = config.grace;
        let thread = thread::Builder::new()
            .name(format!("kaskade-{}", config.app))
            .spawn(move || actor::System::new().block_on(run(config, stopped, up)))
            .map_err(|error| NodeError::Thread(error.to_string()))?;
        let up = match started.recv() {
            Ok(up) => up?,
            Err(_) => return Err(NodeError::Thread("it ended before the node was ready".to_owned())),
        };
        let Up {
            bus,
            dispatcher,
            plans,
            metrics,
            meter,
            health,
        } = up;
        Ok(Self {
            bus,
            plans,
            metrics,
            meter,
            health,
            dispatcher,
            stop,
            thread: Some(thread),
            grace,
        })
    }

    /// Returns the connection to the broker.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Returns the plans that the node knows.
    pub fn plans(&self) -> &PlanVersions {
        &self.plans
    }

    /// Returns the node's counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the node's health, for probes and metrics.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the energy used so far; `None` if the node has no meter or has stopped.
    pub async fn energy(&self) -> Option<EnergyReport> {
        self.meter.as_ref()?.send(ReadEnergy).await.ok()
    }

    /// Returns the dispatcher of the node's actors, for custom actors in the same process.
    pub fn dispatcher(&self) -> &Dispatcher {
        &self.dispatcher
    }

    /// Drains within the grace time and stops: takes no new requests, answers those in flight.
    pub fn stop(mut self) {
        self.finish(self.grace);
    }

    fn finish(&mut self, grace: Duration) {
        self.stop.send_replace(Some(grace));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
    }
}

async fn run(
    config: NodeConfig,
    stopped: watch::Receiver<Option<Duration>>,
    up: mpsc::SyncSender<Result<Up, NodeError>>,
) {
    match assemble(config, stopped.clone()).await {
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

/// A running ingress.
struct RunningIngress {
    address: Addr<Ingress>,
    /// Permits for requests in flight, and their total number.
    permits: Arc<Semaphore>,
    capacity: usize,
    /// The same for durable requests.
    durable: Option<DurableIntake>,
    announced: Announcement,
}

impl RunningIngress {
    /// Returns whether every accepted request has its reply.
    fn is_idle(&self) -> bool {
        self.permits.available_permits() == self.capacity && self.durable_settled()
    }

    /// Returns whether every durable request has been settled or returned to the stream.
    fn durable_settled(&self) -> bool {
        let durable = self.durable.as_ref();
        durable.is_none_or(|durable| durable.permits.available_permits() == durable.capacity)
    }
}

/// The actors of a node.
struct Parts {
    bus: Bus,
    store: Arc<dyn PlanStore>,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
    dispatcher: Dispatcher,
    ingress: Option<RunningIngress>,
    worker: Option<Addr<Worker>>,
    followed: follow::Followed,
    close: watch::Sender<bool>,
}

async fn assemble(
    config: NodeConfig,
    stopped: watch::Receiver<Option<Duration>>,
) -> Result<(Parts, Up), NodeError> {
    let app = App::new(&config.app)?;
    let bus = Bus::connect(config.bus).await?;
    let store = store::open(&bus, &app).await?;
    let plans = PlanVersions::new(&config.app);
    first_plan::adopt(&*store, &plans, config.plan).await?;
    let metrics = Arc::new(Metrics::default());
    let node = config
        .worker
        .as_ref()
        .map_or_else(discovery::instance_id, |(worker, _)| worker.name.clone());
    let dispatcher = Dispatcher::new(&bus, app.clone(), Clock::start());
    let (close, closed) = watch::channel(false);

    let (worker, worker_vitals) = match config.worker {
        Some(worker) => {
            let (worker, health) = host(worker, &bus, &plans, &dispatcher, &metrics).await?;
            (Some(worker), Some(health))
        }
        None => (None, None),
    };
    let ingress = match config.ingress {
        Some(limits) => Some(start_ingress(limits, &bus, &plans, &dispatcher, &metrics, closed).await?),
        None => None,
    };
    if let Some(planner) = config.planner {
        let planner = Planner::new(planner, Arc::clone(&store), plans.clone(), dispatcher.clone());
        planner.listen(&bus).await?;
    }
    let meter = config.power.map(|power| {
        let meter = Meter::new(&node, power, dispatcher.clone(), Arc::clone(&metrics));
        meter.start()
    });
    failure_detector::watch(
        &bus,
        &dispatcher,
        ingress
            .as_ref()
            .map(|ingress| ingress.address.clone().recipient()),
    )
    .await?;
    let seen = ingress.as_ref().map(|ingress| IngressHealth {
        permits: Arc::clone(&ingress.permits),
        capacity: ingress.capacity,
    });
    let followed = follow::Followed::new();
    let health = Health::new(
        &bus,
        &app,
        plans.clone(),
        Arc::clone(&metrics),
        stopped,
        HealthParts {
            ingress: seen,
            worker: worker_vitals,
            followed: followed.watched(),
        },
    );
    let up = Up {
        bus: bus.clone(),
        dispatcher: dispatcher.clone(),
        plans: plans.clone(),
        metrics: Arc::clone(&metrics),
        meter,
        health,
    };
    Ok((
        Parts {
            bus,
            store,
            plans,
            metrics,
            dispatcher,
            ingress,
            worker,
            followed,
            close,
        },
        up,
    ))
}

/// Starts the ingress, its subscriptions and its shifter, and announces it.
async fn start_ingress(
    limits: IngressConfig,
    bus: &Bus,
    plans: &PlanVersions,
    dispatcher: &Dispatcher,
    metrics: &Arc<Metrics>,
    closed: watch::Receiver<bool>,
) -> Result<RunningIngress, NodeError> {
    let id = discovery::instance_id();
    let ingress = Ingress::new(
        &id,
        limits.clone(),
        plans.clone(),
        dispatcher.clone(),
        Arc::clone(metrics),
        bus.max_payload(),
    )
    .start();
    let intake = ingress::open(
        bus,
        dispatcher,
        &ingress,
        &id,
        &limits,
        metrics.clone(),
        closed.clone(),
    )
    .await?;
    let submitted = ingress.clone().recipient();
    let durable = durable::open(
        bus,
        dispatcher,
        submitted,
        limits.durable,
        metrics.clone(),
        closed,
    )
    .await?;
    let shifter = Shifter::new(
        &id,
        limits.shift,
        limits.drift,
        plans.clone(),
        dispatcher.clone(),
        Arc::clone(metrics),
    );
    shifter.listen(bus).await?;
    let announced = discovery::announce(bus, dispatcher.app(), &id, metrics.clone()).await?;
    Ok(RunningIngress {
        address: ingress,
        permits: intake.permits,
        capacity: limits.max_in_flight,
        durable,
        announced,
    })
}

/// Starts the worker, and waits until it has loaded its replicas of the first plan.
async fn host(
    (config, loader): (WorkerConfig, Loader),
    bus: &Bus,
    plans: &PlanVersions,
    dispatcher: &Dispatcher,
    metrics: &Arc<Metrics>,
) -> Result<(Addr<Worker>, WorkerHealth), NodeError> {
    let (name, capacity) = (config.name.clone(), config.queue_capacity);
    let (worker, readiness) = Worker::new(
        config,
        Shared {
            bus: bus.clone(),
            plans: plans.clone(),
            dispatcher: dispatcher.clone(),
            metrics: Arc::clone(metrics),
        },
        loader,
    );
    let health = WorkerHealth::listen(bus, dispatcher.app(), &name, capacity, readiness.clone()).await?;
    let worker = worker.start();
    ready(plans, readiness).await?;
    Ok((worker, health))
}

/// Waits until the worker has loaded its replicas of the first plan.
async fn ready(plans: &PlanVersions, mut readiness: watch::Receiver<Readiness>) -> Result<(), NodeError> {
    let Some((adopted, _)) = plans.current() else {
        return Ok(());
    };
    let reached = readiness.wait_for(|ready| ready.epoch >= adopted.epoch).await;
    match reached.map(|ready| ready.clone()) {
        Ok(ready) if ready.failed.is_empty() => Ok(()),
        Ok(ready) => Err(NodeError::Replicas(ready)),
        Err(_) => Err(NodeError::Thread("the worker ended".to_owned())),
    }
}

impl Parts {
    /// Follows plans and gears until it is stopped, then drains.
    async fn serve(self, mut stopped: watch::Receiver<Option<Duration>>) {
        let follow_store = actor::spawn(follow::store(
            Arc::clone(&self.store),
            self.plans.clone(),
            self.followed.store.clone(),
        ));
        let follow_gears = actor::spawn(follow::gears(
            self.bus.clone(),
            self.dispatcher.clone(),
            self.plans.clone(),
            Arc::clone(&self.metrics),
            self.followed.gears.clone(),
        ));
        let follow_book = self.worker.clone().map(|worker| {
            let mut changes = self.plans.changes();
            actor::spawn(async move {
                while changes.next().await {
                    worker.do_send(Reconcile);
                }
            })
        });
        let grace = match stopped.wait_for(Option::is_some).await {
            Ok(grace) => grace.unwrap_or_default(),
            Err(_) => Duration::ZERO,
        };
        for task in [Some(follow_store), Some(follow_gears), follow_book]
            .into_iter()
            .flatten()
        {
            task.abort();
        }
        self.drain(grace).await;
    }

    async fn drain(self, grace: Duration) {
        let end = tokio::time::Instant::now() + grace;
        self.close.send_replace(true);
        if let Some(ingress) = &self.ingress {
            ingress.announced.withdraw();
            until(end, || ingress.is_idle()).await;
        }
        if let Some(worker) = &self.worker
            && let Ok(draining) = worker.send(Leave).await
        {
            until(end, || draining.done()).await;
        }
        if let Some(ingress) = &self.ingress {
            let _ = ingress.address.send(FailInFlight).await;
            // Returning a request to the stream takes a message; without it another ingress would wait for
            // `ack_wait`.
            until(tokio::time::Instant::now() + HANDING_BACK, || {
                ingress.durable_settled()
            })
            .await;
        }
        self.dispatcher.flush().await;
        self.bus.close().await;
    }
}

/// Time for returning durable requests to the stream after the grace time.
const HANDING_BACK: Duration = Duration::from_secs(1);

/// Polls until the condition holds or the time is over.
async fn until(end: tokio::time::Instant, condition: impl Fn() -> bool) {
    const POLL: Duration = Duration::from_millis(2);
    while !condition() && tokio::time::Instant::now() < end {
        tokio::time::sleep(POLL).await;
    }
}
