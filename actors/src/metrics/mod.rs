//! Every metric: its name, its unit, and where it is counted. Nothing names a metric elsewhere.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

mod text;

use dashmap::DashMap;
use kaskade_models::BatchResult;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Code, Fault},
    wire::{EnergyReport, FanOuts, Runs, Tokens},
};

pub use text::{CONTENT_TYPE, Gauges};

/// Requests that came to an ingress, accepted or not: the offered load.
pub const ARRIVED: &str = "kaskade_arrived_requests_total";
/// Requests that an ingress took responsibility for.
pub const ACCEPTED: &str = "kaskade_accepted_requests_total";
/// Requests answered with a result.
pub const ANSWERED: &str = "kaskade_answered_requests_total";
/// Requests answered or refused with a fault, by code.
pub const FAULTS: &str = "kaskade_fault_replies_total";
/// Attempts that were sent again.
pub const RETRIED: &str = "kaskade_retried_attempts_total";
/// Answers that came after the request had been answered.
pub const STALE: &str = "kaskade_stale_answers_total";
/// Deliveries refused by a full replica queue.
pub const QUEUE_FULL: &str = "kaskade_queue_full_refusals_total";
/// Results of durable requests that were kept.
pub const DURABLE_RESULTS: &str = "kaskade_durable_results_total";
/// Deliveries of durable requests that were handed back, to be tried again.
pub const REDELIVERED: &str = "kaskade_durable_redeliveries_total";
/// Durable requests that were given up.
pub const DEAD_LETTERS: &str = "kaskade_durable_dead_letters_total";
/// Gear shifts that this process followed.
pub const SHIFTS: &str = "kaskade_gear_shifts_total";
/// Requests run, by variant.
pub const VARIANT_REQUESTS: &str = "kaskade_variant_requests_total";
/// Batches run, by variant.
pub const VARIANT_BATCHES: &str = "kaskade_variant_batches_total";
/// Requests that came apart at a task of a pipeline, by variant.
pub const FAN_OUTS: &str = "kaskade_fan_out_requests_total";
/// Requests that they came to, by variant and task.
pub const FAN_OUT_CHILDREN: &str = "kaskade_fan_out_children_requests_total";
/// Time the model thread was busy, by variant.
pub const VARIANT_BUSY: &str = "kaskade_variant_busy_microseconds_total";
/// Tokens that a language model made, by variant.
pub const TOKENS: &str = "kaskade_generated_tokens_total";
/// Of them, the first ones of answers, by variant.
pub const FIRST_TOKENS: &str = "kaskade_first_tokens_total";
/// Time from the arrival of a request at the replica to its first token, in sum, by variant.
pub const TO_FIRST_TOKEN: &str = "kaskade_time_to_first_token_microseconds_total";
/// Time from each token of an answer to the next, in sum, by variant; there are as many as tokens that are not first.
pub const BETWEEN_TOKENS: &str = "kaskade_time_between_tokens_microseconds_total";

/// Energy of a process since its start, idle included, joules; what [`crate::wire::EnergyReport`] tells.
pub const ENERGY: &str = "kaskade_energy_joules_total";
/// The same per request that its replicas ran or its ingress answered.
pub const ENERGY_PER_REQUEST: &str = "kaskade_energy_per_request_joules";
/// A variant's part of the process's joules, by busy time, by variant.
pub const VARIANT_ENERGY: &str = "kaskade_variant_energy_joules_total";

/// Whether a process serves and has permits, 1 or 0; in sum over an app's processes, how many do.
pub const READY: &str = "kaskade_ready_processes";
/// Epoch of the newest plan that a process knows.
pub const PLAN_EPOCH: &str = "kaskade_plan_epoch_number";
/// Requests that an ingress owns and has not answered.
pub const IN_FLIGHT: &str = "kaskade_in_flight_requests";
/// Requests that wait in the queues of a variant's replicas, by variant.
pub const QUEUED: &str = "kaskade_queued_requests";
/// Time from a request's arrival to its result, in sum.
pub const PROCESSING: &str = "kaskade_processing_microseconds_total";

/// Counters of one process.
#[derive(Debug, Default)]
pub struct Metrics {
    arrived: AtomicU64,
    shifts: AtomicU64,
    accepted: AtomicU64,
    answered: AtomicU64,
    retried: AtomicU64,
    stale: AtomicU64,
    queue_full: AtomicU64,
    durable_results: AtomicU64,
    redelivered: AtomicU64,
    dead_letters: AtomicU64,
    processing_us: AtomicU64,
    faults: DashMap<Code, u64>,
    last_fault: Mutex<Option<Fault>>,
    variants: DashMap<String, VariantCount>,
    fan_outs: DashMap<String, FanOuts>,
    energy: Mutex<Option<EnergyReport>>,
}

/// What a variant has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantCount {
    /// Requests run.
    pub requests: u64,
    /// Batches run.
    pub batches: u64,
    /// Time its model threads were busy, microseconds.
    pub busy_us: u64,
    /// What it made, if it is a language model.
    #[serde(default)]
    pub tokens: Tokens,
}

