//! What an overview says of an app at one moment.

use kaskade_actors::wire::{CertificateReport, Tokens};
use kaskade_policy::remote::price::CostSource;
use serde::Serialize;

/// An app at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AppSnapshot {
    /// Its name.
    pub app: String,
    /// The newest epoch of any heartbeat.
    pub epoch: u64,
    /// The gear in force, if the plan has several.
    pub gear: Option<u32>,
    /// Power of all processes that report energy, idle ones included, watts; `None` if one is unknown.
    pub watts: Option<f64>,
    /// Energy per answered request over all processes, idle ones included, joules.
    pub joules_per_request: Option<f64>,
    /// Money per answered request over all variants; `None` if the cost of one that runs is unknown.
    pub money_per_request: Option<f64>,
    /// The least certain source of that money.
    pub money_source: Option<CostSource>,
    /// Requests that stages sent on.
    pub edges: Vec<EdgeRow>,
    /// Rates over all ingresses; `None` if no ingress reports.
    pub ingresses: Option<IngressRates>,
    /// By variant.
    pub models: Vec<ModelRow>,
    /// By process.
    pub nodes: Vec<NodeRow>,
    /// What is known of the certificates of the running plan; absent without a certified list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateReport>,
}

/// All ingresses together.
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
    /// Attempts sent again, per second.
    pub retried_per_s: f64,
    /// Mean time between arrival and answer, seconds.
    pub mean_latency_s: Option<f64>,
    /// Median of that time, seconds, within a tenth.
    pub p50_s: Option<f64>,
    /// Its 95th percentile.
    pub p95_s: Option<f64>,
    /// Its 99th percentile.
    pub p99_s: Option<f64>,
}

/// A variant over all its replicas.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct ModelRow {
    /// Its name.
    pub variant: String,
    /// Living replicas.
    pub replicas: usize,
    /// Waiting requests.
    pub queue: u64,
    /// Requests not answered yet, in queue or batch.
    pub in_flight: u64,
    /// Requests run per second.
    pub requests_per_s: f64,
    /// Batches run per second.
    pub batches_per_s: f64,
    /// Busy time per second, over all replicas.
    pub busy: f64,
    /// Its share of the processes' power by busy time, watts.
    pub watts: Option<f64>,
    /// Money per second; `None` if the cost of a request that it ran is unknown.
    pub money_per_s: Option<f64>,
    /// The least certain source of that money.
    pub money_source: Option<CostSource>,
    /// Tokens made per second, if it is a language model.
    pub tokens_per_s: f64,
    /// What it made lately, if it is a language model.
    pub made: Tokens,
}

impl ModelRow {
    /// Requests per batch.
    pub fn batch(&self) -> Option<f64> {
        (self.batches_per_s > 0.0).then(|| self.requests_per_s / self.batches_per_s)
    }

    /// Joules per token that it made.
    pub fn joules_per_token(&self) -> Option<f64> {
        self.watts
            .filter(|_| self.tokens_per_s > 0.0)
            .map(|watts| watts / self.tokens_per_s)
    }

    /// Joules per request that it ran.
    pub fn joules_per_request(&self) -> Option<f64> {
        self.watts
            .filter(|_| self.requests_per_s > 0.0)
            .map(|watts| watts / self.requests_per_s)
    }
}

impl ModelRow {
    /// Money per request that it ran.
    pub fn money_per_request(&self) -> Option<f64> {
        self.money_per_s
            .filter(|_| self.requests_per_s > 0.0)
            .map(|money| money / self.requests_per_s)
    }
}

/// Requests that one stage sent on to another.
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
    /// Its name.
    pub node: String,
    /// Source of its energy readings.
    pub source: String,
    /// The energy counter that it reads, if other processes use that too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counter: Option<String>,
    /// Power, watts; its part of a counter that several processes read, by their processor time.
    pub watts: Option<f64>,
    /// Energy that it has read since its start, joules.
    pub joules: Option<f64>,
    /// Processor time per second.
    pub cores: Option<f64>,
    /// Variants that have run there.
    pub models: usize,
}
