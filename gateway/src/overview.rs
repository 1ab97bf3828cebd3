//! Overview of a running app from its heartbeats, energy reports, ingress counters and gear shifts.
//!
//! Rates are differences between a process's oldest and newest report of the last few seconds, over the process's clock. The reports
//! of a process before its restart are discarded, and so are those of a process that sends no more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use kaskade_actors::wire::EnergyReport;
use kaskade_actors::wire::Tokens;
use kaskade_actors::wire::{Beat, GearShift, WatchReport};
use kaskade_policy::energy;
use serde::Serialize;

/// Window of the rates.
const WINDOW: Duration = Duration::from_secs(5);

/// Time without a report after which a process is discarded; reports come every second.
const SILENCE: Duration = Duration::from_secs(4);

/// What an ingress has counted since it started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counts {
    /// Requests that arrived, accepted or not.
    pub arrived: u64,
    /// Requests answered with a result.
    pub answered: u64,
    /// Requests answered or refused with an error.
    pub errors: u64,
    /// Attempts that were sent again.
    pub retried: u64,
    /// Time between arrival and answer, over all answers.
    pub processing: Duration,
}

/// The last few reports of one process, with their times.
#[derive(Debug)]
struct Told<T>(VecDeque<(Duration, T)>);

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Told<T> {
    /// Adds a report. `follows` returns whether it continues the last one, which it does not after a restart.
    fn add(&mut self, now: Duration, told: T, follows: impl Fn(&T, &T) -> bool) {
        if self.0.back().is_some_and(|(_, last)| !follows(last, &told)) {
            self.0.clear();
        }
        self.0.push_back((now, told));
        while self.0.len() > 2 && self.0.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.0.pop_front();
        }
    }

    fn newest(&self) -> Option<&T> {
        self.0.back().map(|(_, told)| told)
    }

    /// Returns the oldest report, the newest, and the seconds between them; `None` with fewer than two reports.
    fn ends(&self) -> Option<(&T, &T, f64)> {
        let (from, first) = self.0.front()?;
        let (until, last) = self.0.back()?;
        let seconds = until.saturating_sub(*from).as_secs_f64();
        (self.0.len() > 1).then_some((first, last, seconds))
    }

    fn silent(&self, now: Duration) -> bool {
        self.0.back().is_none_or(|(at, _)| *at + SILENCE < now)
    }
}

/// All recent reports of an app. Times are the caller's, since any origin.
#[derive(Debug, Default)]
pub struct Overview {
    energy: BTreeMap<String, Told<EnergyReport>>,
    counts: BTreeMap<String, Told<Counts>>,
    beats: BTreeMap<String, Told<Beat>>,
    gear: Option<GearShift>,
    certificates: Option<WatchReport>,
}

impl Overview {
    /// Adds the energy report of a process.
    pub fn energy(&mut self, now: Duration, report: EnergyReport) {
        let told = self.energy.entry(report.node.clone()).or_default();
        told.add(now, report, |last, next| last.wall_s <= next.wall_s);
    }

    /// Adds the counters of an ingress.
    pub fn counts(&mut self, now: Duration, ingress: &str, counts: Counts) {
        let told = self.counts.entry(ingress.to_owned()).or_default();
        told.add(now, counts, |last, next| last.arrived <= next.arrived);
    }

    /// Adds the heartbeat of an actor.
    pub fn beat(&mut self, now: Duration, beat: Beat) {
        let told = self.beats.entry(beat.actor.clone()).or_default();
        told.add(now, beat, |_, _| true);
    }

    /// Sets the gear in force.
    pub fn shifted(&mut self, shift: GearShift) {
        self.gear = Some(shift);
    }

    /// Sets what is known of the plan's certificates.
    pub fn watched(&mut self, report: WatchReport) {
        self.certificates = Some(report);
    }

    /// Returns the state of the app now.
    pub fn look(&mut self, app: &str, now: Duration) -> Look {
        self.energy.retain(|_, told| !told.silent(now));
        self.counts.retain(|_, told| !told.silent(now));
        self.beats.retain(|_, told| !told.silent(now));
        let nodes: Vec<NodeRow> = self.energy.values().filter_map(node).collect();
        let ingresses = self.ingresses();
        let watts = all(nodes.iter().map(|node| node.watts));
        let answered = ingresses.as_ref().map(|rates| rates.answered_per_s);
        let newest = self.beats.values().filter_map(Told::newest);
        Look {
            app: app.to_owned(),
            epoch: newest.map(|beat| beat.epoch).max().unwrap_or(0),
            gear: self.gear.map(|shift| shift.gear),
            watts,
            joules_per_request: watts
                .zip(answered)
                .filter(|(_, rate)| *rate > 0.0)
                .map(|(watts, rate)| watts / rate),
            ingresses,
            models: self.models(),
            nodes,
            certificates: self.certificates.clone(),
        }
    }

