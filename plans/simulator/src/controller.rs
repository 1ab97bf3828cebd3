//! Interface of a planner that plans again while the service runs.

use std::collections::BTreeMap;

use kaskade_policy::demand::RunCounts;
use kaskade_policy::plan::Plan;

/// Plans again while the service runs, as an allocator and its load balancer do (Loki §4.2, §5.1).
///
/// It is called periodically ([`SimConfig::control_interval_us`](super::SimConfig::control_interval_us)), so that it can notice a significant change of
/// demand, and keeps its own period. What it returns replaces the plan in force:
///
/// - Replicas with the same id, variant and device stay as they are, with their queues and batches. Shares and batching may
///   change without anything being loaded.
/// - Other replicas are loaded first ([`Loading`](super::Loading)), beside whatever their devices serve meanwhile. The plan
///   before admits until all of them are loaded; then the new one does. A plan that comes in between takes the place of the one
///   that waits, and what both place continues loading.
/// - A request finishes under the plan that admitted it. A replica that the plan in force no longer places serves until the
///   last request of an older plan that does has left. So no request is lost, and a device counts as active while anything is
///   loaded or loading on it.
/// - A replica that failed or was stopped is not loaded by a plan, nor waited for.
///
/// A plan that cannot be simulated is refused and noted ([`Report::refused_plans`](super::Report::refused_plans)); the one in
/// force stays.
pub trait Controller {
    /// Inspects the service, and returns another plan if there should be one.
    fn decide(&mut self, observation: &Observation<'_>) -> Option<Plan>;
}

/// The service as a controller observes it: the contents of heartbeats and the ingress's counts.
#[derive(Debug, Clone)]
pub struct Observation<'a> {
    /// Now, microseconds.
    pub at_us: u64,
    /// Requests that arrived since the last call.
    pub arrivals: u64,
    /// Requests without an outcome.
    pub in_flight: usize,
    /// Multiplicative factors that were observed since the last call, in order of task, variant and child.
    pub factors: Vec<Factor<'a>>,
    /// Batches that every variant has run since the last call, in order of the variants.
    pub runs: Vec<VariantRuns<'a>>,
    /// The replicas of the plan in force, in its order.
    pub replicas: Vec<ReplicaObservation<'a>>,
    /// Devices that host something.
    pub active_devices: usize,
    /// Whether a plan waits for its replicas to be loaded.
    pub loading: bool,
}

impl Observation<'_> {
    /// Requests that wait in all queues.
    pub fn queued(&self) -> usize {
        self.replicas.iter().map(|replica| replica.queue).sum()
    }
}

/// Number of requests that a variant made of those that it served at a task (Loki §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Factor<'a> {
    /// The task.
    pub task: &'a str,
    /// The variant that served it.
    pub variant: &'a str,
    /// The task that the requests were made for.
    pub child: &'a str,
    /// Requests served.
    pub served: u64,
    /// Requests made of them.
    pub made: u64,
}

/// Runs of a variant, over all its replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VariantRuns<'a> {
    /// The variant.
    pub variant: &'a str,
    /// Batches, requests and busy time of the variant.
    pub ran: RunCounts,
}

/// A replica as a controller sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaObservation<'a> {
    /// Id of the replica.
    pub id: &'a str,
    /// The variant it runs.
    pub variant: &'a str,
    /// Requests that wait in its queue.
    pub queue: usize,
    /// Whether the failure detector considers the replica alive.
    pub alive: bool,
}

/// Factors as they are counted, by the numbers of task, variant and child.
#[derive(Debug, Default)]
pub(super) struct Factors(BTreeMap<(u32, u32, u32), (u64, u64)>);

impl Factors {
    pub(super) fn note(&mut self, task: u32, variant: u32, child: u32, made: u32) {
        let (served, sum) = self.0.entry((task, variant, child)).or_default();
        *served += 1;
        *sum += u64::from(made);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = ((u32, u32, u32), (u64, u64))> {
        self.0.iter().map(|(key, counts)| (*key, *counts))
    }
}
