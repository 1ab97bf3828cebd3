//! The shards of a node: each has a thread with a runtime, and a data connection.
//!
//! The first shard runs on the node's thread and has all parts that exist once per process: the worker, the watch of
//! the plan store, gear shifts, heartbeats. The other shards run an ingress and a part of the replicas.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::NodeError;
use crate::{
    actor::Arbiter,
    bus::{Bus, BusConfig, BusError},
    dispatch::dispatcher::Dispatcher,
    metrics::Metrics,
    ops::health::ShardHealth,
    plan::versions::PlanVersions,
    stage::replica::ShardContext,
};

/// Longest wait for the broker to accept the last messages of a shard, in case the broker is gone.
const FLUSHING: Duration = Duration::from_secs(3);

/// The shards of a node, the first one first. Dropping them stops and joins the threads of the others.
pub(super) struct Shards {
    shared: Vec<ShardContext>,
    threads: Vec<Arbiter>,
}

impl Shards {
    /// Opens the first shard on this thread with the connection `bus`, and the others on new threads with new
    /// connections by `config`.
    ///
    /// # Errors
    /// [`NodeError`] if a thread does not start or does not reach the broker.
    pub(super) async fn open(
        count: NonZeroUsize,
        config: &BusConfig,
        bus: &Bus,
        dispatcher: &Dispatcher,
        plans: &PlanVersions,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, NodeError> {
        let first = ShardContext {
            arbiter: Arbiter::current(),
            bus: bus.clone(),
            plans: plans.clone(),
            dispatcher: dispatcher.clone(),
            metrics: Arc::clone(metrics),
        };
        let mut shards = Self {
            shared: vec![first.clone()],
            threads: Vec::new(),
        };
        for number in 2..=count.get() {
            let thread = Arbiter::new();
            let arbiter = thread.handle();
            shards.threads.push(thread);
            let config = BusConfig {
                name: format!("{}/shard-{number}", config.name),
                ..config.clone()
            };
            let shared = ShardContext {
                arbiter,
                ..first.clone()
            };
            let (bus, dispatcher) = (bus.clone(), dispatcher.clone());
            let opened = shared.run("opening of a shard", move || async move {
                let bus = bus.connect_shard(config).await?;
                let dispatcher = dispatcher.shard(&bus);
                Ok::<_, BusError>((bus, dispatcher))
            });
            let (bus, dispatcher) = opened.await.map_err(|_| ended())??;
            shards.shared.push(ShardContext {
                bus,
                dispatcher,
                ..shared
            });
        }
        Ok(shards)
    }

    /// Returns the handles of the shards.
    pub(super) fn shared(&self) -> &[ShardContext] {
        &self.shared
    }

    /// Starts the health probes of every shard.
    ///
    /// # Errors
    /// [`NodeError::Thread`] if a shard has ended.
    pub(super) async fn health(&self) -> Result<Vec<ShardHealth>, NodeError> {
        let mut health = Vec::new();
        for shard in &self.shared {
            let (bus, supervisor) = (shard.bus.clone(), shard.dispatcher.supervisor().clone());
            let started = shard.run("start of a shard's probes", move || async move {
                ShardHealth::start(&bus, &supervisor)
            });
            health.push(started.await.map_err(|_| ended())?);
        }
        Ok(health)
    }

    /// Flushes queued messages and closes the connections; the first shard's last, because it owns the control
    /// connection.
    pub(super) async fn close(&self) {
        for shard in self.shared.iter().rev() {
            if timeout(FLUSHING, shard.dispatcher.flush()).await.is_err() {
                tracing::warn!("the broker did not accept the last messages within the limit; dropping them");
            }
            shard.bus.close().await;
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        for thread in &self.threads {
            thread.stop();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns the error of a shard whose thread has ended.
pub(super) fn ended() -> NodeError {
    NodeError::Thread("the thread of a shard has ended".to_owned())
}
