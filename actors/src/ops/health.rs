//! Health of a process, for its probes and metrics ([`crate::ops::probes`]).
//!
//! A probe must not wait behind the work whose health it checks, so no serving actor is asked. The state comes from
//! channels and counters that the actors keep anyway, and the worker's queues from a channel of its heartbeats.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared, try_join_all};
use thiserror::Error;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::bus::{Bus, Link};
use crate::metrics::{Gauges, Metrics};
use crate::plan::versions::PlanVersions;
use crate::stage::worker::Readiness;
use crate::subjects::App;
use crate::supervision::Supervisor;
use crate::wire::Heartbeat;

/// Time within which the actors' thread must respond. It only moves messages, so a response usually takes far less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks that may wait for the actors' thread at once. Simultaneous probes share one, so that others are checks whose probes went away.
const MAX_PENDING_CHECKS: usize = 16;

/// Why a process is not live or not ready.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotReady {
    /// A thread of the actors does not respond.
    #[error(
        "a thread of the actors has not responded for {RESPONSE_TIMEOUT:?}; restart the process if this persists"
    )]
    Stuck,
    /// A core task has ended.
    #[error("the task `{task}` has ended unexpectedly; the process ends")]
    Ended {
        /// The task.
        task: &'static str,
    },
    /// The connection to the broker is closed permanently.
    #[error("the connection to the broker at {url} is closed and is not renewed; restart the process")]
    Closed {
        /// The broker's address, without credentials.
        url: String,
    },
    /// The process is shutting down.
    #[error("draining: answering requests in flight, accepting no new ones")]
    Draining,
    /// The broker is unreachable.
    #[error("the broker at {url} is unreachable; the client reconnects by itself")]
    NoBroker {
        /// The broker's address, without credentials.
        url: String,
    },
    /// There is no plan yet.
    #[error(
        "no plan yet: the plan store of app `{app}` is empty; write one with `kaskade plan apply FILE`, or start a process without `--stored-plan`"
    )]
    NoPlan {
        /// The app.
        app: String,
    },
    /// The models of the newest plan are being loaded.
    #[error("loading the replicas of epoch {epoch}; epoch {in_place} is in place")]
    Loading {
        /// The newest epoch.
        epoch: u64,
        /// The epoch whose placement is in place; 0 before the first.
        in_place: u64,
    },
    /// Replicas of the newest plan could not be loaded.
    #[error("failed to load: {}", reasons(.0))]
    Failed(BTreeMap<String, String>),
    /// Plans or gear shifts do not arrive: none ever did, or the process is ready and serves the newest that it knows
    /// ([`Health::subscription_problem`]).
    #[error(
        "{what} has failed for more than {STALE_AFTER:?}: {reason}; check the permissions of this process's user and JetStream"
    )]
    NotFollowing {
        /// The operation that fails.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

/// Saturated component of a process. The process stays ready, because without readiness it would get no requests at all while it
/// works on as many as it can hold; it refuses further ones with a retryable error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Full {
    /// The ingress is at its limit of requests in flight.
    Ingress {
        /// Requests in flight.
        in_flight: usize,
    },
    /// A replica's queue is at its limit.
    Queue {
        /// The replica.
        replica: String,
        /// Requests in its queue.
        waiting: u32,
    },
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ingress { in_flight } => write!(
                f,
                "full: {in_flight} requests are in flight, the limit of `ingress.max_in_flight`"
            ),
            Self::Queue { replica, waiting } => write!(
                f,
                "full: {waiting} requests wait for replica `{replica}`, the limit of `ingress.queue_capacity`"
            ),
        }
    }
}

/// Time for which a subscription may be interrupted before it counts.
const STALE_AFTER: Duration = Duration::from_secs(3);

/// A subscription that cannot be opened, or that broke.
#[derive(Debug, Clone)]
pub(crate) struct Interruption {
    /// Whether it was open before.
    pub(crate) was_open: bool,
    /// The operation that fails.
    pub(crate) what: &'static str,
    /// Why it failed last.
    pub(crate) reason: String,
    /// When it failed first.
    pub(crate) since: Instant,
}

