//! Every metric of this crate: its name and unit (`names.rs`, `certificates.rs`) and its counter. No other module of
//! the crate contains metric names; the gateway has its own (`metric_names`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

pub(crate) mod certificates;
pub mod histogram;
mod latencies;
mod names;
mod text;

use dashmap::DashMap;
use kaskade_policy::remote::price::Cost;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Code, Fault},
    wire::{EnergyReport, FanOuts, Runs, Spent, Tokens},
};

use histogram::Histogram;
use latencies::Latencies;

pub use certificates::{AUDITS, CERTIFICATE_FINDINGS, CERTIFIED_INDEX, LABELS, LIVE_DIFFERENCE, LIVE_LOSS};
pub use latencies::quantile;
pub use names::*;
pub use text::{CONTENT_TYPE, Gauges};

/// Counters of a process, or of one shard of it.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Counters of the process, if `self` belongs to one shard. Counts of a shard are added to those of its process.
    process: Option<Arc<Metrics>>,
    arrived: AtomicU64,
    shifts: AtomicU64,
    accepted: AtomicU64,
    answered: AtomicU64,
    retried: AtomicU64,
    stale: AtomicU64,
    invalid_token_results: AtomicU64,
    decode_errors: AtomicU64,
    queue_full: AtomicU64,
    durable_results: AtomicU64,
    redelivered: AtomicU64,
    dead_letters: AtomicU64,
    processing_us: AtomicU64,
    latencies: Latencies,
    /// [`REQUEST_SECONDS`].
    request: Times,
    /// Histograms by variant.
    distributions: DashMap<String, Arc<Distributions>>,
    /// Forwarded requests, by stage and next stage.
    forwarded: DashMap<String, BTreeMap<String, u64>>,
    faults: DashMap<Code, u64>,
    last_fault: Mutex<Option<Arc<Fault>>>,
    variants: DashMap<String, VariantCount>,
    fan_outs: DashMap<String, FanOuts>,
    energy: Mutex<Option<EnergyReport>>,
    certificates: certificates::CertificateMetrics,
}

/// A histogram of times.
#[derive(Debug)]
struct Times(Histogram);

impl Default for Times {
    fn default() -> Self {
        Self(Histogram::with_time_buckets())
    }
}

/// Histograms of one variant.
#[derive(Debug)]
struct Distributions {
    /// [`VARIANT_QUEUE_SECONDS`].
    queue: Histogram,
    /// [`VARIANT_RUN_SECONDS`].
    run: Histogram,
    /// [`VARIANT_BATCH_SIZE`].
    batch: Histogram,
    /// [`TIME_TO_FIRST_TOKEN_SECONDS`].
    first_token: Histogram,
    /// [`INTER_TOKEN_LATENCY_SECONDS`].
    per_token: Histogram,
}

impl Default for Distributions {
    fn default() -> Self {
        Self {
            queue: Histogram::with_time_buckets(),
            run: Histogram::with_time_buckets(),
            batch: Histogram::of_sizes(),
            first_token: Histogram::with_time_buckets(),
            per_token: Histogram::with_time_buckets(),
        }
    }
}

/// Counters of one variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantCount {
    /// Requests run.
    pub requests: u64,
    /// Batches run; 0 for language models and remote variants, whose requests join and leave between steps.
    pub batches: u64,
    /// Steps of a local language model.
    #[serde(default)]
    pub steps: u64,
    /// Time that the model threads were busy, microseconds; for a remote variant, the processor time of the thread that
    /// waits for it.
    pub busy_us: u64,
    /// Token counts, for language models.
    #[serde(default)]
    pub tokens: Tokens,
    /// Requests whose cost is known.
    #[serde(default)]
    pub priced: u64,
    /// Total cost of the `priced` requests.
    #[serde(default)]
    pub spent: Spent,
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`ARRIVED_REQUESTS`].
    pub arrived: u64,
    /// [`GEAR_SHIFTS`].
    pub shifts: u64,
    /// [`ACCEPTED_REQUESTS`].
    pub accepted: u64,
    /// [`ANSWERED_REQUESTS`].
    pub answered: u64,
    /// [`RETRIED_ATTEMPTS`].
    pub retried: u64,
    /// [`LATE_RESULTS`].
    pub stale: u64,
    /// [`INVALID_TOKEN_RESULTS`].
    pub invalid_token_results: u64,
    /// [`DECODE_ERRORS`].
    pub decode_errors: u64,
    /// [`QUEUE_FULL_REJECTIONS`].
    pub queue_full: u64,
    /// [`DURABLE_RESULTS`].
    pub durable_results: u64,
    /// [`DURABLE_REDELIVERIES`].
    pub redelivered: u64,
    /// [`DURABLE_DEAD_LETTERS`].
    pub dead_letters: u64,
    /// [`ERROR_REPLIES`], by code.
    pub faults: BTreeMap<String, u64>,
    /// Latencies of answered requests, by logarithmic bucket; [`quantile`] reads them.
    pub latencies: Vec<u64>,
    /// Forwarded requests, by stage and next stage.
    pub forwarded: BTreeMap<String, BTreeMap<String, u64>>,
    /// [`VARIANT_REQUESTS`], [`VARIANT_BATCHES`], [`VARIANT_STEPS`] and [`VARIANT_BUSY_SECONDS`], by variant.
    pub variants: BTreeMap<String, VariantCount>,
    /// [`FAN_OUT_REQUESTS`] and [`FAN_OUT_CHILD_REQUESTS`], by variant.
    pub fan_outs: BTreeMap<String, FanOuts>,
    /// [`ENERGY_JOULES`] and, by variant, [`VARIANT_ENERGY_JOULES`], as last metered; `None` without a meter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyReport>,
}