    fn ingresses(&self) -> Option<IngressRates> {
        let mut sum: Option<IngressRates> = None;
        let mut busy_s = 0.0;
        for (first, last, seconds) in self.counts.values().filter_map(Told::ends) {
            if seconds <= 0.0 {
                continue;
            }
            let rate = |first: u64, last: u64| last.saturating_sub(first) as f64 / seconds;
            let rates = sum.get_or_insert_default();
            rates.count += 1;
            rates.arrived_per_s += rate(first.arrived, last.arrived);
            rates.answered_per_s += rate(first.answered, last.answered);
            rates.errors_per_s += rate(first.errors, last.errors);
            rates.retried_per_s += rate(first.retried, last.retried);
            busy_s += last.processing.saturating_sub(first.processing).as_secs_f64() / seconds;
        }
        if let Some(rates) = &mut sum {
            rates.mean_latency_s = (rates.answered_per_s > 0.0).then_some(busy_s / rates.answered_per_s);
        }
        sum
    }

    fn models(&self) -> Vec<ModelRow> {
        let mut rows: BTreeMap<&str, ModelRow> = BTreeMap::new();
        for beat in self.beats.values().filter_map(Told::newest) {
            for replica in beat.replicas.iter().filter(|replica| !replica.variant.is_empty()) {
                let row = rows.entry(&replica.variant).or_default();
                row.replicas += 1;
                row.queue += u64::from(replica.queue);
                row.in_flight += u64::from(replica.in_flight);
            }
        }
        for told in self.energy.values() {
            if let Some((first, last, _)) = told.ends() {
                add_rates(&mut rows, first, last);
            }
        }
        let named = rows.into_iter().map(|(variant, row)| ModelRow {
            variant: variant.to_owned(),
            ..row
        });
        named.collect()
    }
}

/// Adds the rates of one process's models between two of its reports.
fn add_rates<'a>(rows: &mut BTreeMap<&'a str, ModelRow>, first: &'a EnergyReport, last: &'a EnergyReport) {
    let seconds = last.wall_s - first.wall_s;
    if seconds <= 0.0 {
        return;
    }
    let before = |model: &str| first.models.get(model).cloned().unwrap_or_default();
    let busy = last
        .models
        .iter()
        .map(|(name, now)| (name.as_str(), now.busy_s - before(name).busy_s));
    let joules = last.joules.zip(first.joules).map(|(last, first)| last - first);
    let busy: BTreeMap<&str, f64> = busy.collect();
    let shares = energy::attributed(joules, &busy);
    for (name, now) in &last.models {
        let then = before(name);
        let row = rows.entry(name).or_default();
        row.requests_per_s += now.requests.saturating_sub(then.requests) as f64 / seconds;
        row.batches_per_s += now.batches.saturating_sub(then.batches) as f64 / seconds;
        row.busy += (now.busy_s - then.busy_s) / seconds;
        row.made = sum(&row.made, &since(&now.tokens, &then.tokens));
        row.tokens_per_s += now.tokens.count.saturating_sub(then.tokens.count) as f64 / seconds;
        row.watts = shares
            .get(name.as_str())
            .map(|joules| row.watts.unwrap_or_default() + joules / seconds);
    }
}

fn since(now: &Tokens, then: &Tokens) -> Tokens {
    Tokens {
        count: now.count.saturating_sub(then.count),
        first: now.first.saturating_sub(then.first),
        to_first_us: now.to_first_us.saturating_sub(then.to_first_us),
        between_us: now.between_us.saturating_sub(then.between_us),
    }
}

fn sum(one: &Tokens, other: &Tokens) -> Tokens {
    Tokens {
        count: one.count + other.count,
        first: one.first + other.first,
        to_first_us: one.to_first_us + other.to_first_us,
        between_us: one.between_us + other.between_us,
    }
}

fn node(told: &Told<EnergyReport>) -> Option<NodeRow> {
    let newest = told.newest()?;
    let between = told.ends().and_then(|(first, last, _)| {
        let seconds = last.wall_s - first.wall_s;
        (seconds > 0.0).then_some((first, last, seconds))
    });
    let joules = |(first, last, seconds): (&EnergyReport, &EnergyReport, f64)| {
        let joules = last.joules.zip(first.joules)?;
        Some((joules.0 - joules.1) / seconds)
    };
    Some(NodeRow {
        node: newest.node.clone(),
        source: newest.source.clone(),
        watts: between.and_then(joules),
        joules: newest.joules,
        cores: between.map(|(first, last, seconds)| (last.busy_core_s - first.busy_core_s) / seconds),
        models: newest.models.len(),
    })
}

/// Sums the parts; `None` if one is unknown or there is none.
fn all(parts: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let parts: Option<Vec<f64>> = parts.collect();
    parts
        .filter(|parts| !parts.is_empty())
        .map(|parts| parts.iter().sum())
}

/// An app at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Look {
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
    /// Rates over all ingresses; `None` if no ingress reports.
    pub ingresses: Option<IngressRates>,
    /// By variant.
    pub models: Vec<ModelRow>,
    /// By process.
    pub nodes: Vec<NodeRow>,
    /// What is known of the certificates of the running plan; absent without a certified list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<WatchReport>,
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

/// A process that reports energy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// Source of its energy readings.
    pub source: String,
    /// Power, watts.
    pub watts: Option<f64>,
    /// Energy since its start, joules.
    pub joules: Option<f64>,
    /// Processor time per second.
    pub cores: Option<f64>,
    /// Variants that have run there.
    pub models: usize,
}

#[cfg(test)]
#[path = "overview_tests.rs"]
mod tests;
