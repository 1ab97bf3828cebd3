//! When a planner plans without a request: periodically, or at every observation of a pipeline (Loki §4). The
//! planning function decides whether an observation leads to a new plan (`kaskade_planners::manager`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_policy::arrivals::ArrivalCounter;
use kaskade_policy::demand::Periods;
use kaskade_policy::liveness::{CHECK_PERIOD_US, Liveness};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    bus::{Bus, BusError},
    control::heartbeats::Heartbeats,
    dispatch::dispatcher::Dispatcher,
    subjects::event::LOAD,
    wire::{FanOuts, Heartbeat, LoadCount, Message as _, Observation, PlanRequest, Runs},
};

/// Trigger for planning without a request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ReplanTrigger {
    /// Never; the planner plans on request only.
    #[default]
    OnRequest,
    /// Plans at this interval, for the busiest second of the past period.
    Periodic(Duration),
    /// Passes an observation of the load to the planning function at this interval: Loki's Resource Manager.
    Observing(Duration),
}

impl ReplanTrigger {
    /// Interval at which the load is sampled.
    fn observe(&self) -> Duration {
        match self {
            Self::Periodic(every) => SAMPLE_INTERVAL.min(*every).max(MIN_INTERVAL),
            Self::Observing(every) => (*every).max(MIN_INTERVAL),
            Self::OnRequest => SAMPLE_INTERVAL,
        }
    }
}

/// Longest interval at which the load is sampled. Ingresses publish their counts ten times a second.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// Shortest interval of any trigger.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// The load counts and heartbeats that the planner follows.
pub(crate) struct LoadListener {
    trigger: ReplanTrigger,
    dispatcher: Dispatcher,
    loads: Subscriber,
    beats: mpsc::UnboundedReceiver<Arc<Heartbeat>>,
}

impl LoadListener {
    pub(crate) async fn begin(
        bus: &Bus,
        heartbeats: &mut Heartbeats,
        dispatcher: &Dispatcher,
        trigger: ReplanTrigger,
    ) -> Result<Self, BusError> {
        let subject = dispatcher.app().event(LOAD)?;
        let loads = bus.control().subscribe(subject, None).await?;
        // Unbounded: the listener only counts, and runs on the same thread as the sender.
        let (forward, beats) = mpsc::unbounded_channel();
        heartbeats.listen(move |beat| {
            let _ = forward.send(Arc::clone(beat));
        });
        Ok(Self {
            trigger,
            loads,
            beats,
            dispatcher: dispatcher.clone(),
        })
    }

    /// Requests a plan whenever the trigger fires, until the connection ends.
    pub(crate) async fn ask(mut self, request_plan: impl Fn(PlanRequest)) {
        let clock = self.dispatcher.clock();
        let mut load = ArrivalCounter::new(clock.now());
        let mut schedule = Schedule::new(self.trigger, clock.now());
        let mut reports = VariantReports::default();
        let mut workers = LiveWorkers::default();
        let mut samples = interval(self.trigger.observe());
        samples.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut silence = interval(Duration::from_micros(CHECK_PERIOD_US));
        silence.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                message = self.loads.next() => match message.map(|message| LoadCount::decode(&message.payload)) {
                    Some(Ok(count)) => load.record(&count.ingress, count.arrivals, clock.now()),
                    Some(Err(error)) => tracing::warn!(%error, "a load count could not be decoded"),
                    None => return,
                },
                beat = self.beats.recv() => match beat {
                    Some(beat) => {
                        workers.record(&beat, clock.now());
                        reports.record(&beat, clock.now());
                    }
                    None => return,
                },
                _ = silence.tick() => {
                    workers.observe(clock.now());
                    reports.observe(clock.now());
                }
                _ = samples.tick() => {
                    let now = clock.now();
                    if let Some(mut request) = schedule.observe(load.take(now), now) {
                        request.fan_outs.clone_from(&reports.fan_outs);
                        request.runs.clone_from(&reports.runs);
                        if let Some(observed) = &mut request.observed {
                            observed.workers = workers.alive();
                        }
                        request_plan(request);
                    }
                }
            }
        }
    }
}

/// The latest counters of variants, by the actor that reported them: a worker, or a custom actor.
#[derive(Debug, Default)]
struct VariantReports {
    fan_outs: BTreeMap<String, BTreeMap<String, FanOuts>>,
    runs: BTreeMap<String, BTreeMap<String, Runs>>,
    actors: Liveness,
}

impl VariantReports {
    fn record(&mut self, beat: &Heartbeat, now: u64) {
        record(&mut self.fan_outs, &beat.actor, &beat.fan_outs);
        record(&mut self.runs, &beat.actor, &beat.runs);
        if !beat.fan_outs.is_empty() || !beat.runs.is_empty() {
            self.actors.record_heartbeat(&beat.actor, now);
        }
    }

    /// Drops the counters of actors that have been silent long enough to be forgotten: their names may never return.
    fn observe(&mut self, now: u64) {
        self.actors.newly_lost(now);
        self.actors.forget_lost(now, |_| false);
        let is_known = |actor: &str| self.actors.alive(actor) || self.actors.lost(actor);
        self.fan_outs.retain(|actor, _| is_known(actor));
        self.runs.retain(|actor, _| is_known(actor));
    }
}

/// Stores the latest counters that a worker reported for its variants.
fn record<T: Clone>(
    known: &mut BTreeMap<String, BTreeMap<String, T>>,
    worker: &str,
    now: &BTreeMap<String, T>,
) {
    if now.is_empty() {
        known.remove(worker);
    } else {
        known.insert(worker.to_owned(), now.clone());
    }
}

/// Workers that send heartbeats. A worker counts as lost after as many missed heartbeats as a replica.
#[derive(Debug, Default)]
struct LiveWorkers(Liveness);

