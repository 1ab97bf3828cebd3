//! The worker: owns devices and runs the replicas that the placement gives it.
//!
//! When a plan moves replicas, the new ones are loaded before the old ones leave, and a leaving replica first answers
//! everything it has taken.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message};
use async_nats::Subject;
use futures::{StreamExt, future::join_all};
use kaskade_models::{Executor, Model};
use kaskade_plans::{
    liveness::BEAT_PERIOD_US,
    plan::{Batching, Replica, Sharing},
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use crate::{
    bus::Bus,
    dispatch::dispatcher::Exchange,
    dispatch::exits::Router,
    dispatch::local::LocalReplica,
    dispatch::subscribe::{self, Seat},
    metrics::Metrics,
    plan::versions::{Adopted, PlanBook},
    stage::batcher::{Batcher, BatcherParts, Rebatch},
    stage::generator::{Abandon, Generator, GeneratorParts},
    stage::lease::Device,
    subjects::{self, SubjectError},
    wire::{Abandoned, Beat, Message as _, ReplicaBeat},
};

/// Makes the model of a replica. Called on the thread that will run it; the error is shown to the operator.
pub type Loader = Arc<dyn Fn(&Replica) -> Result<Box<dyn Model>, String> + Send + Sync>;

/// What a worker is told at its start.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Its name, as placements use it.
    pub name: String,
    /// Requests that may wait in each replica's queue.
    pub queue_capacity: usize,
}

/// How far a worker has come with the placement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Epoch whose placement is in place; 0 before the first.
    pub epoch: u64,
    /// Replicas that could not be loaded, with the reason.
    pub failed: BTreeMap<String, String>,
}

/// The worker actor.
pub struct Worker {
    config: WorkerConfig,
    bus: Bus,
    book: PlanBook,
    exchange: Exchange,
    metrics: Arc<Metrics>,
    loader: Loader,
    replicas: BTreeMap<String, Hosted>,
    loading: BTreeSet<String>,
    failed: BTreeMap<String, String>,
    readiness: watch::Sender<Readiness>,
    subscribing: Vec<JoinHandle<()>>,
    beats: u64,
    /// Times that the connection was lost, as far as it has been told.
    disconnects: u64,
    /// By their names in the placement, those whose replicas take turns.
    devices: BTreeMap<String, Device>,
    /// The epoch whose placement is in place; 0 before the first.
    in_place: u64,
}

/// Who answers a replica's requests.
#[derive(Clone)]
enum Server {
    /// Batch by batch.
    Batcher(Addr<Batcher>),
    /// Token by token.
    Generator(Addr<Generator>),
}

/// A replica that this worker runs.
struct Hosted {
    replica: Replica,
    local: LocalReplica,
    server: Server,
    stages: BTreeSet<String>,
    stop: watch::Sender<bool>,
    capacity: usize,
}

/// Brings the replicas in line with the running plan.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Reconcile;

/// Takes every replica out of service; answered with what is needed to wait until they are empty.
#[derive(Message)]
#[rtype(result = "Draining")]
pub struct Leave;

/// Beats out of turn: who has just begun to serve is known at once, and not a period later.
#[derive(Message)]
#[rtype(result = "()")]
struct Announce;

#[derive(Message)]
#[rtype(result = "()")]
struct Loaded {
    replica: Replica,
    executor: Result<Executor, String>,
}

/// The queues of leaving replicas.
pub struct Draining(Vec<(Arc<Semaphore>, usize)>);

impl Draining {
    /// Whether every request that was taken has been answered.
    pub fn done(&self) -> bool {
        self.0
            .iter()
            .all(|(room, capacity)| room.available_permits() == *capacity)
    }
}

impl<A: Actor, M: Message<Result = Draining>> actix::dev::MessageResponse<A, M> for Draining {
    fn handle(self, _: &mut A::Context, sender: Option<actix::dev::OneshotSender<Draining>>) {
        if let Some(sender) = sender {
            let _ = sender.send(self);
        }
    }
}

impl Worker {
    /// A worker without replicas, and where to see how far it is.
    pub fn new(
        config: WorkerConfig,
        bus: Bus,
        book: PlanBook,
        exchange: Exchange,
        metrics: Arc<Metrics>,
        loader: Loader,
    ) -> (Self, watch::Receiver<Readiness>) {
        let (readiness, watch) = watch::channel(Readiness::default());
        let worker = Self {
            config,
            bus,
            book,
            exchange,
            metrics,
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
        };
        (worker, watch)
    }