/// The counters at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// [`ARRIVED`].
    pub arrived: u64,
    /// [`SHIFTS`].
    pub shifts: u64,
    /// [`ACCEPTED`].
    pub accepted: u64,
    /// [`ANSWERED`].
    pub answered: u64,
    /// [`RETRIED`].
    pub retried: u64,
    /// [`STALE`].
    pub stale: u64,
    /// [`QUEUE_FULL`].
    pub queue_full: u64,
    /// [`DURABLE_RESULTS`].
    pub durable_results: u64,
    /// [`REDELIVERED`].
    pub redelivered: u64,
    /// [`DEAD_LETTERS`].
    pub dead_letters: u64,
    /// [`FAULTS`], by code.
    pub faults: BTreeMap<String, u64>,
    /// [`VARIANT_REQUESTS`], [`VARIANT_BATCHES`] and [`VARIANT_BUSY`], by variant.
    pub variants: BTreeMap<String, VariantCount>,
    /// [`FAN_OUTS`] and [`FAN_OUT_CHILDREN`], by variant.
    pub fan_outs: BTreeMap<String, FanOuts>,
    /// [`ENERGY`], [`ENERGY_PER_REQUEST`] and, by variant, [`VARIANT_ENERGY`], as last metered; nothing where nobody meters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyReport>,
}

impl Metrics {
    pub(crate) fn arrived(&self) {
        self.arrived.fetch_add(1, Relaxed);
    }

    /// Requests that came so far.
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrived.load(Relaxed)
    }

    pub(crate) fn result_stored(&self) {
        self.durable_results.fetch_add(1, Relaxed);
    }

    pub(crate) fn redelivered(&self) {
        self.redelivered.fetch_add(1, Relaxed);
    }

    pub(crate) fn dead_lettered(&self) {
        self.dead_letters.fetch_add(1, Relaxed);
    }

    pub(crate) fn shifted(&self) {
        self.shifts.fetch_add(1, Relaxed);
    }

    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    pub(crate) fn answered(&self, in_flight_us: u64) {
        self.answered.fetch_add(1, Relaxed);
        self.processing_us.fetch_add(in_flight_us, Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retried.fetch_add(1, Relaxed);
    }

    pub(crate) fn stale(&self) {
        self.stale.fetch_add(1, Relaxed);
    }

    pub(crate) fn queue_full(&self) {
        self.queue_full.fetch_add(1, Relaxed);
    }

    pub(crate) fn fault(&self, fault: &Fault) {
        *self.faults.entry(fault.code).or_default() += 1;
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(fault.clone());
    }

    pub(crate) fn batch(&self, variant: &str, size: usize, result: &BatchResult) {
        self.count(variant, |count| {
            count.requests += size as u64;
            count.batches += 1;
            count.busy_us += result.run_us;
        });
    }

    /// A step of a language model.
    pub(crate) fn step(&self, variant: &str, run_us: u64) {
        self.count(variant, |count| {
            count.batches += 1;
            count.busy_us += run_us;
        });
    }

    /// Tokens of a language model.
    pub(crate) fn tokens(&self, variant: &str, tokens: &Tokens) {
        self.count(variant, |count| {
            count.tokens.count += tokens.count;
            count.tokens.first += tokens.first;
            count.tokens.to_first_us += tokens.to_first_us;
            count.tokens.between_us += tokens.between_us;
        });
    }

    /// An answer of a language model that is whole.
    pub(crate) fn generated(&self, variant: &str) {
        self.count(variant, |count| count.requests += 1);
    }

    fn count(&self, variant: &str, change: impl FnOnce(&mut VariantCount)) {
        if !self.variants.contains_key(variant) {
            self.variants.insert(variant.to_owned(), VariantCount::default());
        }
        if let Some(mut count) = self.variants.get_mut(variant) {
            change(&mut count);
        }
    }

    pub(crate) fn count_fan_out(&self, variant: &str, children: &BTreeMap<String, u32>) {
        let mut fan_outs = self.fan_outs.entry(variant.to_owned()).or_default();
        fan_outs.requests += 1;
        for (task, count) in children {
            *fan_outs.children.entry(task.clone()).or_default() += u64::from(*count);
        }
    }

    pub(crate) fn metered(&self, report: EnergyReport) {
        *self.energy.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
    }

    /// [`FAN_OUTS`] and [`FAN_OUT_CHILDREN`] now, by variant.
    pub(crate) fn fan_outs(&self) -> BTreeMap<String, FanOuts> {
        let fan_outs = self.fan_outs.iter();
        fan_outs
            .map(|entry| (entry.key().clone(), entry.value().clone()))
            .collect()
    }

    /// Batches of each variant that is no language model, and how long they took.
    pub(crate) fn runs(&self) -> BTreeMap<String, Runs> {
        let variants = self.variants.iter();
        let run = variants.filter(|entry| entry.tokens.count == 0 && entry.batches > 0);
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

    /// Time between the arrival of answered requests and their results, summed, microseconds.
    pub(crate) fn processing_us(&self) -> u64 {
        self.processing_us.load(Relaxed)
    }

    /// The newest fault that a request was answered or refused with.
    pub(crate) fn last_fault(&self) -> Option<Fault> {
        self.last_fault
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// All counters now.
    pub fn read(&self) -> Snapshot {
        Snapshot {
            arrived: self.arrived.load(Relaxed),
            shifts: self.shifts.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            answered: self.answered.load(Relaxed),
            retried: self.retried.load(Relaxed),
            stale: self.stale.load(Relaxed),
            queue_full: self.queue_full.load(Relaxed),
            durable_results: self.durable_results.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            dead_letters: self.dead_letters.load(Relaxed),
            faults: self
                .faults
                .iter()
                .map(|entry| (entry.key().to_string(), *entry.value()))
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