impl Metrics {
    /// Creates the counters of a shard of the process with the counters `process`.
    pub(crate) fn of_shard(process: &Arc<Self>) -> Self {
        Self {
            process: Some(Arc::clone(process)),
            ..Self::default()
        }
    }

    /// Iterates over `self` and, for a shard, the counters of the process.
    fn all(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.process.as_deref()].into_iter().flatten()
    }

    /// Adds to one counter of the shard and of the process.
    fn add(&self, counter: impl Fn(&Self) -> &AtomicU64, count: u64) {
        for metrics in self.all() {
            counter(metrics).fetch_add(count, Relaxed);
        }
    }

    /// Updates the counters of audits, labels or findings.
    pub(crate) fn certificates(&self, count: impl Fn(&certificates::CertificateMetrics)) {
        for metrics in self.all() {
            count(&metrics.certificates);
        }
    }

    pub(crate) fn arrived(&self) {
        self.add(|metrics| &metrics.arrived, 1);
    }

    /// Returns the number of requests received so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    pub(crate) fn result_stored(&self) {
        self.add(|metrics| &metrics.durable_results, 1);
    }

    pub(crate) fn redelivered(&self) {
        self.add(|metrics| &metrics.redelivered, 1);
    }

    pub(crate) fn dead_lettered(&self) {
        self.add(|metrics| &metrics.dead_letters, 1);
    }

    pub(crate) fn shifted(&self) {
        self.add(|metrics| &metrics.shifts, 1);
    }

    pub(crate) fn accepted(&self) {
        self.add(|metrics| &metrics.accepted, 1);
    }

    pub(crate) fn answered(&self, in_flight_us: u64) {
        self.add(|metrics| &metrics.answered, 1);
        self.add(|metrics| &metrics.processing_us, in_flight_us);
        for metrics in self.all() {
            metrics.latencies.add(in_flight_us);
        }
        self.of_process().request.0.add_us(in_flight_us);
    }

    /// Returns the counters of the process.
    fn of_process(&self) -> &Self {
        self.process.as_deref().unwrap_or(self)
    }

    /// Returns a variant's histograms, which exist per process only.
    fn distributions(&self, variant: &str) -> Arc<Distributions> {
        let all = &self.of_process().distributions;
        if let Some(found) = all.get(variant) {
            return Arc::clone(&found);
        }
        Arc::clone(&all.entry(variant.to_owned()).or_default())
    }

    /// Counts a request that a stage forwards.
    pub(crate) fn forwarded(&self, stage: &str, next: &str) {
        for metrics in self.all() {
            if let Some(mut targets) = metrics.forwarded.get_mut(stage)
                && let Some(count) = targets.get_mut(next)
            {
                *count += 1;
                continue;
            }
            let mut targets = metrics.forwarded.entry(stage.to_owned()).or_default();
            *targets.entry(next.to_owned()).or_default() += 1;
        }
    }

    pub(crate) fn retried(&self) {
        self.add(|metrics| &metrics.retried, 1);
    }

    pub(crate) fn stale(&self) {
        self.add(|metrics| &metrics.stale, 1);
    }

    /// Counts a result without a valid token, and returns the new count.
    pub(crate) fn invalid_token_result(&self) -> u64 {
        self.add(|metrics| &metrics.invalid_token_results, 1);
        self.invalid_token_results.load(Relaxed)
    }

    pub(crate) fn decode_error(&self) {
        self.add(|metrics| &metrics.decode_errors, 1);
    }

    pub(crate) fn queue_full(&self) {
        self.add(|metrics| &metrics.queue_full, 1);
    }

    pub(crate) fn fault(&self, fault: &Fault) {
        self.shared_fault(&Arc::new(fault.clone()));
    }

    /// Counts a shared fault, which many requests get.
    pub(crate) fn shared_fault(&self, fault: &Arc<Fault>) {
        for metrics in self.all() {
            *metrics.faults.entry(fault.code).or_default() += 1;
            let mut last = metrics.last_fault.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(Arc::clone(fault));
        }
    }

    /// Counts a batch: its run time, and the time that each of its requests waited for it, microseconds.
    pub(crate) fn batch(&self, variant: &str, waited_us: impl ExactSizeIterator<Item = u64>, run_us: u64) {
        let size = waited_us.len();
        self.count(variant, |count| {
            count.requests += size as u64;
            count.batches += 1;
            count.busy_us += run_us;
        });
        let distributions = self.distributions(variant);
        distributions.batch.add_size(size);
        distributions.run.add_us(run_us);
        waited_us.for_each(|us| distributions.queue.add_us(us));
    }

    /// Counts a step of a language model.
    pub(crate) fn step(&self, variant: &str, run_us: u64) {
        self.count(variant, |count| {
            count.steps += 1;
            count.busy_us += run_us;
        });
    }

    /// Adds the processor time of a step of a model that waits for others, such as a remote endpoint, microseconds. It
    /// does not count as a step, because a waiting model is also woken by a timer.
    pub(crate) fn waited(&self, variant: &str, used_us: u64) {
        self.count(variant, |count| count.busy_us += used_us);
    }

    /// Counts new tokens of an answer by a language model.
    pub(crate) fn tokens(&self, variant: &str, tokens: &Tokens) {
        self.count(variant, |count| {
            count.tokens.count += tokens.count;
            count.tokens.first += tokens.first;
            count.tokens.to_first_us += tokens.to_first_us;
            count.tokens.between_us += tokens.between_us;
        });
        let distributions = self.distributions(variant);
        if tokens.first > 0 {
            distributions.first_token.add_us(tokens.to_first_us);
        } else {
            distributions
                .per_token
                .add_mean_us(tokens.between_us, tokens.count);
        }
    }

    /// Counts a complete answer of a language model.
    pub(crate) fn generated(&self, variant: &str) {
        self.count(variant, |count| count.requests += 1);
    }

    /// Adds the cost of a request in money.
    pub(crate) fn cost(&self, variant: &str, cost: Cost) {
        self.count(variant, |count| {
            count.priced += 1;
            count.spent.add(cost);
        });
    }

    fn count(&self, variant: &str, change: impl Fn(&mut VariantCount)) {
        for metrics in self.all() {
            if let Some(mut count) = metrics.variants.get_mut(variant) {
                change(&mut count);
                continue;
            }
            change(&mut metrics.variants.entry(variant.to_owned()).or_default());
        }
    }

    pub(crate) fn count_fan_out(&self, variant: &str, children: &BTreeMap<String, u32>) {
        for metrics in self.all() {
            let mut fan_outs = metrics.fan_outs.entry(variant.to_owned()).or_default();
            fan_outs.requests += 1;
            for (task, count) in children {
                *fan_outs.children.entry(task.clone()).or_default() += u64::from(*count);
            }
        }
    }

    pub(crate) fn metered(&self, report: EnergyReport) {
        *self.energy.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// Returns [`FAN_OUT_REQUESTS`] and [`FAN_OUT_CHILD_REQUESTS`] by variant.
    pub(crate) fn fan_outs(&self) -> BTreeMap<String, FanOuts> {
        let fan_outs = self.fan_outs.iter();
        fan_outs
            .map(|entry| (entry.key().clone(), entry.value().clone()))
            .collect()
    }

    /// Returns the number of batches and their total run time, by variant. Language models and remote variants are
    /// omitted because they run in steps.
    pub(crate) fn runs(&self) -> BTreeMap<String, Runs> {
        let variants = self.variants.iter();
        let run = variants.filter(|entry| entry.batches > 0);
        run.map(|entry| {
            let runs = Runs {
                batches: entry.batches,
                requests: entry.requests,
                busy_us: entry.busy_us,
            };
            (entry.key().clone(), runs)
        })
        .collect()
    }

    /// Returns the summed time between the arrival of answered requests and their results, microseconds.
    pub(crate) fn processing_us(&self) -> u64 {
        self.processing_us.load(Relaxed)
    }

    /// Returns the newest fault that a request was answered or refused with.
    pub(crate) fn last_fault(&self) -> Option<Arc<Fault>> {
        self.last_fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns a snapshot of all counters.
    pub fn read(&self) -> Snapshot {
        Snapshot {
            arrived: self.arrived.load(Relaxed),
            shifts: self.shifts.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            answered: self.answered.load(Relaxed),
            retried: self.retried.load(Relaxed),
            stale: self.stale.load(Relaxed),
            invalid_token_results: self.invalid_token_results.load(Relaxed),
            decode_errors: self.decode_errors.load(Relaxed),
            queue_full: self.queue_full.load(Relaxed),
            durable_results: self.durable_results.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            faults: self
                .faults
                .iter()
                .map(|entry| (entry.key().to_string(), *entry.value()))
                .collect(),
            latencies: self.latencies.read(),
            forwarded: self
                .forwarded
                .iter()
                .map(|entry| (entry.key().clone(), entry.value().clone()))
                .collect(),
            variants: self
                .variants
                .iter()
                .map(|entry| (entry.key().clone(), *entry.value()))
                .collect(),
            fan_outs: self.fan_outs(),
            energy: self.energy.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}
