//! What is known of an app at one moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use kaskade_actors::wire::{CertificateNotice, CertificateReport, Heartbeat, LoadDriftNotice, ShiftReport};
use kaskade_app::serving::overview::{AppSnapshot, Overview};
use kaskade_policy::plan::{Gear, Plan};

use super::feed::Event;

/// Refreshes that the load is shown of.
const HISTORY: usize = 240;

/// Gear shifts that are kept.
const SHIFTS: usize = 5;

/// Findings about certificates that are kept.
const FINDINGS: usize = 50;

/// Time without a heartbeat after which a replica counts as silent; actors send several per second.
const SILENT: Duration = Duration::from_secs(3);

/// Time without a heartbeat after which an actor is forgotten.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// State of a replica, the ones to look at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Liveness {
    /// Its worker sends no heartbeats.
    Silent,
    /// An ingress avoids it: its endpoint is down, or it is lost.
    Unavailable,
    /// Its worker shuts down.
    Leaving,
    /// It answers.
    Live,
}

impl Liveness {
    pub(super) const ALL: [Self; 4] = [Self::Silent, Self::Unavailable, Self::Leaving, Self::Live];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Unavailable => "unavailable",
            Self::Leaving => "leaving",
            Self::Live => "live",
        }
    }
}

/// A replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replica {
    pub(super) id: String,
    pub(super) variant: String,
    pub(super) worker: String,
    pub(super) liveness: Liveness,
    pub(super) queue: u32,
    pub(super) in_flight: u32,
}

/// One refresh of the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) arrived_per_s: f64,
    pub(super) gear: Option<u32>,
}

/// An app, as its processes tell of it.
pub(super) struct View {
    app: String,
    begun: Instant,
    overview: Overview,
    beats: BTreeMap<String, (Duration, Heartbeat)>,
    avoided: BTreeMap<String, BTreeSet<String>>,
    pub(super) snapshot: AppSnapshot,
    pub(super) plan: Option<(u64, Plan)>,
    /// The newest gear shifts with their times, the newest last.
    pub(super) shifts: VecDeque<(Duration, ShiftReport)>,
    pub(super) history: VecDeque<Point>,
    /// Replicas, those to look at first.
    pub(super) replicas: Vec<Replica>,
    /// Errors since the start of the ingresses, by ingress and code.
    faults: BTreeMap<String, Vec<(String, u64)>>,
    pub(super) last_error: Option<String>,
    /// The newest report that the load has drifted from the plan, with its time.
    pub(super) load_drift: Option<(Duration, LoadDriftNotice)>,
    /// The newest findings about the certificates of the plan with their times, the newest last.
    pub(super) findings: VecDeque<(Duration, CertificateNotice)>,
    /// Time of the last refresh.
    pub(super) now: Duration,
}

impl View {
    /// Nothing is known yet.
    pub(super) fn new(app: &str) -> Self {
        let mut overview = Overview::default();
        Self {
            snapshot: overview.snapshot(app, Duration::ZERO),
            app: app.to_owned(),
            begun: Instant::now(),
            overview,
            beats: BTreeMap::new(),
            avoided: BTreeMap::new(),
            plan: None,
            shifts: VecDeque::new(),
            history: VecDeque::new(),
            replicas: Vec::new(),
            faults: BTreeMap::new(),
            last_error: None,
            load_drift: None,
            findings: VecDeque::new(),
            now: Duration::ZERO,
        }
    }

    /// Adds a message.
    pub(super) fn take(&mut self, event: Event) {
        self.take_at(self.begun.elapsed(), event);
    }

