//! When a planner plans without anybody asking: period by period, or as a pipeline's demand asks for (Loki §4). *When* that is,
//! and for which demand, is decided by [`kaskade_plans::demand`].

use std::{collections::BTreeMap, time::Duration};

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_plans::{
    demand::{DemandEstimator, DemandOptions, Periods},
    load::LoadBook,
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    bus::Bus,
    exchange::Exchange,
    node::NodeError,
    shifter::LOAD,
    wire::{Beat, Forks, LoadCount, Message as _, PlanRequest},
};

/// When a planner plans without anybody asking.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Rhythm {
    /// Never.
    #[default]
    Asked,
    /// This often, for the highest load that a second of the period had.
    Every(Duration),
    /// As often as the demand asks for, for its moving average: Loki's Resource Manager.
    Demand(DemandOptions),
}

impl Rhythm {
    /// How often the load is looked at.
    fn look(&self) -> Duration {
        match self {
            Self::Every(every) => LOOK.min(*every).max(Duration::from_millis(1)),
            Self::Asked | Self::Demand(_) => LOOK,
        }
    }
}

/// How often the load is looked at, at least. Ingresses tell theirs ten times a second.
const LOOK: Duration = Duration::from_millis(200);

/// A planner's ears.
pub(crate) struct Listening {
    rhythm: Rhythm,
    exchange: Exchange,
    loads: Subscriber,
    beats: Subscriber,
}

impl Listening {
    pub(crate) async fn begin(bus: &Bus, exchange: &Exchange, rhythm: Rhythm) -> Result<Self, NodeError> {
        let app = exchange.app();
        Ok(Self {
            rhythm,
            loads: bus.subscribe(app.event(LOAD)?, None).await?,
            beats: bus.subscribe(app.beats(), None).await?,
            exchange: exchange.clone(),
        })
    }

    /// Asks for a plan whenever it is time, until the connection ends.
    pub(crate) async fn ask(mut self, desk: impl Fn(PlanRequest)) {
        let clock = self.exchange.clock();
        let mut book = LoadBook::new(clock.now());
        let mut pace = Pace::new(self.rhythm, clock.now());
        let mut forks = BTreeMap::new();
        let mut looks = interval(self.rhythm.look());
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = self.loads.next() => match message.map(|message| LoadCount::decode(&message.payload)) {
                    Some(Ok(count)) => book.heard(&count.ingress, count.arrivals, clock.now()),
                    Some(Err(error)) => tracing::warn!(%error, "a count of the load could not be read"),
                    None => return,
                },
                message = self.beats.next() => match message.map(|message| Beat::decode(&message.payload)) {
                    Some(Ok(beat)) => hear(&mut forks, beat),
                    Some(Err(error)) => tracing::warn!(%error, "a beat could not be read"),
                    None => return,
                },
                _ = looks.tick() => {
                    let now = clock.now();
                    if let Some((reason, qps)) = pace.look(book.take(now), now) {
                        desk(PlanRequest {
                            reason,
                            peak_qps: Some(qps),
                            forks: forks.clone(),
                            ..PlanRequest::default()
                        });
                    }
                }
            }
        }
    }
}

/// Keeps what a worker told last of requests that came apart.
fn hear(forks: &mut BTreeMap<String, BTreeMap<String, Forks>>, beat: Beat) {
    if beat.forks.is_empty() {
        forks.remove(&beat.actor);
    } else {
        forks.insert(beat.actor, beat.forks);
    }
}

/// When to ask, and for how much load.
enum Pace {
    Periods(Periods),
    Demand(DemandEstimator),
}

impl Pace {
    fn new(rhythm: Rhythm, now: u64) -> Self {
        let periods = |length| Self::Periods(Periods::new(length, now));
        match rhythm {
            Rhythm::Demand(options) => Self::Demand(DemandEstimator::new(options, now)),
            Rhythm::Every(every) => periods(u64::try_from(every.as_micros()).unwrap_or(u64::MAX)),
            Rhythm::Asked => periods(u64::MAX),
        }
    }

    /// Takes the arrivals since the last look; gives why to plan, and for how many requests/s.
    fn look(&mut self, arrivals: u64, now: u64) -> Option<(String, f64)> {
        match self {
            Self::Demand(estimator) => {
                estimator.observe(arrivals, now);
                let due = estimator.due(now)?;
                let qps = estimator.estimate_qps();
                estimator.planned(qps, now);
                Some((format!("the demand: {due:?}"), qps))
            }
            Self::Periods(periods) => {
                let qps = periods.look(arrivals, now)?;
                Some(("the period is over".to_owned(), qps))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    #[test]
    fn demand_asks_when_it_changes() {
        let options = DemandOptions::default();
        let mut pace = Pace::new(Rhythm::Demand(options), 0);
        let mut asked = Vec::new();
        for second in 1..=30 {
            let arrivals = if second < 15 { 100 } else { 400 };
            asked.extend(
                pace.look(arrivals, second * SECOND)
                    .map(|(why, qps)| (second, why, qps)),
            );
        }
        let whys: Vec<&str> = asked.iter().map(|(_, why, _)| why.as_str()).collect();
        assert!(
            whys[0].contains("First") && whys.iter().any(|why| why.contains("Change")),
            "{asked:?}"
        );
        assert!(
            asked
                .iter()
                .any(|(second, why, _)| why.contains("Change") && *second < 20),
            "{asked:?}"
        );
        assert!((asked.last().unwrap().2 - 400.0).abs() < 40.0, "{asked:?}");
    }
}
