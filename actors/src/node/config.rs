//! Configuration of a node, and why it did not start.

use std::time::Duration;

use kaskade_models::power::PowerMeter;
use kaskade_policy::plan::Plan;
use thiserror::Error;

use crate::{
    bus::{BusConfig, BusError},
    control::planner::PlannerConfig,
    ingress::IngressConfig,
    ingress::durable::DurableError,
    plan::store::StoreError,
    plan::versions::AdoptError,
    stage::worker::{Loader, Readiness, WorkerConfig},
    subjects::SubjectError,
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
    /// A thread of the actors did not start, or died.
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
