//! How a process fares: what its probes and its page of metrics tell ([`crate::ops::probes`]).
//!
//! Nothing here asks an actor that serves: a probe must not wait behind the work whose health it looks at. What is known is
//! read from channels and counters that the actors keep anyway, and the worker's queues from its own heartbeats.

use crate::actor;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::bus::{Bus, BusError, Link};
use crate::metrics::{Gauges, Metrics};
use crate::plan::versions::PlanVersions;
use crate::stage::worker::Readiness;
use crate::subjects::App;
use crate::wire::{Beat, Message as _};

/// How long the actors' thread may take to answer that it turns. It only moves messages: much less is usual.
const PATIENCE: Duration = Duration::from_secs(2);

/// Probes that may wait for the actors' thread at once; more are told that it does not turn.
const MAX_PENDING_PROBES: usize = 16;

/// Why a process does not live, or does not serve.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotReady {
    /// The thread of the actors does not answer.
    #[error("the actors' thread has not answered for {PATIENCE:?}; restart the process if that lasts")]
    Stuck,
    /// It was told to stop.
    #[error("draining: requests in flight are answered, no more are taken")]
    Draining,
    /// The broker cannot be reached.
    #[error("the broker at {url} cannot be reached; the connection is tried again by itself")]
    NoBroker {
        /// Where it was.
        url: String,
    },
    /// There is nothing to serve yet.
    #[error(
        "no plan yet: the plan store of app `{app}` is empty; start a planner, or serve with `--plan FILE` once"
    )]
    NoPlan {
        /// The app.
        app: String,
    },
    /// The models of the newest plan are on their way.
    #[error("loading what epoch {epoch} places here; in place is epoch {in_place}")]
    Loading {
        /// The newest epoch.
        epoch: u64,
        /// The one whose placement is in place; 0 before the first.
        in_place: u64,
    },
    /// Replicas of the newest plan could not be loaded.
    #[error("not loaded: {}", reasons(.0))]
    Failed(BTreeMap<String, String>),
    /// The ingress has as many requests as it may.
    #[error("full: {in_flight} requests are in flight, as many as `ingress.max_in_flight` allows")]
    IngressFull {
        /// As many.
        in_flight: usize,
    },
    /// A replica's queue has as many requests as it may.
    #[error(
        "full: {waiting} requests wait for replica `{replica}`, as many as `ingress.queue_capacity` allows"
    )]
    QueueFull {
        /// Whose queue.
        replica: String,
        /// Requests in it.
        waiting: u32,
    },
}

fn reasons(failed: &BTreeMap<String, String>) -> String {
    let reasons = failed
        .iter()
        .map(|(replica, reason)| format!("`{replica}`: {reason}"));
    reasons.collect::<Vec<_>>().join("; ")
}

/// What a process knows of itself. Cheap to clone; it outlives its node, and then says that nothing turns.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    app: App,
    url: String,
    metrics: Arc<Metrics>,
    plans: PlanVersions,
    link: watch::Receiver<Link>,
    stopped: watch::Receiver<Option<Duration>>,
    liveness: mpsc::Sender<oneshot::Sender<()>>,
    ingress: Option<IngressHealth>,
    worker: Option<WorkerHealth>,
}

/// The ingress of a process: room for requests in flight.
pub(crate) struct IngressHealth {
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) capacity: usize,
}

/// The worker of a process.
pub(crate) struct WorkerHealth {
    readiness: watch::Receiver<Readiness>,
    /// Its newest heartbeat.
    beat: watch::Receiver<Beat>,
    queue_capacity: usize,
}

impl WorkerHealth {
    /// Listens to the worker's own heartbeats. Call it inside an actix system.
    ///
    /// # Errors
    /// [`BusError`] if the subscription fails or `name` is not a valid token.
    pub(crate) async fn listen(
        bus: &Bus,
        app: &App,
        name: &str,
        queue_capacity: usize,
        readiness: watch::Receiver<Readiness>,
    ) -> Result<Self, BusError> {
        let mut beats = bus.subscribe(app.beat(name)?, None).await?;
        let (heard, beat) = watch::channel(Beat::default());
        actor::spawn(async move {
            while let Some(message) = beats.next().await {
                // One that cannot be read is of another version, and the watcher says so.
                if let Ok(beat) = Beat::decode(&message.payload) {
                    heard.send_replace(beat);
                }
            }
        });
        Ok(Self {
            readiness,
            beat,
            queue_capacity,
        })
    }

