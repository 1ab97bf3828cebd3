//! SP4, batching: how many requests the first model waits for (CascadeServe §4.5).
//!
//! A replica that waits for a few requests runs larger batches, which cost less each, and forwards larger bundles, which are larger
//! batches for the models behind it. The cost is the waiting time. So the smallest `min_queue` is chosen at which the load is
//! carried and the latency objective holds, simulated at the upper end of the range; one above 1 must hold at the lower end
//! too, where batches fill slowly. A latency objective must also hold on fresh arrivals
//! ([`confirmations`](super::GearOptions::confirmations)).
//!
//! Simulations take most of the planning time, so three cases are decided without one: a cascade whose tail takes
//! longer than the objective even without any load, a batch that cannot fill in time, and a series that gets worse and worse.

use super::evaluate::{Evaluate, GearOutcome};
use super::evaluation_cache::{BalancedCascade, EvaluationCache};
use super::violation::{GearError, ViolationKind};
use kaskade_policy::plan::{LoadRange, Slo};

/// The first `min_queue` that holds, and its outcome at the upper end of the range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchingChoice {
    /// Requests that the first model waits for.
    pub min_queue: u32,
    /// Outcome at the upper end of the range.
    pub outcome: GearOutcome,
}

/// A shortfall that no batching can correct.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shortfall {
    pub(super) kind: ViolationKind,
    /// Whether more replicas can correct it.
    pub(super) replicas_help: bool,
}

/// Number of queue lengths in a row without an improvement after which the search ends.
const PATIENCE: u32 = 3;

/// A request in twenty may exceed the objective: a stage that more reach is on the path of the 95th percentile.
const TAIL: f64 = 0.05;

/// Finds the batching of a cascade over a range of load, or its shortfall.
pub(super) fn tune<E: Evaluate>(
    evaluations: &mut EvaluationCache<'_, E>,
    balanced: &BalancedCascade<'_>,
    load: LoadRange,
) -> Result<Result<BatchingChoice, Shortfall>, GearError> {
    let slo_us = match evaluations.options.slo {
        Slo::Latency { p95_us } => Some(p95_us),
        Slo::Accuracy { .. } => None,
    };
    if let Some(slo_us) = slo_us {
        let p95_us = without_load(evaluations, balanced);
        if p95_us > slo_us {
            return Ok(Err(Shortfall {
                kind: ViolationKind::Latency { p95_us, slo_us },
                replicas_help: false,
            }));
        }
    }
    let at_most = evaluations.options.max_utilisation;
    let holds = |outcome: &GearOutcome| {
        outcome.keeps_up && outcome.utilisation <= at_most && slo_us.is_none_or(|slo| outcome.p95_us <= slo)
    };
    let qps = load.to_qps.unwrap_or(load.from_qps);
    let mut best: Option<GearOutcome> = None;
    let mut worse = 0;
    for min_queue in 1..=evaluations.options.batching.max_min_queue {
        if min_queue > 1 && slo_us.is_some_and(|slo| fill_us(balanced, min_queue, qps) > slo as f64) {
            break;
        }
        let mut outcome = evaluations.measure(balanced, min_queue, qps)?;
        if holds(&outcome) && (min_queue == 1 || holds(&lower_end(evaluations, balanced, min_queue, load)?)) {
            outcome = evaluations.confirmed(balanced, min_queue, qps, outcome)?;
            if holds(&outcome) {
                return Ok(Ok(BatchingChoice { min_queue, outcome }));
            }
        }
        let better =
            best.is_none_or(|best| (outcome.keeps_up, best.p95_us) > (best.keeps_up, outcome.p95_us));
        worse = if better { 0 } else { worse + 1 };
        if better {
            best = Some(outcome);
        }
        if worse >= PATIENCE {
            break;
        }
    }
    let kind = match (best, slo_us) {
        (
            Some(GearOutcome {
                keeps_up: true,
                utilisation,
                p95_us,
            }),
            slo_us,
        ) if utilisation > at_most && slo_us.is_none_or(|slo| p95_us <= slo) => {
            ViolationKind::Headroom { utilisation, at_most }
        }
        (
            Some(GearOutcome {
                keeps_up: true,
                p95_us,
                ..
            }),
            Some(slo_us),
        ) => ViolationKind::Latency { p95_us, slo_us },
        (best, _) => ViolationKind::Throughput {
            utilisation: best.map_or(1.0, |best| best.utilisation),
        },
    };
    Ok(Err(Shortfall {
        kind,
        replicas_help: true,
    }))
}

/// Lower bound of the 95th percentile, microseconds: batches of one, without waiting.
fn without_load<E: Evaluate>(evaluations: &EvaluationCache<'_, E>, balanced: &BalancedCascade<'_>) -> u64 {
    let fastest = balanced
        .groups
        .iter()
        .map(|group| group.speed)
        .fold(0.0, f64::max);
    let stages = balanced.cascade.variants.iter().zip(&balanced.cascade.reach);
    let on_path = stages.take_while(|(_, reach)| **reach > TAIL);
    let hop_s = evaluations.options.least_hop_us() / 1e6;
    // A hop into every stage, and one back.
    let path_s: f64 = on_path
        .map(|(model, _)| evaluations.parts.models.run_time_s(*model) / fastest + hop_s)
        .sum();
    ((path_s + hop_s) * 1e6) as u64
}

/// Time that the first request of a batch waits for the last, microseconds.
fn fill_us(balanced: &BalancedCascade<'_>, min_queue: u32, qps: f64) -> f64 {
    1e6 * f64::from(min_queue - 1) / (qps * balanced.first_share())
}

/// The lower end of the range; a twentieth of the upper one replaces zero.
fn lower_end<E: Evaluate>(
    evaluations: &mut EvaluationCache<'_, E>,
    balanced: &BalancedCascade<'_>,
    min_queue: u32,
    load: LoadRange,
) -> Result<GearOutcome, GearError> {
    let least = load.to_qps.unwrap_or(load.from_qps) / 20.0;
    evaluations.measure(balanced, min_queue, load.from_qps.max(least))
}
