//! Timing reported in replies: run times of batches under load, and the overhead of serving.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kaskade_actors::wire::Hop;
use kaskade_app::load::drive::Target;
use kaskade_app::load::record::Outcome;
use kaskade_app::serving::Client;
use kaskade_models::Inputs;
use kaskade_policy::fit;
use kaskade_policy::profile::{BatchCost, LatencySpread};

/// Run times of batches, microseconds, by size. Every request of a batch reports it.
pub(super) type Runs = BTreeMap<u32, Vec<u32>>;

/// Times from the end of a batch to the beginning of the next, microseconds, where a request of the next waited already.
pub(super) fn gaps(seen: &[Seen]) -> Vec<f64> {
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

/// Latencies of the batch sizes that were seen often enough, with their quantiles; what was not seen keeps its profiled cost, raised where
/// serving was slower than profiling.
pub(super) fn costs(profiled: &[BatchCost], runs: &Runs) -> Vec<BatchCost> {
    const OFTEN: usize = 8;
    let served: Vec<(u32, f64, Option<LatencySpread>)> = runs
        .iter()
        .filter_map(|(batch, times)| {
            let mut times: Vec<f64> = times.iter().map(|us| f64::from(*us) / 1e6).collect();
            times.sort_by(f64::total_cmp);
            // Each request of a batch reports it, so that every size-th is one batch.
            let each: Vec<f64> = times.into_iter().step_by(*batch as usize).collect();
            let middle = *each.get(each.len().checked_sub(1)? / 2)?;
            (each.len() >= OFTEN).then(|| (*batch, middle, LatencySpread::of(&each)))
        })
        .collect();
    let slower: Vec<f64> = served
        .iter()
        .filter_map(|(batch, latency_s, _)| Some(latency_s / fit::batch_latency_s(profiled, *batch)?))
        .collect();
    let factor = slower.iter().sum::<f64>() / slower.len().max(1) as f64;
    let factor = if factor > 0.0 { factor } else { 1.0 };
    let raised = |cost: &BatchCost| {
        let latency_s = cost.latency_s * factor;
        (cost.batch, BatchCost { latency_s, ..*cost })
    };
    let mut all: BTreeMap<u32, BatchCost> = profiled.iter().map(raised).collect();
    for (batch, latency_s, spread) in served {
        let nearest = profiled.iter().min_by_key(|cost| cost.batch.abs_diff(batch));
        if let Some(nearest) = nearest {
            let cost = BatchCost {
                batch,
                latency_s,
                spread: spread.or(nearest.spread),
                ..*nearest
            };
            all.insert(batch, cost);
        }
    }
    all.into_values().collect()
}

/// Notes the route that each reply reports.
pub(super) struct Noted {
    client: Client,
    inputs: Vec<Inputs>,
    seen: Mutex<Vec<Seen>>,
}

pub(super) struct Seen {
    pub(super) at: Instant,
    /// The stages that it passed.
    pub(super) hops: Vec<Hop>,
    /// Time since the request was due that it spent neither in a queue nor in a model.
    pub(super) outside_us: u32,
}

impl Noted {
    pub(super) fn new(client: Client, inputs: Vec<Inputs>) -> Self {
        Self {
            client,
            inputs,
            seen: Mutex::default(),
        }
    }
}

impl Noted {
    /// Medians and 95th percentiles of what the replies report, microseconds.
    pub(super) fn summary(&self) -> String {
        let seen = self.seen();
        let two = |name: &str, mut values: Vec<u32>| {
            values.sort_unstable();
            let at = |share: f64| {
                let place = (share * values.len() as f64) as usize;
                values.get(place).copied().unwrap_or(0)
            };
            format!("{name} {}/{} us", at(0.5), at(0.95))
        };
        let outside = two("outside", seen.iter().map(|one| one.outside_us).collect());
        let sum = |of: fn(&Hop) -> u32| seen.iter().map(|one| one.hops.iter().map(of).sum()).collect();
        let waiting = two("waiting", sum(|hop| hop.wait_us));
        let running = two("running", sum(|hop| hop.run_us));
        format!("{outside}, {waiting}, {running}")
    }

    /// The replies so far.
    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for Noted {
    async fn ask(&self, number: u64) -> Outcome {
        self.ask_due(number, tokio::time::Instant::now()).await
    }

    async fn ask_due(&self, number: u64, due: tokio::time::Instant) -> Outcome {
        let place = (number % self.inputs.len().max(1) as u64) as usize;
        let inputs = self.inputs.get(place).cloned().unwrap_or_default();
        match self.client.ask(inputs).await {
            Ok(reply) => {
                let took_us = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
                let inside: u32 = reply.hops.iter().map(|hop| hop.wait_us + hop.run_us).sum();
                self.seen().push(Seen {
                    at: Instant::now(),
                    hops: reply.hops,
                    outside_us: took_us.saturating_sub(inside),
                });
                Outcome::Answered {
                    variant: reply.variant,
                }
            }
            Err(fault) => fault.into(),
        }
    }
}