    fn ready(&self, newest: u64) -> Result<(), NotReady> {
        let ready = self.readiness.borrow().clone();
        if ready.epoch < newest {
            return Err(NotReady::Loading {
                epoch: newest,
                in_place: ready.epoch,
            });
        }
        if !ready.failed.is_empty() {
            return Err(NotReady::Failed(ready.failed));
        }
        let beat = self.beat.borrow();
        let full = beat
            .replicas
            .iter()
            .find(|replica| replica.queue as usize >= self.queue_capacity);
        full.map_or(Ok(()), |replica| {
            Err(NotReady::QueueFull {
                replica: replica.id.clone(),
                waiting: replica.queue,
            })
        })
    }
}

impl Health {
    /// Call it inside an actix system: a task of it answers whether the system turns.
    pub(crate) fn new(
        bus: &Bus,
        app: &App,
        plans: PlanVersions,
        metrics: Arc<Metrics>,
        stopped: watch::Receiver<Option<Duration>>,
        ingress: Option<IngressHealth>,
        worker: Option<WorkerHealth>,
    ) -> Self {
        let (liveness, mut asked) = mpsc::channel::<oneshot::Sender<()>>(MAX_PENDING_PROBES);
        actor::spawn(async move {
            while let Some(answer) = asked.recv().await {
                let _ = answer.send(());
            }
        });
        Self(Arc::new(Inner {
            app: app.clone(),
            url: bus.url().to_owned(),
            metrics,
            plans,
            link: bus.connection().link(),
            stopped,
            liveness,
            ingress,
            worker,
        }))
    }

    /// Whether the actors of the process turn.
    ///
    /// # Errors
    /// [`NotReady::Stuck`].
    pub async fn live(&self) -> Result<(), NotReady> {
        let (answer, answered) = oneshot::channel();
        self.0.liveness.try_send(answer).map_err(|_| NotReady::Stuck)?;
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(NotReady::Stuck),
        }
    }

    /// Whether everything that the process is there for serves, and has room for more.
    ///
    /// # Errors
    /// The first thing that keeps it from serving.
    pub fn ready(&self) -> Result<(), NotReady> {
        let inner = &*self.0;
        if inner.stopped.borrow().is_some() {
            return Err(NotReady::Draining);
        }
        if *inner.link.borrow() != Link::Up {
            return Err(NotReady::NoBroker {
                url: inner.url.clone(),
            });
        }
        // A planner needs no plan to begin with; ingress and workers have nothing to serve without one.
        if inner.ingress.is_some() || inner.worker.is_some() {
            let epoch = self.epoch().ok_or_else(|| NotReady::NoPlan {
                app: inner.app.name().to_owned(),
            })?;
            if let Some(worker) = &inner.worker {
                worker.ready(epoch)?;
            }
        }
        match &inner.ingress {
            Some(ingress) if ingress.permits.available_permits() == 0 => Err(NotReady::IngressFull {
                in_flight: ingress.capacity,
            }),
            _ => Ok(()),
        }
    }

    /// Every metric in Prometheus' text format.
    pub fn page(&self) -> String {
        self.0.metrics.text(self.0.app.name(), &self.gauges())
    }

    fn epoch(&self) -> Option<u64> {
        self.0.plans.current().map(|(version, _)| version.epoch)
    }

    fn gauges(&self) -> Gauges {
        let mut queued = BTreeMap::new();
        if let Some(worker) = &self.0.worker {
            for replica in &worker.beat.borrow().replicas {
                *queued.entry(replica.variant.clone()).or_default() += u64::from(replica.queue);
            }
        }
        Gauges {
            ready: self.ready().is_ok(),
            epoch: self.epoch(),
            in_flight: self.0.ingress.as_ref().map(|ingress| {
                ingress
                    .capacity
                    .saturating_sub(ingress.permits.available_permits()) as u64
            }),
            queued,
        }
    }
}
