//! Overview of a running app from its heartbeats, energy reports, ingress counters and gear shifts.
//!
//! Rates are differences between the oldest and the newest report of a process in the last few seconds, divided by the
//! time on the process's clock. Reports from before a restart, and those of silent processes, are discarded.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use kaskade_actors::metrics;
use kaskade_actors::wire::{CertificateReport, EnergyReport, GearShift, Heartbeat, ModelEnergy, Tokens};
use kaskade_policy::energy;
use kaskade_policy::remote::price::CostSource;

mod rows;
mod shared_counters;

pub use rows::{AppSnapshot, EdgeRow, IngressRates, ModelRow, NodeRow};

/// Window of the rates.
const WINDOW: Duration = Duration::from_secs(5);

/// Time without a report after which a process is discarded; processes report every second.
const SILENCE: Duration = Duration::from_secs(4);

/// Counters of an ingress since it started.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Counts {
    /// Requests that arrived, accepted or not.
    pub arrived: u64,
    /// Requests answered with a result.
    pub answered: u64,
    /// Requests answered or refused with an error.
    pub errors: u64,
    /// Attempts that were retried.
    pub retried: u64,
    /// Time between arrival and answer, summed over all answers.
    pub processing: Duration,
    /// Latency counts by bucket, for [`kaskade_actors::metrics::quantile`].
    pub latencies: Vec<u64>,
}

/// Recent reports of one process, with their times.
#[derive(Debug)]
struct ReportHistory<T>(VecDeque<(Duration, T)>);

impl<T> Default for ReportHistory<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> ReportHistory<T> {
    /// Adds a report. `follows` returns whether it continues the last one; if not, the process has restarted and older
    /// reports are dropped.
    fn add(&mut self, now: Duration, report: T, follows: impl Fn(&T, &T) -> bool) {
        if self.0.back().is_some_and(|(_, last)| !follows(last, &report)) {
            self.0.clear();
        }
        self.0.push_back((now, report));
        while self.0.len() > 2 && self.0.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.0.pop_front();
        }
    }

    fn newest(&self) -> Option<&T> {
        self.0.back().map(|(_, report)| report)
    }

    /// Returns the oldest and the newest report, and the seconds between them; `None` with fewer than two reports.
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

/// Recent reports of an app. Times have an origin chosen by the caller.
#[derive(Debug, Default)]
pub struct Overview {
    energy: BTreeMap<String, ReportHistory<EnergyReport>>,
    counts: BTreeMap<String, ReportHistory<Counts>>,
    beats: BTreeMap<String, ReportHistory<Heartbeat>>,
    gear: Option<GearShift>,
    certificates: Option<CertificateReport>,
}

impl Overview {
    /// Adds the energy report of a process.
    pub fn energy(&mut self, now: Duration, report: EnergyReport) {
        let history = self.energy.entry(report.node.clone()).or_default();
        history.add(now, report, |last, next| last.wall_s <= next.wall_s);
    }

    /// Adds the counters of an ingress.
    pub fn counts(&mut self, now: Duration, ingress: &str, counts: Counts) {
        let history = self.counts.entry(ingress.to_owned()).or_default();
        history.add(now, counts, |last, next| last.arrived <= next.arrived);
    }

    /// Adds the heartbeat of an actor.
    pub fn beat(&mut self, now: Duration, beat: Heartbeat) {
        let history = self.beats.entry(beat.actor.clone()).or_default();
        history.add(now, beat, |_, _| true);
    }

    /// Sets the current gear.
    pub fn shifted(&mut self, shift: GearShift) {
        self.gear = Some(shift);
    }

    /// Sets the state of the plan's certificates.
    pub fn record_certificates(&mut self, report: CertificateReport) {
        self.certificates = Some(report);
    }

    /// Returns the state of the app now.
    pub fn snapshot(&mut self, app: &str, now: Duration) -> AppSnapshot {
        self.energy.retain(|_, history| !history.silent(now));
        self.counts.retain(|_, history| !history.silent(now));
        self.beats.retain(|_, history| !history.silent(now));
        let nodes = shared_counters::divided(self.energy.values().filter_map(node).collect());
        let ingresses = self.ingresses();
        let watts = all(nodes.iter().map(|node| node.watts));
        let answered = ingresses.as_ref().map(|rates| rates.answered_per_s);
        let models = self.models(&nodes);
        let (money, money_source) = money(&models).unzip();
        let newest = self.beats.values().filter_map(ReportHistory::newest);
        let epoch = newest.map(|beat| beat.epoch).max().unwrap_or(0);
        // Certificate reports of another plan do not apply.
        let certificates = self.certificates.as_ref().filter(|report| report.epoch == epoch);
        AppSnapshot {
            app: app.to_owned(),
            epoch,
            gear: self.gear.map(|shift| shift.gear),
            watts,
            joules_per_request: watts
                .zip(answered)
                .filter(|(_, rate)| *rate > 0.0)
                .map(|(watts, rate)| watts / rate),
            money_per_request: money
                .zip(answered)
                .filter(|(_, rate)| *rate > 0.0)
                .map(|(money, rate)| money / rate),
            money_source,
            edges: self.edges(),
            ingresses,
            models,
            nodes,
            certificates: certificates.cloned(),
        }
    }