    fn reconcile(&mut self, ctx: &mut Context<Self>) {
        let Some((adopted, gear)) = self.book.current() else {
            return;
        };
        if self.in_place == adopted.epoch {
            // The gear has shifted and nothing else: every model is loaded, every subject served.
            return self.rebatch(&adopted, gear);
        }
        let wanted: BTreeMap<&str, &Replica> = adopted
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
        // Everything new is loaded: now the old may leave.
        let leaving: Vec<String> = self
            .replicas
            .keys()
            .filter(|id| !wanted.contains_key(id.as_str()))
            .cloned()
            .collect();
        for id in leaving {
            self.retire(&id);
        }
        self.rebatch(&adopted, gear);
        self.serve_stages(&adopted, ctx.address());
        self.in_place = adopted.epoch;
    }

    fn rebatch(&mut self, adopted: &Adopted, gear: u32) {
        for hosted in self.replicas.values() {
            // A generator's batch changes with every step; there is no trigger to set.
            let Server::Batcher(batcher) = &hosted.server else {
                continue;
            };
            let device = (adopted.plan.sharing == Sharing::Exclusive).then(|| {
                let device = self.devices.entry(hosted.replica.device.clone());
                device.or_default().clone()
            });
            if let Some(batching) = adopted.batching(gear, &hosted.replica.variant) {
                batcher.do_send(Rebatch { batching, device });
            }
        }
    }

    fn load(&self, replica: Replica, ctx: &mut Context<Self>) {
        let (loader, worker) = (Arc::clone(&self.loader), ctx.address());
        actix::spawn(async move {
            let wanted = replica.clone();
            let executor = tokio::task::spawn_blocking(move || {
                Executor::spawn(&wanted.id.clone(), move || loader(&wanted))
                    .map_err(|error| error.to_string())
            });
            let executor = executor
                .await
                .unwrap_or_else(|_| Err("loading it panicked".to_owned()));
            worker.do_send(Loaded { replica, executor });
        });
    }

    fn host(&mut self, replica: Replica, executor: Executor, batching: Batching) {
        self.retire(&replica.id);
        let capacity = self.config.queue_capacity;
        let depth = Arc::new(AtomicUsize::new(0));
        let router = Router::new(&replica.variant, self.book.clone(), Arc::clone(&self.metrics)).start();
        let clock = self.exchange.clock();
        let (told, metrics) = (Arc::clone(&depth), Arc::clone(&self.metrics));
        let server = if executor.is_continuous() {
            let generator = Generator::new(GeneratorParts {
                replica: replica.id.clone(),
                variant: replica.variant.clone(),
                executor,
                router,
                book: self.book.clone(),
                clock,
                depth: told,
                metrics,
            });
            Server::Generator(generator.start())
        } else {
            let batcher = Batcher::new(BatcherParts {
                replica: replica.id.clone(),
                batching,
                capacity,
                executor,
                router,
                clock,
                depth: told,
                metrics,
            });
            Server::Batcher(batcher.start())
        };
        let local = LocalReplica {
            id: replica.id.clone(),
            mailbox: match &server {
                Server::Batcher(batcher) => batcher.clone().recipient(),
                Server::Generator(generator) => generator.clone().recipient(),
            },
            // Room for a full queue and the batch that runs.
            room: Arc::new(Semaphore::new(capacity + batching.max_batch as usize)),
            depth,
            max_batch: batching.max_batch,
        };
        let capacity = local.room.available_permits();
        let (stop, _) = watch::channel(false);
        if let Server::Generator(generator) = &server {
            self.hear_abandoned(generator.clone(), stop.subscribe());
        }
        let hosted = Hosted {
            local,
            server,
            stages: BTreeSet::new(),
            stop,
            capacity,
            replica,
        };
        self.bind(&hosted, self.exchange.app().replica(&hosted.replica.id), None);
        self.replicas.insert(hosted.replica.id.clone(), hosted);
    }

    /// Makes every replica serve every stage that the plan has for its variant, in any gear.
    fn serve_stages(&mut self, adopted: &Adopted, worker: Addr<Self>) {
        let mut replicas = std::mem::take(&mut self.replicas);
        for hosted in replicas.values_mut() {
            for stage in adopted.stages_of(&hosted.replica) {
                if hosted.stages.contains(&stage) {
                    continue;
                }
                self.bind(
                    hosted,
                    self.exchange.app().stage(&stage),
                    Some(subjects::STAGE_GROUP.to_owned()),
                );
                self.exchange.join_stage(&stage, hosted.local.clone());
                hosted.stages.insert(stage);
            }
        }
        self.replicas = replicas;
        let ready = Readiness {
            epoch: adopted.epoch,
            failed: self.failed.clone(),
        };
        let (bus, readiness) = (self.bus.clone(), self.readiness.clone());
        let subscribing = std::mem::take(&mut self.subscribing);
        actix::spawn(async move {
            join_all(subscribing).await;
            // Only a round trip proves that the subscriptions stand.
            let _ = bus.barrier().await;
            let _ = worker.send(Announce).await;
            readiness.send_replace(ready);
        });
    }

