//! Timing reported in replies: run times of batches under load, and the overhead of serving.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use kaskade_actors::wire::Hop;
use kaskade_app::load::drive::Target;
use kaskade_app::load::record::Outcome;
use kaskade_app::serving::Client;
use kaskade_models::Inputs;
use kaskade_policy::profile::BatchCost;

pub(super) fn mean(values: &[u32]) -> Option<f64> {
    let sum: f64 = values.iter().copied().map(f64::from).sum();
    (!values.is_empty()).then(|| sum / values.len() as f64)
}

/// Run times of batches, microseconds, by size. Every request of a batch reports it.
pub(super) type Runs = BTreeMap<u32, Vec<u32>>;

/// From the end of a batch to the beginning of the next, microseconds, while there always was a next one to begin.
pub(super) fn gap(seen: &[Seen]) -> Option<f64> {
    let share = |hop: &Hop| 1.0 / f64::from(hop.batch.max(1));
    let hops = seen.iter().flat_map(|one| &one.hops);
    let batches: f64 = hops.clone().map(share).sum();
    let ran_us: f64 = hops.map(|hop| share(hop) * f64::from(hop.run_us)).sum();
    let times = seen.iter().map(|one| one.at);
    let elapsed = times.clone().max()?.duration_since(times.min()?);
    Some(((elapsed.as_micros() as f64 - ran_us) / batches).max(0.0))
}

/// Mean latencies of the batch sizes that were seen often enough; what was not seen keeps its profiled cost, raised where serving
/// was slower than profiling. Means, because it is means that make queues.
pub(super) fn costs(profiled: &[BatchCost], runs: &Runs) -> Vec<BatchCost> {
    const OFTEN: usize = 8;
    let often = |(batch, times): &(&u32, &Vec<u32>)| times.len() >= OFTEN * **batch as usize;
    let served: Vec<(u32, f64)> = runs
        .iter()
        .filter(often)
        .filter_map(|(batch, times)| Some((*batch, mean(times)? / 1e6)))
        .collect();
    let slower: Vec<f64> = served
        .iter()
        .filter_map(|(batch, latency_s)| {
            let before = profiled.iter().find(|cost| cost.batch == *batch)?;
            Some(latency_s / before.latency_s)
        })
        .collect();
    let factor = slower.iter().sum::<f64>() / slower.len().max(1) as f64;
    let factor = if factor > 0.0 { factor } else { 1.0 };
    let raised = |cost: &BatchCost| {
        let latency_s = cost.latency_s * factor;
        (cost.batch, BatchCost { latency_s, ..*cost })
    };
    let mut all: BTreeMap<u32, BatchCost> = profiled.iter().map(raised).collect();
    for (batch, latency_s) in served {
        let nearest = profiled.iter().min_by_key(|cost| cost.batch.abs_diff(batch));
        if let Some(nearest) = nearest {
            let cost = BatchCost {
                batch,
                latency_s,
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
    /// Time spent neither in the queue nor in the model.
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
    /// The replies so far.
    pub(super) fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for Noted {
    async fn ask(&self, number: u64) -> Outcome {
        let place = (number % self.inputs.len().max(1) as u64) as usize;
        let inputs = self.inputs.get(place).cloned().unwrap_or_default();
        let begun = Instant::now();
        match self.client.ask(inputs).await {
            Ok(reply) => {
                let took_us = u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX);
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