    fn ingresses(&self) -> Option<IngressRates> {
        let mut sum: Option<IngressRates> = None;
        let mut busy_s = 0.0;
        let mut latencies: Vec<u64> = Vec::new();
        for (first, last, seconds) in self.counts.values().filter_map(ReportHistory::ends) {
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
            for (bucket, count) in last.latencies.iter().enumerate() {
                if latencies.len() <= bucket {
                    latencies.push(0);
                }
                let before = first.latencies.get(bucket).copied().unwrap_or_default();
                if let Some(sum) = latencies.get_mut(bucket) {
                    *sum += count.saturating_sub(before);
                }
            }
            busy_s += last.processing.saturating_sub(first.processing).as_secs_f64() / seconds;
        }
        if let Some(rates) = &mut sum {
            rates.mean_latency_s = (rates.answered_per_s > 0.0).then_some(busy_s / rates.answered_per_s);
            [rates.p50_s, rates.p95_s, rates.p99_s] =
                [0.5, 0.95, 0.99].map(|share| metrics::quantile(&latencies, share));
        }
        sum
    }

    fn edges(&self) -> Vec<EdgeRow> {
        let mut rates: BTreeMap<(&str, &str), f64> = BTreeMap::new();
        for (first, last, _) in self.energy.values().filter_map(ReportHistory::ends) {
            let seconds = last.wall_s - first.wall_s;
            if seconds <= 0.0 {
                continue;
            }
            for (from, targets) in &last.forwarded {
                let before = first.forwarded.get(from);
                for (to, count) in targets {
                    let before = before.and_then(|before| before.get(to)).copied().unwrap_or(0);
                    *rates.entry((from, to)).or_default() += count.saturating_sub(before) as f64 / seconds;
                }
            }
        }
        let rows = rates.into_iter().map(|((from, to), per_s)| EdgeRow {
            from: from.to_owned(),
            to: to.to_owned(),
            per_s,
        });
        rows.collect()
    }

    /// Returns the rows of the variants. `nodes` have each process's share of the energy that it read.
    fn models(&self, nodes: &[NodeRow]) -> Vec<ModelRow> {
        let mut rows: BTreeMap<&str, ModelRow> = BTreeMap::new();
        for beat in self.beats.values().filter_map(ReportHistory::newest) {
            for replica in beat.replicas.iter().filter(|replica| !replica.variant.is_empty()) {
                let row = rows.entry(&replica.variant).or_default();
                row.replicas += 1;
                row.queue += u64::from(replica.queue);
                row.in_flight += u64::from(replica.in_flight);
            }
        }
        for history in self.energy.values() {
            if let Some((first, last, _)) = history.ends() {
                let node = nodes.iter().find(|node| node.node == last.node);
                add_rates(&mut rows, first, last, node.and_then(|node| node.watts));
            }
        }
        let named = rows.into_iter().map(|(variant, row)| ModelRow {
            variant: variant.to_owned(),
            ..row
        });
        named.collect()
    }
}

/// Adds the rates of one process's models between two of its reports, during which it used `watts`.
fn add_rates<'a>(
    rows: &mut BTreeMap<&'a str, ModelRow>,
    first: &'a EnergyReport,
    last: &'a EnergyReport,
    watts: Option<f64>,
) {
    let seconds = last.wall_s - first.wall_s;
    if seconds <= 0.0 {
        return;
    }
    let before = |model: &str| first.models.get(model).cloned().unwrap_or_default();
    let busy = last
        .models
        .iter()
        .map(|(name, now)| (name.as_str(), now.busy_s - before(name).busy_s));
    let joules = watts.map(|watts| watts * seconds);
    let busy: BTreeMap<&str, f64> = busy.collect();
    let shares = energy::energy_by_variant(joules, &busy);
    for (name, now) in &last.models {
        let then = before(name);
        let row = rows.entry(name).or_default();
        add_money(row, &then, now, seconds);
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

/// Adds the cost of a variant's requests between two reports. If the cost of one request is unknown, the sum is
/// unknown.
fn add_money(row: &mut ModelRow, then: &ModelEnergy, now: &ModelEnergy, seconds: f64) {
    let requests = now.requests.saturating_sub(then.requests);
    if requests == 0 {
        return;
    }
    let known = now.priced.saturating_sub(then.priced) >= requests;
    let billionths = now.spent.billionths.saturating_sub(then.spent.billionths);
    let before = if row.requests_per_s > 0.0 {
        row.money_per_s
    } else {
        Some(0.0)
    };
    row.money_per_s = before
        .filter(|_| known)
        .map(|before| before + billionths as f64 / 1e9 / seconds);
    row.money_source = row
        .money_per_s
        .and_then(|_| row.money_source.max(now.spent.source));
}

/// Returns the money per second of all variants, with its least certain source; `None` if the cost of an active variant
/// is unknown.
fn money(models: &[ModelRow]) -> Option<(f64, CostSource)> {
    let running = models.iter().filter(|row| row.requests_per_s > 0.0);
    let parts: Option<Vec<(f64, CostSource)>> =
        running.map(|row| row.money_per_s.zip(row.money_source)).collect();
    let parts = parts?;
    let source = parts.iter().map(|(_, source)| *source).max()?;
    Some((parts.iter().map(|(money, _)| money).sum(), source))
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

fn node(history: &ReportHistory<EnergyReport>) -> Option<NodeRow> {
    let newest = history.newest()?;
    let between = history.ends().and_then(|(first, last, _)| {
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
        counter: newest.counter.clone(),
        watts: between.and_then(joules),
        joules: newest.joules,
        cores: between.map(|(first, last, seconds)| (last.busy_core_s - first.busy_core_s) / seconds),
        models: newest.models.len(),
    })
}

/// Sums the parts; `None` if one is unknown or there are none.
fn all(parts: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let parts: Option<Vec<f64>> = parts.collect();
    parts
        .filter(|parts| !parts.is_empty())
        .map(|parts| parts.iter().sum())
}

#[cfg(test)]
mod tests;