    fn bind(&mut self, hosted: &Hosted, subject: Result<Subject, SubjectError>, group: Option<String>) {
        // Replica and stage names are checked with the plan.
        let Ok(subject) = subject else { return };
        let (bus, exchange, stop) = (self.bus.clone(), self.exchange.clone(), hosted.stop.subscribe());
        let LocalReplica {
            id, mailbox, room, ..
        } = hosted.local.clone();
        let seat = Seat {
            replica: id,
            mailbox,
            room,
        };
        self.subscribing.push(actix::spawn(async move {
            let replica = seat.replica.clone();
            if let Err(error) = subscribe::bind(&bus, &exchange, subject, group, seat, stop).await {
                tracing::error!(%error, replica, "a replica could not subscribe");
            }
        }));
    }

    /// Tells a generator of the requests that nobody waits for any more, as long as it is hosted.
    fn hear_abandoned(&mut self, generator: Addr<Generator>, mut stop: watch::Receiver<bool>) {
        let (bus, subject) = (self.bus.clone(), self.exchange.app().abandon());
        self.subscribing.push(actix::spawn(async move {
            let mut abandoned = match bus.subscribe(subject, None).await {
                Ok(abandoned) => abandoned,
                Err(error) => return tracing::error!(%error, "cancellations are not heard"),
            };
            actix::spawn(async move {
                loop {
                    let message = tokio::select! {
                        message = abandoned.next() => message,
                        _ = stop.wait_for(|stop| *stop) => None,
                    };
                    let Some(message) = message else { return };
                    match Abandoned::decode(&message.payload) {
                        Ok(Abandoned { ingress, ids }) => generator.do_send(Abandon { ingress, ids }),
                        Err(error) => tracing::warn!(%error, "a cancellation could not be read"),
                    }
                }
            });
        }));
    }

    fn retire(&mut self, id: &str) {
        if let Some(hosted) = self.replicas.remove(id) {
            self.exchange.leave(id);
            hosted.stop.send_replace(true);
        }
    }

    fn beat(&mut self) {
        let disconnects = self.bus.health().counts().disconnects;
        if disconnects > std::mem::replace(&mut self.disconnects, disconnects) {
            // What was on its way here is gone, as if the process had started again; so it counts from the beginning again.
            self.beats = 0;
        }
        self.beats += 1;
        let replicas = self
            .replicas
            .values()
            .map(|hosted| ReplicaBeat {
                id: hosted.replica.id.clone(),
                variant: hosted.replica.variant.clone(),
                queue: count(hosted.local.depth.load(Ordering::Relaxed)),
                in_flight: count(
                    hosted
                        .capacity
                        .saturating_sub(hosted.local.room.available_permits()),
                ),
                ..ReplicaBeat::default()
            })
            .collect::<Vec<_>>();
        let epoch = self.book.current().map_or(0, |(adopted, _)| adopted.epoch);
        let beat = Beat {
            actor: self.config.name.clone(),
            kind: "worker".to_owned(),
            sequence: self.beats,
            epoch,
            queue: replicas.iter().map(|replica| replica.queue).sum(),
            in_flight: replicas.iter().map(|replica| replica.in_flight).sum(),
            forks: self.metrics.forks(),
            runs: self.metrics.runs(),
            replicas,
        };
        // The name was checked when the worker was made.
        if let (Ok(subject), Ok(payload)) = (self.exchange.app().beat(&self.config.name), beat.encode()) {
            self.exchange.publish(subject, None, None, payload);
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
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

impl Handler<Announce> for Worker {
    type Result = ();

    fn handle(&mut self, _: Announce, _: &mut Context<Self>) {
        self.beat();
    }
}

impl Handler<Loaded> for Worker {
    type Result = ();

    fn handle(&mut self, Loaded { replica, executor }: Loaded, ctx: &mut Context<Self>) {
        self.loading.remove(&replica.id);
        let batching = self
            .book
            .current()
            .and_then(|(adopted, gear)| adopted.batching(gear, &replica.variant));
        match executor {
            Ok(executor) => self.host(replica, executor, batching.unwrap_or_default()),
            Err(reason) => {
                tracing::error!(
                    replica = replica.id,
                    variant = replica.variant,
                    reason,
                    "a replica was not loaded"
                );
                self.failed.insert(replica.id, reason);
            }
        }
        self.reconcile(ctx);
    }
}

impl Handler<Leave> for Worker {
    type Result = Draining;

    fn handle(&mut self, _: Leave, _: &mut Context<Self>) -> Draining {
        let leaving: Vec<String> = self.replicas.keys().cloned().collect();
        let queues = self
            .replicas
            .values()
            .map(|hosted| (Arc::clone(&hosted.local.room), hosted.capacity));
        let draining = Draining(queues.collect());
        for id in leaving {
            self.retire(&id);
        }
        // Tells everybody at once, instead of after three missed beats.
        self.beat();
        draining
    }
}
