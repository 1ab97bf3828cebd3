//! Runs a node until it is stopped, then leaves.

use std::{sync::Arc, time::Duration};

use futures::future::select_all;
use tokio::{sync::watch, time::Instant};

use super::{drain, plan_answers, plan_watch, running_ingress::RunningIngresses, shards::Shards};
use crate::{
    actor::Addr,
    bus::Link,
    ingress::FailInFlight,
    metrics::Metrics,
    plan::store::PlanStore,
    plan::versions::PlanVersions,
    stage::replica::ShardContext,
    stage::worker::{AnnounceLeave, Leave, Left, Reconcile, Worker},
};

/// The actors of a node.
pub(super) struct Parts {
    pub(super) store: Arc<dyn PlanStore>,
    pub(super) plans: PlanVersions,
    /// Counters of the process.
    pub(super) metrics: Arc<Metrics>,
    pub(super) ingresses: Option<RunningIngresses>,
    pub(super) worker: Option<Addr<Worker>>,
    pub(super) followed: plan_watch::Followed,
    /// Stops the intakes when it turns true.
    pub(super) close: watch::Sender<bool>,
    /// Dropped last, because the actors run on the shards.
    pub(super) shards: Shards,
}

impl Parts {
    /// Follows plans and gears until the node is stopped, then drains.
    pub(super) async fn serve(self, mut stopped: watch::Receiver<Option<Duration>>) {
        let Some(first) = self.shards.shared().first() else {
            return;
        };
        let supervisor = first.dispatcher.supervisor().clone();
        let (store, plans, link) = (
            Arc::clone(&self.store),
            self.plans.clone(),
            self.followed.store.clone(),
        );
        let follow_store =
            supervisor.spawn_again("watch of the plan store", plan_watch::OPEN_AGAIN, move || {
                plan_watch::store(Arc::clone(&store), plans.clone(), link.clone())
            });
        let (bus, dispatcher, link) = (
            first.bus.clone(),
            first.dispatcher.clone(),
            self.followed.gears.clone(),
        );
        let (plans, metrics) = (self.plans.clone(), Arc::clone(&self.metrics));
        let follow_gears =
            supervisor.spawn_again("subscription to gears", plan_watch::OPEN_AGAIN, move || {
                plan_watch::gears(
                    bus.clone(),
                    dispatcher.clone(),
                    plans.clone(),
                    Arc::clone(&metrics),
                    link.clone(),
                )
            });
        // On a nats-server, readers open the store themselves.
        let tell_plan = first.bus.embedded().is_some().then(|| {
            let (bus, dispatcher, store) = (
                first.bus.clone(),
                first.dispatcher.clone(),
                Arc::clone(&self.store),
            );
            supervisor.spawn_again(
                "answers to requests for the plan",
                plan_watch::OPEN_AGAIN,
                move || plan_answers::serve(bus.clone(), dispatcher.clone(), Arc::clone(&store)),
            )
        });
        let follow_plans = self.worker.clone().map(|worker| {
            let mut changes = self.plans.changes();
            supervisor.spawn("plans of the worker", async move {
                while changes.next().await {
                    worker.do_send(Reconcile);
                }
            })
        });
        let closed = self.shards.shared().iter().map(|shard| {
            let mut link = shard.bus.connection().link();
            Box::pin(async move {
                let _ = link.wait_for(|link| *link == Link::Closed).await;
            })
        });
        let closed = select_all(closed);
        let grace = tokio::select! {
            grace = stopped.wait_for(Option::is_some) => grace.map_or(Duration::ZERO, |grace| grace.unwrap_or_default()),
            task = supervisor.failure() => {
                tracing::error!(task, "a core task ended unexpectedly; the node ends");
                AFTER_FAILURE
            }
            _ = closed => {
                supervisor.report("connection to the broker");
                Duration::ZERO
            }
        };
        supervisor.stop();
        for task in [Some(follow_store), Some(follow_gears), tell_plan, follow_plans]
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
        let idle = async {
            if let Some(ingresses) = &self.ingresses {
                for ingress in &ingresses.running {
                    ingress.announced.withdraw();
                }
                until(end, || ingresses.are_idle()).await;
            }
        };
        let announced = async {
            if let (Some(worker), Some(first)) = (&self.worker, self.shards.shared().first()) {
                announce_leave(worker, first, end).await;
            }
        };
        // Meanwhile, requests of this process's ingresses reach its replicas: a process does not avoid replicas of its own.
        tokio::join!(idle, announced);
        if let Some(worker) = &self.worker {
            leave(worker, end).await;
        }
        for ingress in self.ingresses.into_iter().flat_map(|ingresses| ingresses.running) {
            let _ = ingress.address.send(FailInFlight).await;
            // Returning a request to the stream takes a message; without it another ingress would wait for `ack_wait`.
            until(Instant::now() + HANDING_BACK, || ingress.durable_settled()).await;
            ingress.state.close().await;
        }
        self.shards.close().await;
    }
}

/// Announces that the worker's replicas leave, and waits until ingresses avoid them.
async fn announce_leave(worker: &Addr<Worker>, shard: &ShardContext, end: Instant) {
    let senders = drain::Senders::listen(&shard.bus, shard.dispatcher.app()).await;
    let Ok(replicas) = worker.send(AnnounceLeave).await else {
        return;
    };
    match senders {
        Ok(senders) if !replicas.is_empty() => senders.heed(&replicas, end).await,
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "shutting down without confirmation from the ingresses"),
    }
}

/// Takes the worker's replicas out of service: ends the subscriptions, waits until accepted requests are answered, and
/// sends a last heartbeat that says they are gone. If the grace time ends first, that heartbeat is not sent: for lost
/// replicas, ingresses retry every request that may be there, but for departed replicas only the requests known to be
/// there.
async fn leave(worker: &Addr<Worker>, end: Instant) {
    if let Ok(draining) = worker.send(Leave).await {
        until(end, || draining.done()).await;
        if !draining.done() {
            return tracing::warn!("the grace time is over; the worker ends with unanswered requests");
        }
    }
    let _ = worker.send(Left).await;
}

/// Grace time of a node whose core task ended; it refuses requests meanwhile.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Time to return durable requests to the stream after the grace time.
const HANDING_BACK: Duration = Duration::from_secs(1);

/// Polls until the condition holds or `end` is reached.
async fn until(end: Instant, condition: impl Fn() -> bool) {
    const POLL: Duration = Duration::from_millis(2);
    while !condition() && Instant::now() < end {
        tokio::time::sleep(POLL).await;
    }
}