impl Interruption {
    /// Returns the interruption once it lasts.
    fn lasting(&self, now: Instant) -> Option<NotReady> {
        let lasts = now.saturating_duration_since(self.since) > STALE_AFTER;
        lasts.then(|| NotReady::NotFollowing {
            what: self.what,
            reason: self.reason.clone(),
        })
    }
}

/// The parts of a process whose state makes up its health.
pub(crate) struct HealthParts {
    pub(crate) shards: Vec<ShardHealth>,
    pub(crate) ingress: Option<IngressHealth>,
    pub(crate) worker: Option<WorkerHealth>,
    /// Interruptions of the subscriptions that the process follows.
    pub(crate) followed: Vec<watch::Receiver<Option<Interruption>>>,
}

/// Returns a note about stages of an app that no live replica runs; `None` without any.
pub fn unserved_text(app: &str, stages: &[String]) -> Option<String> {
    let names = stages.join("`, `");
    let (stages, verb) = match stages.len() {
        0 => return None,
        1 => ("stage", "has"),
        _ => ("stages", "have"),
    };
    Some(format!(
        "{stages} `{names}` of app `{app}` {verb} no live replica"
    ))
}

fn reasons(failed: &BTreeMap<String, String>) -> String {
    let reasons = failed
        .iter()
        .map(|(replica, reason)| format!("`{replica}`: {reason}"));
    reasons.collect::<Vec<_>>().join("; ")
}

/// Health of a process. Cheap to clone; after its node has ended it reports a stuck thread.
#[derive(Clone)]
pub struct Health(Arc<Inner>);

struct Inner {
    app: App,
    url: String,
    metrics: Arc<Metrics>,
    plans: PlanVersions,
    /// The connections for data of the shards, and the one for control messages.
    links: Vec<watch::Receiver<Link>>,
    stopped: watch::Receiver<Option<Duration>>,
    supervisor: Supervisor,
    parts: HealthParts,
    check: SharedCheck,
}

/// The check of the shards' threads that simultaneous probes share: whether all of them respond in time.
#[derive(Default)]
struct SharedCheck(Mutex<Option<WeakShared<BoxFuture<'static, bool>>>>);

impl SharedCheck {
    /// Returns the check in progress, or begins one.
    fn pending(&self, shards: &[ShardHealth]) -> Shared<BoxFuture<'static, bool>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = last.as_ref().and_then(WeakShared::upgrade);
        if let Some(pending) = pending.filter(|check| check.peek().is_none()) {
            return pending;
        }
        let probes: Vec<_> = shards.iter().map(|shard| shard.probe.clone()).collect();
        let check = async move {
            let respond = try_join_all(probes.into_iter().map(response));
            let result = tokio::time::timeout(RESPONSE_TIMEOUT, respond).await;
            matches!(result, Ok(Ok(_)))
        };
        let check = check.boxed().shared();
        *last = check.downgrade();
        check
    }
}

/// Waits until the thread behind `probe` responds; fails if it has ended.
async fn response(probe: mpsc::Sender<oneshot::Sender<()>>) -> Result<(), NotReady> {
    let (answer, answered) = oneshot::channel();
    probe.send(answer).await.map_err(|_| NotReady::Stuck)?;
    answered.await.map_err(|_| NotReady::Stuck)
}

/// The health of one shard: its connection for data, and whether its thread responds.
pub(crate) struct ShardHealth {
    link: watch::Receiver<Link>,
    probe: mpsc::Sender<oneshot::Sender<()>>,
}

impl ShardHealth {
    /// Starts the task that answers liveness probes. Call it on the thread of the shard whose connection `bus` is.
    pub(crate) fn start(bus: &Bus, supervisor: &Supervisor) -> Self {
        let (probe, mut asked) = mpsc::channel::<oneshot::Sender<()>>(MAX_PENDING_CHECKS);
        supervisor.spawn("answers to probes", async move {
            while let Some(answer) = asked.recv().await {
                let _ = answer.send(());
            }
        });
        Self {
            link: bus.connection().link(),
            probe,
        }
    }
}

