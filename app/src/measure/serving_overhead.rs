//! The overhead of serving: messages and the time between two batches, of one variant that is served in this process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kaskade_actors::bus::BusConfig;
use kaskade_actors::wire::Hop;
use kaskade_models::Inputs;
use kaskade_policy::plan::Sharing;
use kaskade_policy::profile::Profile;

use super::MeasureError;
use crate::config::{App, Task};
use crate::family::{Family, VariantSpec};
use crate::load::arrivals::{ArrivalProcess, Arrivals};
use crate::load::generator::{self, Target};
use crate::load::record::{Outcome, Record};
use crate::planning::initial;
use crate::serving::{self, Client, Service};

/// Loads that are served, as parts of what the variant carries in batches of one, and most requests per second of each. Under the first,
/// most batches follow one another; between two requests of the last, processes sleep.
const LOADS: [(f64, f64); 3] = [(0.9, 6_000.0), (0.5, 2_000.0), (0.1, 30.0)];

/// Longest time for which a load is served.
const MAX_TIME: Duration = Duration::from_secs(5);

/// Budget of each request.
const BUDGET: Duration = Duration::from_secs(30);

/// Pairs of batches below which the time between them is not known.
const MIN_PAIRS: usize = 20;

/// The overhead of serving.
#[derive(Debug, Clone, Default)]
pub struct Overhead {
    /// Time between two batches, seconds: the median; `None` if too few batches followed one another.
    pub turnaround_s: Option<f64>,
    /// Rates of requests, requests/s, and the times of messages at each, seconds.
    pub hops: Vec<(f64, Vec<f64>)>,
}

/// Serves a variant of the app in this process at several rates, each for this long.
///
/// # Errors
/// When the app cannot be served, or the client cannot connect.
pub(super) fn overhead(
    app: &App,
    family: &Family,
    (variant, carried_qps): (&str, f64),
    inputs: &[Inputs],
    length: Duration,
) -> Result<Overhead, MeasureError> {
    let app = one_worker(app);
    let mut plan = initial::single(&app, variant);
    plan.sharing = Sharing::Exclusive;
    let service = Service::builder(&app)
        .on_first_worker()
        .family(Family {
            members: family.members.clone(),
            ..Family::from_app(&app)
        })
        .plan(plan)
        .bus(BusConfig::new(app.name.as_str()))
        .start()?;
    let runtime = serving::runtime()?;
    let measured = runtime.block_on(async {
        // A refusal is no reason to send more.
        let client = service.client().await?.retry(false).budget(BUDGET);
        let ask = async |qps: f64| {
            let noted = Arc::new(RecordingTarget::new(client.clone(), inputs.to_vec()));
            let arrivals = Arrivals::generated(ArrivalProcess::Poisson, qps, length.min(MAX_TIME), 0);
            let record = Arc::new(Mutex::new(Record::new(None)?));
            generator::open_loop(
                Arc::clone(&noted),
                generator::spawn_pacer(arrivals),
                Duration::ZERO,
                record,
            )
            .await;
            Ok::<_, MeasureError>(noted)
        };
        let (mut hops, mut gaps_us) = (Vec::new(), Vec::new());
        for (share, max_qps) in LOADS {
            let qps = (share * carried_qps).min(max_qps);
            let noted = ask(qps).await?;
            let seen = noted.seen();
            gaps_us.extend(gaps(&seen));
            hops.push((qps, messages_s(&seen)));
        }
        client.close().await;
        Ok::<_, MeasureError>(Overhead {
            turnaround_s: median_gap_s(gaps_us),
            hops,
        })
    });
    service.stop();
    measured
}

/// The times of messages, seconds: half of what each request spent outside of queues and models, on its way there and back.
pub fn messages_s(seen: &[ReplyRecord]) -> Vec<f64> {
    seen.iter().map(|one| f64::from(one.outside_us) / 2e6).collect()
}

/// The app with one worker, which has the devices on which variants are profiled, and with nothing that runs beside its requests.
pub(super) fn one_worker(app: &App) -> App {
    let devices: Vec<_> = app
        .variants
        .iter()
        .map(|variant| app.device_of(variant))
        .collect();
    let mut app = app.clone();
    for (variant, device) in app.variants.iter_mut().zip(devices) {
        variant.device = Some(device);
    }
    app.workers.truncate(1);
    for worker in &mut app.workers {
        worker.device = None;
        worker.memory = None;
        worker.cores = None;
        worker.replicas = std::num::NonZeroU32::MIN;
    }
    app.planner = None;
    app.guarantee = None;
    app.durable = None;
    app
}

/// Returns the variant that is served, and what it carries in its smallest measured batches, requests/s: the smallest variant whose batches
/// can be made to follow one another, or else the largest. Only variants count that compute in this process and run whole requests in
/// batches.
pub(super) fn variant<'a>(family: &Family, profile: &'a Profile) -> Option<(&'a str, f64)> {
    let serves = |member: &VariantSpec| !member.is_remote() && member.task != Task::Generation;
    let measured = profile.variants.iter().zip(&family.members);
    let mut carried = measured
        .filter(|(_, member)| serves(member))
        .filter_map(|(variant, _)| {
            let smallest = variant.costs.first()?;
            Some((
                variant.name.as_str(),
                f64::from(smallest.batch) / smallest.latency_s,
            ))
        });
    let (share, max_qps) = LOADS[0];
    let fills = carried.clone().find(|(_, qps)| share * qps <= max_qps);
    fills.or_else(|| carried.next_back())
}

