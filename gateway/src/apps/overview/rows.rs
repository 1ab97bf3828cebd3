//! Contents of an overview.

use kaskade_actors::wire::{CertificateReport, Tokens};
use kaskade_policy::remote::price::CostSource;
use serde::Serialize;

/// Snapshot of an app.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AppSnapshot {
    /// Name of the app.
    pub app: String,
    /// Newest epoch in any heartbeat.
    pub epoch: u64,
    /// Current gear, if the plan has several.
    pub gear: Option<u32>,
    /// Power of all processes that report energy, idle power included, watts; `None` if one is unknown.
    pub watts: Option<f64>,
    /// Energy per answered request over all processes, idle energy included, joules.
    pub joules_per_request: Option<f64>,
    /// Money per answered request over all variants; `None` if the cost of an active variant is unknown.
    pub money_per_request: Option<f64>,
    /// Least certain source of that money.
    pub money_source: Option<CostSource>,
    /// Requests forwarded between stages.
    pub edges: Vec<EdgeRow>,
    /// Rates over all ingresses; `None` if no ingress reports.
    pub ingresses: Option<IngressRates>,
    /// Rows by variant.
    pub models: Vec<ModelRow>,
    /// Rows by process.
    pub nodes: Vec<NodeRow>,
    /// State of the running plan's certificates; absent without a certified list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateReport>,
}

/// Rates over all ingresses.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct IngressRates {
    /// Number of ingresses.
    pub count: usize,
    /// Requests that arrived, per second.
    pub arrived_per_s: f64,
    /// Requests answered, per second.
    pub answered_per_s: f64,
    /// Requests answered or refused with an error, per second.
    pub errors_per_s: f64,
    /// Attempts retried, per second.
    pub retried_per_s: f64,
    /// Mean time between arrival and answer, seconds.
    pub mean_latency_s: Option<f64>,
    /// Median of that time, seconds, within 10 %.
    pub p50_s: Option<f64>,
    /// 95th percentile of that time, seconds.
    pub p95_s: Option<f64>,
    /// 99th percentile of that time, seconds.
    pub p99_s: Option<f64>,
}

/// A variant, summed over its replicas.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct ModelRow {
    /// Name of the variant.
    pub variant: String,
    /// Number of live replicas.
    pub replicas: usize,
    /// Number of queued requests.
    pub queue: u64,
    /// Number of unanswered requests, in queues and batches.
    pub in_flight: u64,
    /// Requests run per second.
    pub requests_per_s: f64,
    /// Batches run per second.
    pub batches_per_s: f64,
    /// Busy time per second, summed over all replicas.
    pub busy: f64,
    /// Share of the processes' power by busy time, watts.
    pub watts: Option<f64>,
    /// Money per second; `None` if the cost of a request is unknown.
    pub money_per_s: Option<f64>,
    /// Least certain source of that money.
    pub money_source: Option<CostSource>,
    /// Tokens generated per second, for language models.
    pub tokens_per_s: f64,
    /// Tokens generated recently, for language models.
    pub made: Tokens,
}

impl ModelRow {
    /// Returns the mean number of requests per batch.
    pub fn batch(&self) -> Option<f64> {
        (self.batches_per_s > 0.0).then(|| self.requests_per_s / self.batches_per_s)
    }

    /// Returns the joules per generated token.
    pub fn joules_per_token(&self) -> Option<f64> {
        self.watts
            .filter(|_| self.tokens_per_s > 0.0)
            .map(|watts| watts / self.tokens_per_s)
    }

    /// Returns the joules per request.
    pub fn joules_per_request(&self) -> Option<f64> {
        self.watts
            .filter(|_| self.requests_per_s > 0.0)
            .map(|watts| watts / self.requests_per_s)
    }
}

impl ModelRow {
    /// Returns the money per request.
    pub fn money_per_request(&self) -> Option<f64> {
        self.money_per_s
            .filter(|_| self.requests_per_s > 0.0)
            .map(|money| money / self.requests_per_s)
    }
}

/// Requests forwarded from one stage to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EdgeRow {
    /// The stage.
    pub from: String,
    /// The next stage.
    pub to: String,
    /// Requests per second.
    pub per_s: f64,
}

/// A process that reports energy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeRow {
    /// Name of the process.
    pub node: String,
    /// Source of the energy readings.
    pub source: String,
    /// Energy counter that the process reads, if other processes read it too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// Power, watts. The power of a shared counter is divided by processor time.
    pub watts: Option<f64>,
    /// Energy read since the start of the process, joules.
    pub joules: Option<f64>,
    /// Processor time per second, cores.
    pub cores: Option<f64>,
    /// Number of variants that have run in the process.
    pub models: usize,
}