/// The permits of a process's ingresses, which share them.
pub(crate) struct IngressHealth {
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) capacity: usize,
}

/// The health of a process's worker.
pub(crate) struct WorkerHealth {
    pub(crate) readiness: watch::Receiver<Readiness>,
    /// Its newest heartbeat.
    pub(crate) beat: watch::Receiver<Arc<Heartbeat>>,
    pub(crate) queue_capacity: usize,
}

impl WorkerHealth {
    /// Returns what the worker lacks of the newest plan.
    fn plan_problem(&self, newest: u64) -> Option<NotReady> {
        let ready = self.readiness.borrow();
        if ready.epoch < newest {
            return Some(NotReady::Loading {
                epoch: newest,
                in_place: ready.epoch,
            });
        }
        (!ready.failed.is_empty()).then(|| NotReady::Failed(ready.failed.clone()))
    }

    /// Checks that some plan was in place here with every replica loaded. Requests are admitted under it until the next one is in
    /// place.
    fn ready(&self, newest: u64) -> Result<(), NotReady> {
        if self.readiness.borrow().complete > 0 {
            return Ok(());
        }
        self.plan_problem(newest).map_or(Ok(()), Err)
    }

    fn full(&self) -> Option<Full> {
        let beat = self.beat.borrow();
        let mut replicas = beat.replicas.iter();
        let full = replicas.find(|replica| replica.queue as usize >= self.queue_capacity)?;
        Some(Full::Queue {
            replica: full.id.clone(),
            waiting: full.queue,
        })
    }
}

impl Health {
    /// The health of the process with these parts; `bus` is the connection of its first shard.
    pub(crate) fn new(
        bus: &Bus,
        (app, supervisor): (&App, &Supervisor),
        plans: PlanVersions,
        metrics: Arc<Metrics>,
        stopped: watch::Receiver<Option<Duration>>,
        parts: HealthParts,
    ) -> Self {
        let data = parts.shards.iter().map(|shard| shard.link.clone());
        let links = data.chain([bus.control().connection().link()]).collect();
        Self(Arc::new(Inner {
            app: app.clone(),
            url: bus.url().to_owned(),
            metrics,
            plans,
            links,
            stopped,
            supervisor: supervisor.clone(),
            parts,
            check: SharedCheck::default(),
        }))
    }

    /// Checks that the thread of every shard responds, that every core task runs, and that no connection is closed
    /// permanently.
    ///
    /// # Errors
    /// [`NotReady::Ended`], [`NotReady::Stuck`] or [`NotReady::Closed`].
    pub async fn live(&self) -> Result<(), NotReady> {
        if let Some(task) = self.0.supervisor.ended_task() {
            return Err(NotReady::Ended { task });
        }
        if !self.0.check.pending(&self.0.parts.shards).await {
            return Err(NotReady::Stuck);
        }
        if self.0.links.iter().any(|link| *link.borrow() == Link::Closed) {
            return Err(NotReady::Closed {
                url: self.0.url.clone(),
            });
        }
        Ok(())
    }

    /// Checks that all parts of the process serve. A full process is ready ([`Health::full`]), and so are one whose plan store
    /// went away ([`Health::subscription_problem`]) and one that serves a plan while the next one is not in place ([`Health::newest_plan_problem`]).
    ///
    /// # Errors
    /// The first reason why they do not.
    pub fn ready(&self) -> Result<(), NotReady> {
        let inner = &*self.0;
        if inner.stopped.borrow().is_some() {
            return Err(NotReady::Draining);
        }
        if inner.links.iter().any(|link| *link.borrow() != Link::Up) {
            return Err(NotReady::NoBroker {
                url: inner.url.clone(),
            });
        }
        if let Some(interrupted) = self.interrupted(false) {
            return Err(interrupted);
        }
        // A planner can start without a plan; an ingress and a worker have nothing to serve without one.
        if inner.parts.ingress.is_some() || inner.parts.worker.is_some() {
            let epoch = self.epoch().ok_or_else(|| NotReady::NoPlan {
                app: inner.app.name().to_owned(),
            })?;
            if let Some(worker) = &inner.parts.worker {
                worker.ready(epoch)?;
            }
        }
        Ok(())
    }