impl LiveWorkers {
    fn record(&mut self, beat: &Heartbeat, now: u64) {
        // A worker without replicas is leaving, or waits for its first plan.
        if beat.kind == "worker" {
            self.0.record_heartbeat(&beat.actor, now);
        }
    }

    fn observe(&mut self, now: u64) {
        for lost in self.0.newly_lost(now) {
            tracing::debug!(worker = lost, "a worker fell silent");
        }
        // A returning worker counts as new.
        self.0.forget_lost(now, |_| false);
    }

    fn alive(&self) -> Vec<String> {
        self.0.living().map(ToOwned::to_owned).collect()
    }
}

/// Decides when to request a plan, and with which load figures.
enum Schedule {
    Periods(Periods),
    /// Total arrivals, so that the next observation covers one that the planner skipped.
    Looks(u64),
}

impl Schedule {
    fn new(trigger: ReplanTrigger, now: u64) -> Self {
        let periods = |length| Self::Periods(Periods::new(length, now));
        match trigger {
            ReplanTrigger::Observing(_) => Self::Looks(0),
            ReplanTrigger::Periodic(every) => periods(u64::try_from(every.as_micros()).unwrap_or(u64::MAX)),
            ReplanTrigger::OnRequest => periods(u64::MAX),
        }
    }

    /// Adds the arrivals since the last sample; returns the plan request that is due, if any.
    fn observe(&mut self, arrivals: u64, now: u64) -> Option<PlanRequest> {
        match self {
            Self::Looks(total) => {
                *total += arrivals;
                let observed = Observation {
                    at_us: now,
                    arrivals: *total,
                    workers: Vec::new(),
                };
                Some(PlanRequest {
                    reason: "observation".to_owned(),
                    observed: Some(observed),
                    ..PlanRequest::default()
                })
            }
            Self::Periods(periods) => Some(PlanRequest {
                peak_qps: Some(periods.observe(arrivals, now)?),
                reason: "end of the period".to_owned(),
                ..PlanRequest::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use kaskade_policy::liveness::{DETECTION_US, FORGOTTEN_US};

    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn every_look_shows_what_arrived_since_the_beginning() {
        let mut schedule = Schedule::new(ReplanTrigger::Observing(Duration::from_secs(1)), 0);
        let observed: Vec<Option<Observation>> = [(3, 1), (0, 2), (4, 3)]
            .map(|(arrivals, second)| {
                schedule
                    .observe(arrivals, second * SECOND)
                    .and_then(|request| request.observed)
            })
            .to_vec();
        let expected = [(1, 3), (2, 3), (3, 7)].map(|(second, arrivals)| {
            Some(Observation {
                at_us: second * SECOND,
                arrivals,
                workers: Vec::new(),
            })
        });
        assert_eq!(observed, expected);
    }

    #[test]
    fn a_worker_without_heartbeats_is_lost() {
        let mut workers = LiveWorkers::default();
        let beat = |actor: &str| Heartbeat {
            actor: actor.into(),
            kind: "worker".into(),
            ..Heartbeat::default()
        };
        workers.record(&beat("a"), 0);
        workers.record(&beat("b"), CHECK_PERIOD_US);
        for now in (0..=DETECTION_US).step_by(CHECK_PERIOD_US as usize) {
            workers.observe(now);
        }
        assert_eq!(workers.alive(), ["a", "b"]);
        workers.observe(DETECTION_US + CHECK_PERIOD_US);
        assert_eq!(workers.alive(), ["b"]);
        for now in (DETECTION_US..=FORGOTTEN_US + DETECTION_US).step_by(CHECK_PERIOD_US as usize) {
            workers.observe(now);
        }
        assert!(!workers.0.lost("a"), "it is forgotten");
    }

    /// Regression: the counters of every actor ever seen were kept and copied into every request.
    #[test]
    fn the_counters_of_a_forgotten_actor_are_dropped() {
        let mut reports = VariantReports::default();
        let beat = |actor: &str| Heartbeat {
            actor: actor.into(),
            kind: "actor".into(),
            fan_outs: [("find".to_owned(), FanOuts::default())].into(),
            runs: [("find".to_owned(), Runs::default())].into(),
            ..Heartbeat::default()
        };
        let known = |reports: &VariantReports| {
            assert!(reports.runs.keys().eq(reports.fan_outs.keys()));
            reports.runs.keys().cloned().collect::<Vec<_>>()
        };
        reports.record(&beat("dead"), 0);
        let mut now = 0;
        while now <= FORGOTTEN_US {
            reports.record(&beat("alive"), now);
            reports.observe(now);
            assert_eq!(known(&reports), ["alive", "dead"], "at {now}");
            now += CHECK_PERIOD_US;
        }
        reports.record(&beat("alive"), now);
        reports.observe(now);
        assert_eq!(known(&reports), ["alive"]);
        // Without counters nothing is kept.
        reports.record(
            &Heartbeat {
                actor: "alive".into(),
                ..Heartbeat::default()
            },
            now,
        );
        assert!(known(&reports).is_empty());
    }

    #[test]
    fn a_period_requests_its_busiest_second_and_on_request_never_triggers() {
        let mut schedule = Schedule::new(ReplanTrigger::Periodic(Duration::from_secs(2)), 0);
        let asked: Vec<f64> = (1..=4)
            .filter_map(|second| schedule.observe(10 * second, second * SECOND)?.peak_qps)
            .collect();
        assert_eq!(asked, [20.0, 40.0]);
        let mut schedule = Schedule::new(ReplanTrigger::OnRequest, 0);
        assert!((1..100).all(|second| schedule.observe(1, second * SECOND).is_none()));
    }
}
