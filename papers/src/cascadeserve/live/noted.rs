//! Timing reported in replies: run times of batches under load.

use std::collections::BTreeMap;

use kaskade_actors::wire::Hop;
use kaskade_app::measure::serving_overhead::RecordingTarget;
use kaskade_policy::linear_fit;
use kaskade_policy::profile::{BatchCost, LatencyQuantiles};

/// Run times of batches, microseconds, by size. Every request of a batch reports it.
pub(super) type Runs = BTreeMap<u32, Vec<u32>>;

/// Latencies of the batch sizes that were seen often enough, with their quantiles; what was not seen keeps its profiled cost, raised where
/// serving was slower than profiling.
pub(super) fn costs(profiled: &[BatchCost], runs: &Runs) -> Vec<BatchCost> {
    const OFTEN: usize = 8;
    let served: Vec<(u32, f64, Option<LatencyQuantiles>)> = runs
        .iter()
        .filter_map(|(batch, times)| {
            let mut times: Vec<f64> = times.iter().map(|us| f64::from(*us) / 1e6).collect();
            times.sort_by(f64::total_cmp);
            // Each request of a batch reports it, so that every size-th is one batch.
            let each: Vec<f64> = times.into_iter().step_by(*batch as usize).collect();
            let middle = *each.get(each.len().checked_sub(1)? / 2)?;
            (each.len() >= OFTEN).then(|| (*batch, middle, LatencyQuantiles::from_sorted(&each)))
        })
        .collect();
    let slower: Vec<f64> = served
        .iter()
        .filter_map(|(batch, latency_s, _)| Some(latency_s / linear_fit::batch_latency_s(profiled, *batch)?))
        .collect();
    let factor = slower.iter().sum::<f64>() / slower.len().max(1) as f64;
    let factor = if factor > 0.0 { factor } else { 1.0 };
    let raised = |cost: &BatchCost| {
        let latency_s = cost.latency_s * factor;
        (cost.batch, BatchCost { latency_s, ..*cost })
    };
    let mut all: BTreeMap<u32, BatchCost> = profiled.iter().map(raised).collect();
    for (batch, latency_s, quantiles) in served {
        let nearest = profiled.iter().min_by_key(|cost| cost.batch.abs_diff(batch));
        if let Some(nearest) = nearest {
            let cost = BatchCost {
                batch,
                latency_s,
                quantiles: quantiles.or(nearest.quantiles),
                ..*nearest
            };
            all.insert(batch, cost);
        }
    }
    all.into_values().collect()
}

/// Medians and 95th percentiles of what the replies report, microseconds.
pub(super) fn summary(noted: &RecordingTarget) -> String {
    let seen = noted.seen();
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
