//! Configuration of a node, and its startup errors.

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
    /// Name of the app.
    pub app: String,
    /// Connection to the broker.
    pub bus: BusConfig,
    /// Configuration of the ingress, if the node has one.
    pub ingress: Option<IngressConfig>,
    /// Configuration and model loader of the worker, if the node has one.
    pub worker: Option<(WorkerConfig, Loader)>,
    /// Initial plan; `None` reads it from the plan store.
    pub plan: Option<Plan>,
    /// Configuration of the planner, if the node has one.
    pub planner: Option<PlannerConfig>,
    /// Power meter; `None` disables energy metering.
    pub power: Option<PowerMeter>,
    /// Longest wait of a shutdown for requests in flight.
    pub grace: Duration,
}

/// Error of a node that did not start, or that ended.
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
    /// A thread of the actors did not start, or has ended.
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