    /// Returns why plans or gear shifts no longer arrive; `None` while they do. The process stays ready and serves the newest plan
    /// that it knows: a plan store that goes away would otherwise take every process of the app out of service at once.
    pub fn subscription_problem(&self) -> Option<NotReady> {
        self.interrupted(true)
    }

    /// Returns what is not in place of the newest plan: its replicas load, or cannot be loaded. The process stays ready if a plan
    /// before it is in place: a new plan would otherwise take every process of the app out of service at once.
    pub fn newest_plan_problem(&self) -> Option<NotReady> {
        let epoch = self.epoch()?;
        let worker = self.0.parts.worker.as_ref();
        worker.and_then(|worker| worker.plan_problem(epoch)).or_else(|| {
            let in_place = self.epoch_in_place()?;
            (in_place < epoch).then_some(NotReady::Loading { epoch, in_place })
        })
    }

    /// Returns the stages of the current plan that no live replica runs, as the ingress of this process finds them. The process stays
    /// ready and refuses requests for them with a retryable error: workers that die would otherwise take every ingress out of service.
    pub fn unserved(&self) -> Vec<String> {
        self.0.plans.unserved()
    }

    /// Returns whether the process has an ingress, which finds the stages of [`Health::unserved`].
    pub fn has_ingress(&self) -> bool {
        self.0.parts.ingress.is_some()
    }

    /// Returns what a ready process states beside that it is ready: what is full, why it does not serve the newest plan, and which stages
    /// no replica runs.
    pub fn notes(&self) -> Vec<String> {
        let full = self.full().map(|full| full.to_string());
        let notes = [self.subscription_problem(), self.newest_plan_problem()]
            .map(|note| note.map(|note| note.to_string()));
        let unserved = unserved_text(self.0.app.name(), &self.unserved());
        let notes = notes.into_iter().flatten().chain(unserved);
        full.into_iter().chain(notes).collect()
    }

    /// Returns a lasting interruption of a subscription that was, or was not, open before.
    fn interrupted(&self, was_open: bool) -> Option<NotReady> {
        let now = Instant::now();
        self.0.parts.followed.iter().find_map(|followed| {
            let interruption = followed.borrow();
            let interruption = interruption.as_ref();
            interruption
                .filter(|interruption| interruption.was_open == was_open)?
                .lasting(now)
        })
    }

    /// Returns what is full, so that further requests are refused; `None` while the process has capacity.
    pub fn full(&self) -> Option<Full> {
        let parts = &self.0.parts;
        let ingress = parts.ingress.as_ref();
        let ingress = ingress.filter(|ingress| ingress.permits.available_permits() == 0);
        ingress
            .map(|ingress| Full::Ingress {
                in_flight: ingress.capacity,
            })
            .or_else(|| parts.worker.as_ref()?.full())
    }

    /// Returns every metric in Prometheus' text format.
    pub fn page(&self) -> String {
        self.0.metrics.text(self.0.app.name(), &self.gauges())
    }

    fn epoch(&self) -> Option<u64> {
        self.0.plans.newest().map(|version| version.epoch)
    }

    /// Returns the epoch that is in place: at the worker, and as the ingress found it at all workers, where it admits requests; 0
    /// before the first, `None` without worker and ingress or without a plan.
    fn epoch_in_place(&self) -> Option<u64> {
        let (parts, plans) = (&self.0.parts, &self.0.plans);
        let (current, _) = plans.current()?;
        let worker = parts
            .worker
            .as_ref()
            .map(|worker| worker.readiness.borrow().epoch);
        let admitted = if plans.is_admitted() { current.epoch } else { 0 };
        let ingress = parts.ingress.as_ref().map(|_| admitted);
        worker.into_iter().chain(ingress).min()
    }