    /// Adds a message that arrived at a time since the start.
    pub(super) fn take_at(&mut self, now: Duration, event: Event) {
        match event {
            Event::Beat(beat) => {
                self.beats.insert(beat.actor.clone(), (now, beat.clone()));
                self.overview.beat(now, beat);
            }
            Event::Energy(report) => self.overview.energy(now, report),
            Event::Gear(shift) => self.overview.shifted(shift),
            Event::Shifted(report) => {
                self.shifts.push_back((now, report));
                if self.shifts.len() > SHIFTS {
                    self.shifts.pop_front();
                }
            }
            Event::Ingress(state) if state.gone => {
                self.avoided.remove(&state.ingress);
            }
            Event::Ingress(state) => {
                self.avoided
                    .insert(state.ingress, state.unavailable.into_iter().collect());
            }
            Event::Stats(stats) => {
                self.overview.counts(now, &stats.ingress, stats.counts);
                self.faults.insert(stats.ingress, stats.faults);
                self.last_error = stats.last_error.or(self.last_error.take());
            }
            Event::Plan(epoch, plan) => {
                // What drifted from the plan before says nothing of a new one.
                self.load_drift.take_if(|(_, drift)| drift.epoch != epoch);
                self.findings.retain(|(_, notice)| notice.epoch == epoch);
                self.plan = Some((epoch, *plan));
            }
            Event::LoadDrift(drift) => self.load_drift = Some((now, drift)),
            Event::Certificates(report) => self.overview.record_certificates(report),
            Event::Finding(notice) => {
                self.findings.push_back((now, notice));
                if self.findings.len() > FINDINGS {
                    self.findings.pop_front();
                }
            }
            Event::Nothing => {}
        }
    }

    /// Computes what is shown.
    pub(super) fn refresh(&mut self) {
        self.refresh_at(self.begun.elapsed());
    }

    /// Computes what is shown at a time since the start.
    pub(super) fn refresh_at(&mut self, now: Duration) {
        self.now = now;
        self.snapshot = self.overview.snapshot(&self.app, now);
        self.history.push_back(Point {
            arrived_per_s: self.snapshot.ingresses.map_or(0.0, |rates| rates.arrived_per_s),
            gear: self.snapshot.gear,
        });
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        self.beats.retain(|_, (at, _)| *at + FORGOTTEN > now);
        self.replicas = self.listed(now);
    }

    fn listed(&self, now: Duration) -> Vec<Replica> {
        let avoided: BTreeSet<&String> = self.avoided.values().flatten().collect();
        let mut rows = Vec::new();
        for (at, beat) in self.beats.values() {
            for replica in beat.replicas.iter().filter(|replica| !replica.variant.is_empty()) {
                let liveness = if *at + SILENT < now {
                    Liveness::Silent
                } else if beat.leaving {
                    Liveness::Leaving
                } else if replica.unavailable || avoided.contains(&replica.id) {
                    Liveness::Unavailable
                } else {
                    Liveness::Live
                };
                rows.push(Replica {
                    id: replica.id.clone(),
                    variant: replica.variant.clone(),
                    worker: beat.actor.clone(),
                    liveness,
                    queue: replica.queue,
                    in_flight: replica.in_flight,
                });
            }
        }
        rows.sort_by(|one, other| {
            let key = |row: &Replica| (row.liveness, u32::MAX - row.queue);
            key(one).cmp(&key(other)).then_with(|| one.id.cmp(&other.id))
        });
        rows
    }

    /// The gear in force, with its index.
    pub(super) fn gear(&self) -> Option<(usize, &Gear)> {
        let (_, plan) = self.plan.as_ref()?;
        let index = self.snapshot.gear.unwrap_or(0) as usize;
        Some((index, plan.gears.get(index)?))
    }

    /// What is known of the certificates of the plan.
    pub(super) const fn certificates(&self) -> Option<&CertificateReport> {
        self.snapshot.certificates.as_ref()
    }

    /// Errors since the start of the ingresses, by code.
    pub(super) fn errors(&self) -> BTreeMap<&str, u64> {
        let mut errors = BTreeMap::new();
        for (code, count) in self.faults.values().flatten() {
            *errors.entry(code.as_str()).or_default() += count;
        }
        errors
    }

    /// Number of ingresses that tell their state.
    pub(super) fn ingresses(&self) -> usize {
        self.avoided.len()
    }
}