/// Times from the end of a batch to the start of the next, microseconds, where a request of the next waited already. Of the first stages
/// of the requests of one replica.
pub fn gaps(seen: &[ReplyRecord]) -> Vec<f64> {
    let mut replies: Vec<(Instant, &Hop)> = Vec::new();
    replies.extend(seen.iter().filter_map(|one| Some((one.at, one.hops.first()?))));
    replies.sort_by_key(|(at, _)| *at);
    let same = |(_, one): &(Instant, &Hop), (_, other): &(Instant, &Hop)| {
        (one.run_us, one.batch) == (other.run_us, other.batch)
    };
    let mut gaps = Vec::new();
    let mut before: Option<Instant> = None;
    for batch in replies.chunk_by(same) {
        let Some((at, hop)) = batch.first() else { continue };
        let waited_us = batch.iter().map(|(_, hop)| hop.wait_us).max().unwrap_or(0);
        let apart = before.map(|before| at.duration_since(before).as_micros() as f64);
        let gap = apart.map(|apart| apart - f64::from(hop.run_us));
        gaps.extend(gap.filter(|gap| (0.0..f64::from(waited_us)).contains(gap)));
        before = Some(*at);
    }
    gaps
}

/// The median of [`gaps`], seconds; `None` of fewer than 20.
pub fn median_gap_s(mut gaps_us: Vec<f64>) -> Option<f64> {
    gaps_us.sort_by(f64::total_cmp);
    let median_us = gaps_us.get(gaps_us.len() / 2)?;
    (gaps_us.len() >= MIN_PAIRS).then_some(median_us / 1e6)
}

/// A target of load that notes what each reply reports.
pub struct RecordingTarget {
    client: Client,
    inputs: Vec<Inputs>,
    seen: Mutex<Vec<ReplyRecord>>,
}

/// Figures that a reply reports.
#[derive(Debug, Clone)]
pub struct ReplyRecord {
    /// When it came.
    pub at: Instant,
    /// The stages that the request passed.
    pub hops: Vec<Hop>,
    /// Time since the request was due that it spent neither in a queue nor in a model, microseconds.
    pub outside_us: u32,
}

impl RecordingTarget {
    /// Sends these inputs in turn.
    pub fn new(client: Client, inputs: Vec<Inputs>) -> Self {
        Self {
            client,
            inputs,
            seen: Mutex::default(),
        }
    }

    /// The replies so far.
    pub fn seen(&self) -> MutexGuard<'_, Vec<ReplyRecord>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for RecordingTarget {
    async fn ask(&self, number: u64) -> Outcome {
        self.ask_due(number, tokio::time::Instant::now()).await
    }

    async fn ask_due(&self, number: u64, due: tokio::time::Instant) -> Outcome {
        let place = (number % self.inputs.len().max(1) as u64) as usize;
        let inputs = self.inputs.get(place).cloned().unwrap_or_default();
        match self.client.infer(inputs).await {
            Ok(reply) => {
                let took_us = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
                let inside: u32 = reply.hops.iter().map(|hop| hop.wait_us + hop.run_us).sum();
                self.seen().push(ReplyRecord {
                    at: Instant::now(),
                    hops: reply.hops,
                    outside_us: took_us.saturating_sub(inside),
                });
                Outcome::Answered {
                    variant: reply.variant,
                    degraded: reply.degraded,
                }
            }
            Err(fault) => fault.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replies to a batch: when it began and how long it ran, microseconds, and how long each request waited before.
    fn batch(start: Instant, (begun_us, run_us): (u64, u32), waited_us: &[u32]) -> Vec<ReplyRecord> {
        let at = start + Duration::from_micros(begun_us + u64::from(run_us));
        let hop = |wait_us: &u32| Hop {
            stage: "s".to_owned(),
            wait_us: *wait_us,
            run_us,
            batch: waited_us.len() as u32,
            cost: None,
            answer: None,
        };
        let seen = |wait_us| ReplyRecord {
            at,
            hops: vec![hop(wait_us)],
            outside_us: 0,
        };
        waited_us.iter().map(seen).collect()
    }

    #[test]
    fn the_time_between_batches_counts_only_while_a_request_waits() {
        let start = Instant::now();
        let seen: Vec<ReplyRecord> = [
            batch(start, (0, 1_000), &[0]),
            // 30 us after the first; its requests came while that ran.
            batch(start, (1_030, 1_200), &[700, 900]),
            // An idle time of 5 ms: the request came at the end of it.
            batch(start, (7_230, 1_001), &[10]),
            batch(start, (8_281, 1_100), &[60, 61, 200]),
        ]
        .concat();
        assert_eq!(gaps(&seen), [30.0, 50.0]);
        assert_eq!(median_gap_s(gaps(&seen)), None, "too few");
        let many: Vec<f64> = (1..=41).map(f64::from).collect();
        assert_eq!(median_gap_s(many), Some(21e-6));
    }
}
