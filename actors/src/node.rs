//! A node: the actors of one process, running on one actix system.
//!
//! | file | holds |
//! |---|---|
//! | [`config`] | configuration and errors |
//! | `assembly` | starting the actors in order |
//! | `shards` | the threads of a node |
//! | `running_ingress` | one ingress with its subscriptions |
//! | `serving` | serving until the node is stopped, then leaving |
//! | `drain` | waiting until senders avoid the leaving replicas |
//! | `first_plan`, `plan_watch`, `plan_answers` | the first plan; following plans and gears; answering queries for the stored plan |
//! | [`service`], [`attach`], [`stage`] | starting a node from models; custom actors; custom stages |

mod assembly;
pub mod attach;
pub mod config;
mod drain;
mod first_plan;
mod plan_answers;
mod plan_watch;
mod running_ingress;
pub mod service;
mod serving;
mod shards;
pub mod stage;

use std::{
    num::NonZeroUsize,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use kaskade_policy::sharding;
use tokio::sync::watch;

use crate::{
    actor::{self, Addr},
    bus::Bus,
    dispatch::dispatcher::Dispatcher,
    ingress::LocalIntake,
    metrics::Metrics,
    ops::health::Health,
    ops::meter::{Meter, ReadEnergy},
    plan::versions::PlanVersions,
    wire::EnergyReport,
};

use assembly::Up;
pub use config::{NodeConfig, NodeError};

/// Returns the default number of shards of a node on this machine ([`sharding::default_shards`]).
pub fn default_shards() -> NonZeroUsize {
    let cores = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    sharding::default_shards(cores)
}

/// A running node. Dropping it stops it without a grace time; [`Node::stop`] drains it first.
pub struct Node {
    bus: Bus,
    plans: PlanVersions,
    metrics: Arc<Metrics>,
    meter: Option<Addr<Meter>>,
    health: Health,
    dispatcher: Dispatcher,
    ingresses: Vec<String>,
    local: Option<LocalIntake>,
    stop: watch::Sender<Option<Duration>>,
    thread: Option<thread::JoinHandle<()>>,
    grace: Duration,
}

impl Node {
    /// Starts the actors on a separate thread and returns once they serve: replicas loaded, subscriptions active.
    ///
    /// # Errors
    /// [`NodeError`]; nothing is left running.
    pub fn start(config: NodeConfig) -> Result<Self, NodeError> {
        Self::start_sharded(config, NonZeroUsize::MIN)
    }

    /// Starts the node like [`Node::start`], with one thread per shard. Each shard has a data connection and, if the
    /// node has an ingress, its own ingress; the worker distributes its replicas over the shards.
    ///
    /// # Errors
    /// [`NodeError`]; nothing is left running.
    pub fn start_sharded(config: NodeConfig, shards: NonZeroUsize) -> Result<Self, NodeError> {
        let (stop, stopped) = watch::channel(None);
        let (up, started) = mpsc::sync_channel(1);
        let grace = config.grace;
        let thread = thread::Builder::new()
            .name(format!("kaskade-{}", config.app))
            .spawn(move || actor::System::new().block_on(assembly::run(config, shards, stopped, up)))
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
            ingresses,
            local,
        } = up;
        Ok(Self {
            bus,
            plans,
            metrics,
            meter,
            health,
            dispatcher,
            ingresses,
            local,
            stop,
            thread: Some(thread),
            grace,
        })
    }

    /// Returns the ids of the node's ingresses, one per shard.
    pub fn ingresses(&self) -> &[String] {
        &self.ingresses
    }

    /// Returns the intake for clients in this process
    /// ([`Client::with_local_ingress`](crate::Client::with_local_ingress)); `None` if the node has no ingress.
    pub fn local_intake(&self) -> Option<LocalIntake> {
        self.local.clone()
    }

    /// Returns the first shard's connection to the broker.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// Returns the plans known to the node.
    pub fn plans(&self) -> &PlanVersions {
        &self.plans
    }

    /// Returns the node's counters, summed over all shards.
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

    /// Waits until a core task of the node fails. The node then ends by itself, and the process should end too.
    pub async fn failure(&self) -> NodeError {
        let task = self.dispatcher.supervisor().failure().await;
        NodeError::Ended { task }
    }

    /// Drains within the grace time and stops: accepts no new requests, and answers those in flight.
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

#[cfg(test)]
mod supervision_tests;
