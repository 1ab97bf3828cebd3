//! A node: the actors of one process, assembled on one actix system.

pub mod attach;
mod first_plan;
mod follow;
mod leaving;
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
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::Instant,
};

use crate::{
    bus::{Bus, BusConfig, BusError, Link},
    clock::Clock,
    control::epoch_gate,
    control::failure_detector::FailureDetector,
    control::heartbeats::Heartbeats,
    control::ingress_states,
    control::planner::{Planner, PlannerConfig},
    control::shifter::Shifter,
    dispatch::dispatcher::Dispatcher,
    ingress::durable::{self, DurableError, DurableIntake},
    ingress::{self, FailInFlight, Identity, Ingress, IngressConfig, StatePublisher},
    metrics::Metrics,
    ops::discovery::{self, Announcement},
    ops::health::{Health, HealthParts, IngressHealth, WorkerHealth},
    ops::meter::{Meter, ReadEnergy},
    plan::store::{self, PlanStore, StoreError},
    plan::versions::{AdoptError, PlanVersions},
    stage::hosting::Shared,
    stage::worker::{
        AnnounceLeave, HeardIngress, Leave, Left, Loader, Readiness, Reconcile, Worker, WorkerConfig,
    },
    subjects::{App, SubjectError},
    wire::{EnergyReport, TokenKey},
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
    /// A core task ended while the node ran; the node ends too.
    #[error("the task `{task}` of the node ended unexpectedly, so the node has ended")]
    Ended {
        /// The task.
        task: &'static str,
    },
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

    /// Waits until a core task of the node ends while it runs: the node then ends by itself, and so should the process.
    pub async fn failure(&self) -> NodeError {
        let task = self.dispatcher.supervisor().failure().await;
        NodeError::Ended { task }
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
    /// Takes requests until it has ended.
    taking: JoinHandle<()>,
    announced: Announcement,
    state: StatePublisher,
}

impl RunningIngress {
    /// Returns whether no further request is taken and every accepted request has its reply.
    fn is_idle(&self) -> bool {
        self.taking.is_finished()
            && self.permits.available_permits() == self.capacity
            && self.durable_settled()
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
    let bus = Bus::connect_with_control(config.bus).await?;
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

    let (worker, worker_health) = match config.worker {
        Some(worker) => {
            let alone = config.ingress.is_none();
            let (worker, health) = host(worker, alone, &bus, &plans, &dispatcher, &metrics).await?;
            (Some(worker), Some(health))
        }
        None => (None, None),
    };
    let mut heartbeats = Heartbeats::default();
    let ingress = match config.ingress {
        Some(limits) => {
            let shared = Shared {
                bus: bus.clone(),
                plans: plans.clone(),
                dispatcher: dispatcher.clone(),
                metrics: Arc::clone(&metrics),
            };
            Some(start_ingress(limits, shared, &mut heartbeats, closed).await?)
        }
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
    let seen = ingress.as_ref().map(|ingress| IngressHealth {
        permits: Arc::clone(&ingress.permits),
        capacity: ingress.capacity,
    });
    let followed = follow::Followed::new();
    let health = Health::new(
        &bus,
        (&app, dispatcher.supervisor()),
        plans.clone(),
        Arc::clone(&metrics),
        stopped,
        HealthParts {
            ingress: seen,
            worker: worker_health,
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
    shared: Shared,
    heartbeats: &mut Heartbeats,
    closed: watch::Receiver<bool>,
) -> Result<RunningIngress, NodeError> {
    let (bus, plans) = (&shared.bus, &shared.plans);
    let (dispatcher, metrics) = (&shared.dispatcher, &shared.metrics);
    let id = discovery::instance_id();
    let key = TokenKey::random().map_err(|error| NodeError::Thread(error.to_string()))?;
    let ingress = Ingress::new(
        &id,
        key.clone(),
        limits.clone(),
        plans.clone(),
        dispatcher.clone(),
        Arc::clone(metrics),
        bus.max_payload(),
    );
    let epochs = ingress.epochs();
    let ingress = ingress.start();
    let intake = ingress::open(
        bus,
        dispatcher,
        &ingress,
        Identity { id: id.clone(), key },
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
        intake.bytes,
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
    shifter.listen(bus, heartbeats).await?;
    let detector = FailureDetector::new(
        bus,
        dispatcher,
        ingress.clone().recipient(),
        ingress.clone().recipient(),
    );
    heartbeats.detect(detector);
    epoch_gate::watch(heartbeats, dispatcher, plans);
    let state = StatePublisher::start(&id, dispatcher, plans, epochs)?;
    let announced = discovery::announce(bus, dispatcher.app(), &id, metrics.clone()).await?;
    Ok(RunningIngress {
        address: ingress,
        permits: intake.permits,
        taking: intake.taking,
        capacity: limits.max_in_flight,
        durable,
        announced,
        state,
    })
}

/// Starts the worker, `alone` if its process has no ingress, and waits until it has loaded its replicas of the first plan.
async fn host(
    (config, loader): (WorkerConfig, Loader),
    alone: bool,
    bus: &Bus,
    plans: &PlanVersions,
    dispatcher: &Dispatcher,
    metrics: &Arc<Metrics>,
) -> Result<(Addr<Worker>, WorkerHealth), NodeError> {
    let queue_capacity = config.queue_capacity;
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
    let health = WorkerHealth {
        readiness: readiness.clone(),
        beat: worker.heartbeats(),
        queue_capacity,
    };
    let worker = worker.start();
    let listener = worker.clone();
    let heard = move |state| listener.do_send(HeardIngress(state));
    // With an ingress in the same process, the dispatcher knows the heartbeats themselves.
    ingress_states::follow(bus, dispatcher, alone, heard).await?;
    ready(plans, readiness).await?;
    Ok((worker, health))
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

impl Parts {
    /// Follows plans and gears until it is stopped, then drains.
    async fn serve(self, mut stopped: watch::Receiver<Option<Duration>>) {
        let supervisor = self.dispatcher.supervisor().clone();
        let (store, plans, link) = (
            Arc::clone(&self.store),
            self.plans.clone(),
            self.followed.store.clone(),
        );
        let follow_store = supervisor.spawn_again("watch of the plan store", follow::OPEN_AGAIN, move || {
            follow::store(Arc::clone(&store), plans.clone(), link.clone())
        });
        let (bus, dispatcher, link) = (
            self.bus.clone(),
            self.dispatcher.clone(),
            self.followed.gears.clone(),
        );
        let (plans, metrics) = (self.plans.clone(), Arc::clone(&self.metrics));
        let follow_gears = supervisor.spawn_again("subscription to gears", follow::OPEN_AGAIN, move || {
            follow::gears(
                bus.clone(),
                dispatcher.clone(),
                plans.clone(),
                Arc::clone(&metrics),
                link.clone(),
            )
        });
        let follow_book = self.worker.clone().map(|worker| {
            let mut changes = self.plans.changes();
            supervisor.spawn("plans of the worker", async move {
                while changes.next().await {
                    worker.do_send(Reconcile);
                }
            })
        });
        let mut link = self.bus.connection().link();
        let grace = tokio::select! {
            grace = stopped.wait_for(Option::is_some) => grace.map_or(Duration::ZERO, |grace| grace.unwrap_or_default()),
            task = supervisor.failure() => {
                tracing::error!(task, "a core task ended unexpectedly; the node ends");
                AFTER_FAILURE
            }
            _ = link.wait_for(|link| *link == Link::Closed) => {
                supervisor.report("connection to the broker");
                Duration::ZERO
            }
        };
        supervisor.stop();
        for task in [Some(follow_store), Some(follow_gears), follow_book]
            .into_iter()
            .flatten()
        {
            task.abort();
        }
        self.drain(grace).await;
    }

    async fn drain(self, grace: Duration) {
        let end = Instant::now() + grace;
        self.close.send_replace(true);
        if let Some(ingress) = &self.ingress {
            ingress.announced.withdraw();
            until(end, || ingress.is_idle()).await;
        }
        if let Some(worker) = &self.worker {
            self.leave(worker, end).await;
        }
        if let Some(ingress) = self.ingress {
            let _ = ingress.address.send(FailInFlight).await;
            // Returning a request to the stream takes a message; without it another ingress would wait for
            // `ack_wait`.
            until(Instant::now() + HANDING_BACK, || ingress.durable_settled()).await;
            ingress.state.close().await;
        }
        self.dispatcher.flush().await;
        self.bus.close().await;
    }

    /// Takes the worker's replicas out of service: others stop choosing them, the subscriptions end, what was accepted
    /// is answered, and a last heartbeat tells that they are gone.
    async fn leave(&self, worker: &Addr<Worker>, end: Instant) {
        let senders = leaving::Senders::listen(&self.bus, self.dispatcher.app()).await;
        let Ok(replicas) = worker.send(AnnounceLeave).await else {
            return;
        };
        match senders {
            Ok(senders) if !replicas.is_empty() => senders.heed(&replicas, end).await,
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "leaving without a word from the ingresses"),
        }
        if let Ok(draining) = worker.send(Leave).await {
            until(end, || draining.done()).await;
        }
        let _ = worker.send(Left).await;
    }
}

/// Time in which a node whose core task ended leaves, and refuses what it still receives.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Time for returning durable requests to the stream after the grace time.
const HANDING_BACK: Duration = Duration::from_secs(1);

/// Polls until the condition holds or the time is over.
async fn until(end: Instant, condition: impl Fn() -> bool) {
    const POLL: Duration = Duration::from_millis(2);
    while !condition() && Instant::now() < end {
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
#[path = "supervision_tests.rs"]
mod supervision_tests;