    fn gauges(&self) -> Gauges {
        let mut queued = BTreeMap::new();
        if let Some(worker) = &self.0.parts.worker {
            for replica in &worker.beat.borrow().replicas {
                *queued.entry(replica.variant.clone()).or_default() += u64::from(replica.queue);
            }
        }
        Gauges {
            ready: self.ready().is_ok(),
            full: self.full().is_some(),
            plan_stale: self.subscription_problem().is_some(),
            epoch: self.epoch(),
            epoch_in_place: self.epoch_in_place(),
            failed_replicas: (self.0.parts.worker.as_ref())
                .map(|worker| worker.readiness.borrow().failed.len() as u64),
            in_flight: self.0.parts.ingress.as_ref().map(|ingress| {
                ingress
                    .capacity
                    .saturating_sub(ingress.permits.available_permits()) as u64
            }),
            queued,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_ready_once_a_plan_is_in_place_whole() {
        let (progress, readiness) = watch::channel(Readiness::default());
        let worker = WorkerHealth {
            readiness,
            beat: watch::channel(Arc::default()).1,
            queue_capacity: 1,
        };
        let loading = |epoch, in_place| NotReady::Loading { epoch, in_place };
        assert_eq!(worker.ready(1), Err(loading(1, 0)));
        let failed = BTreeMap::from([("small-0".to_owned(), "no such file".to_owned())]);
        let at = |epoch, complete, failed: &BTreeMap<String, String>| Readiness {
            epoch,
            failed: failed.clone(),
            complete,
        };
        progress.send_replace(at(1, 0, &failed));
        assert_eq!(worker.ready(1), Err(NotReady::Failed(failed.clone())));
        progress.send_replace(at(1, 1, &BTreeMap::new()));
        assert_eq!((worker.ready(1), worker.plan_problem(1)), (Ok(()), None));
        assert_eq!(
            (worker.ready(2), worker.plan_problem(2)),
            (Ok(()), Some(loading(2, 1)))
        );
        progress.send_replace(at(2, 1, &failed));
        assert_eq!(
            (worker.ready(2), worker.plan_problem(2)),
            (Ok(()), Some(NotReady::Failed(failed)))
        );
    }

    /// The 17th probe at once said that the thread is stuck.
    #[tokio::test(start_paused = true)]
    async fn any_number_of_simultaneous_probes_shares_a_check() {
        let (probe, mut asked) = mpsc::channel(1);
        let shards = [ShardHealth {
            link: watch::channel(Link::Up).1,
            probe,
        }];
        let check = SharedCheck::default();
        let crowd: Vec<_> = (0..100).map(|_| check.pending(&shards)).collect();
        let answer = async {
            let answer: oneshot::Sender<()> = asked.recv().await.unwrap();
            answer.send(()).unwrap();
        };
        let (live, ()) = tokio::join!(futures::future::join_all(crowd), answer);
        assert!(live.into_iter().all(|responds| responds));
        assert!(asked.try_recv().is_err(), "one check for all of them");
        // Each later probe checks again. The clock is paused, so that the time without a response passes at once.
        assert!(!check.pending(&shards).await);
        drop(asked);
        assert!(!check.pending(&shards).await);
    }

    #[test]
    fn a_short_interruption_does_not_count() {
        let since = Instant::now();
        let interruption = Interruption {
            was_open: false,
            what: "watching the plan store",
            reason: "denied".to_owned(),
            since,
        };
        assert_eq!(interruption.lasting(since + STALE_AFTER), None);
        let later = interruption.lasting(since + STALE_AFTER + Duration::from_millis(1));
        assert_eq!(
            later,
            Some(NotReady::NotFollowing {
                what: "watching the plan store",
                reason: "denied".to_owned()
            })
        );
    }
}
