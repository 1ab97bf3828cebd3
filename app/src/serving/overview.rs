//! What an app is doing right now, put together from what its actors tell: heartbeats, energy reports, counters of the ingresses, gear
//! shifts.
//!
//! Rates are differences between a process's oldest and newest report of the last few seconds, over its own clock. A process that
//! starts again starts anew here too; one that says nothing any more is forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use kaskade_actors::wire::EnergyReport;
use kaskade_actors::wire::Tokens;
use kaskade_actors::wire::{Beat, GearShift};
use kaskade_policy::energy;
use serde::Serialize;

/// How far back rates look.
const WINDOW: Duration = Duration::from_secs(5);

/// How long somebody may say nothing before they are gone: reports come every second.
const SILENCE: Duration = Duration::from_secs(4);

/// What an ingress has counted since it started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Counts {
    /// Requests that came, accepted or not.
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

/// The last few things that somebody told, with when they were told.
#[derive(Debug)]
struct Told<T>(VecDeque<(Duration, T)>);

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Told<T> {
    /// Takes in what is told now. `follows` says whether it goes on where the last one ended.
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

    /// The oldest, the newest, and the seconds between when they were told; unless they are one.
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

/// Everything told so far. Time is the caller's, from any beginning.
#[derive(Debug, Default)]
pub struct Overview {
    energy: BTreeMap<String, Told<EnergyReport>>,
    counts: BTreeMap<String, Told<Counts>>,
    beats: BTreeMap<String, Told<Beat>>,
    gear: Option<GearShift>,
}

impl Overview {
    /// A process told what it has spent.
    pub fn energy(&mut self, now: Duration, report: EnergyReport) {
        let told = self.energy.entry(report.node.clone()).or_default();
        told.add(now, report, |last, next| last.wall_s <= next.wall_s);
    }

    /// An ingress told what it has counted.
    pub fn counts(&mut self, now: Duration, ingress: &str, counts: Counts) {
        let told = self.counts.entry(ingress.to_owned()).or_default();
        told.add(now, counts, |last, next| last.arrived <= next.arrived);
    }

    /// An actor showed a sign of life.
    pub fn beat(&mut self, now: Duration, beat: Beat) {
        let told = self.beats.entry(beat.actor.clone()).or_default();
        told.add(now, beat, |_, _| true);
    }

    /// The shifter said which gear is in force.
    pub fn shifted(&mut self, shift: GearShift) {
        self.gear = Some(shift);
    }

    /// All of it, as it is now.
    pub fn look(&mut self, app: &str, now: Duration) -> Look {
        self.energy.retain(|_, told| !told.silent(now));
        self.counts.retain(|_, told| !told.silent(now));
        self.beats.retain(|_, told| !told.silent(now));
        let nodes: Vec<NodeRow> = self.energy.values().filter_map(node).collect();
        let doors = self.doors();
        let watts = all(nodes.iter().map(|node| node.watts));
        let answered = doors.as_ref().map(|doors| doors.answered_per_s);
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
            doors,
            models: self.models(),
            nodes,
        }
    }

    fn doors(&self) -> Option<Doors> {
        let mut doors: Option<Doors> = None;
        let mut busy_s = 0.0;
        for (first, last, seconds) in self.counts.values().filter_map(Told::ends) {
            if seconds <= 0.0 {
                continue;
            }
            let rate = |first: u64, last: u64| last.saturating_sub(first) as f64 / seconds;
            let doors = doors.get_or_insert_default();
            doors.ingresses += 1;
            doors.arrived_per_s += rate(first.arrived, last.arrived);
            doors.answered_per_s += rate(first.answered, last.answered);
            doors.errors_per_s += rate(first.errors, last.errors);
            doors.retried_per_s += rate(first.retried, last.retried);
            busy_s += last.processing.saturating_sub(first.processing).as_secs_f64() / seconds;
        }
        if let Some(doors) = &mut doors {
            doors.mean_latency_s = (doors.answered_per_s > 0.0).then_some(busy_s / doors.answered_per_s);
        }
        doors
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

/// Adds what the models of one process did between two of its reports.
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

/// The sum; unknown if a part of it is, or if there is none.
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
    /// The newest epoch that anybody knows.
    pub epoch: u64,
    /// The gear in force, if the plan has several.
    pub gear: Option<u32>,
    /// Power of all processes that meter, those without work too, watts; unknown if one's is.
    pub watts: Option<f64>,
    /// Joules per answered request over all processes, idle ones too.
    pub joules_per_request: Option<f64>,
    /// What passes the doors; `None` where no ingress tells.
    pub doors: Option<Doors>,
    /// By variant.
    pub models: Vec<ModelRow>,
    /// By process.
    pub nodes: Vec<NodeRow>,
}

/// All ingresses together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Doors {
    /// How many there are.
    pub ingresses: usize,
    /// Requests that came, per second.
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
    /// Requests that wait.
    pub queue: u64,
    /// Requests not answered yet, in queue or batch.
    pub in_flight: u64,
    /// Requests run per second.
    pub requests_per_s: f64,
    /// Batches run per second.
    pub batches_per_s: f64,
    /// Busy time per second, over all replicas.
    pub busy: f64,
    /// Its part of the processes' power, by busy time, watts.
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

/// A process that meters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// What its joules are read from.
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
