//! Piecewise-linear interpolation and least-squares lines through measurements (HybridServe §V-D: costs are close to linear in the batch size).

use serde::Serialize;

use crate::batching::RunTime;
use crate::profile::{BatchCost, LatencyQuantiles};

/// A least-squares line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LinearFit {
    /// Value at 0.
    pub intercept: f64,
    /// Increase per unit.
    pub slope: f64,
    /// Share of the variance that the line explains, in [0, 1]; 1 where there is no variance.
    pub r2: f64,
}

impl LinearFit {
    /// The least-squares line through points `(x, y)`. One point, or several at the same `x`, give a level line.
    /// `None` without points, or with one that is not finite.
    pub fn of(points: impl Iterator<Item = (f64, f64)> + Clone) -> Option<Self> {
        let count = points.clone().count() as f64;
        let (x_sum, y_sum) = points
            .clone()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        let (x_mean, y_mean) = (x_sum / count, y_sum / count);
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (x, y) in points {
            xx += (x - x_mean) * (x - x_mean);
            xy += (x - x_mean) * (y - y_mean);
            yy += (y - y_mean) * (y - y_mean);
        }
        let slope = if xx > 0.0 { xy / xx } else { 0.0 };
        let fit = Self {
            intercept: y_mean - slope * x_mean,
            slope,
            r2: if xx > 0.0 && yy > 0.0 {
                (xy * xy / (xx * yy)).min(1.0)
            } else {
                1.0
            },
        };
        (fit.intercept.is_finite() && fit.slope.is_finite()).then_some(fit)
    }

    /// The line's value at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.intercept + self.slope * x
    }
}

/// Latency of a batch, seconds, as a line over its size.
pub(crate) fn latency_fit(costs: &[BatchCost]) -> Option<LinearFit> {
    LinearFit::of(costs.iter().map(|cost| (f64::from(cost.batch), cost.latency_s)))
}

/// Returns how long the batches of a variant take, for the batcher. Negative times of the line become 0.
pub fn run_time(costs: &[BatchCost]) -> Option<RunTime> {
    let fit = latency_fit(costs)?;
    let micros = |seconds: f64| (seconds.max(0.0) * 1e6).round() as u64;
    Some(RunTime {
        base_us: micros(fit.intercept),
        per_request_us: micros(fit.slope),
    })
}

/// Latency of a batch of this size, seconds: between measured sizes on the line between the neighbours; beyond the largest on
/// from it by the slope of the fit, or in proportion if only one size was measured; below the smallest by the fit, but no
/// longer than the smallest. `None` without measurements, for a size of 0, or where that gives no positive number.
pub fn batch_latency_s(costs: &[BatchCost], batch: u32) -> Option<f64> {
    batch_cost(costs, batch, |cost| Some(cost.latency_s)).filter(|latency| *latency > 0.0)
}

/// Energy of a batch of this size, joules, by the same rule. `None` also if a needed measurement has none.
pub fn batch_energy_j(costs: &[BatchCost], batch: u32) -> Option<f64> {
    batch_cost(costs, batch, |cost| cost.energy_j).filter(|energy| *energy >= 0.0)
}

/// Share of the device that a batch of this size keeps busy while it runs, in (0, 1]: its kernel time by the same rule, over its latency.
/// `None` also if a needed measurement has none.
pub fn batch_utilisation(costs: &[BatchCost], batch: u32) -> Option<f64> {
    let kernel = batch_cost(costs, batch, |cost| Some(cost.utilisation? * cost.latency_s))?;
    let share = kernel / batch_latency_s(costs, batch)?;
    (share > 0.0).then(|| share.min(1.0))
}

/// Memory of a replica that runs batches of this size, bytes, by the same rule, over the sizes whose memory was measured. If there is one
/// such size, its memory: how it grows is unknown. `None` if there is none.
pub fn batch_memory_bytes(costs: &[BatchCost], batch: u32) -> Option<u64> {
    let measured: Vec<BatchCost> = costs
        .iter()
        .filter(|cost| cost.memory_bytes.is_some())
        .copied()
        .collect();
    if let [only] = measured.as_slice() {
        return only.memory_bytes;
    }
    let bytes = batch_cost(&measured, batch, |cost| Some(cost.memory_bytes? as f64))?;
    Some(bytes.max(0.0).ceil() as u64)
}

fn batch_cost(costs: &[BatchCost], batch: u32, of: impl Fn(&BatchCost) -> Option<f64>) -> Option<f64> {
    if batch == 0 {
        return None;
    }
    let (first, last) = (costs.first()?, costs.last()?);
    let known = || {
        costs
            .iter()
            .filter_map(|cost| Some((f64::from(cost.batch), of(cost)?)))
    };
    let size = f64::from(batch);
    let cost = if batch < first.batch {
        let fit = LinearFit::of(known())?;
        if fit.at(size) > 0.0 {
            fit.at(size)
        } else {
            of(first)?
        }
        .min(of(first)?)
    } else if batch <= last.batch {
        per_request(costs, batch, of)? * size
    } else {
        let slope = if costs.len() > 1 {
            LinearFit::of(known())?.slope.max(0.0)
        } else {
            of(last)? / f64::from(last.batch)
        };
        of(last)? + slope * (size - f64::from(last.batch))
    };
    cost.is_finite().then_some(cost)
}

/// The cost of one request in batches of this size: that of the measured batch, or else of the line between the measured
/// neighbours, level beyond them. `of` picks the figure of a batch; `None` if a needed one is unknown or the size is 0.
pub fn per_request(costs: &[BatchCost], batch: u32, of: impl Fn(&BatchCost) -> Option<f64>) -> Option<f64> {
    if batch == 0 {
        return None;
    }
    let each = |cost: &BatchCost| Some(of(cost)? / f64::from(cost.batch));
    let above = costs.partition_point(|cost| cost.batch < batch);
    match (
        above.checked_sub(1).and_then(|below| costs.get(below)),
        costs.get(above),
    ) {
        (None, Some(cost)) | (Some(cost), None) => each(cost),
        (_, Some(cost)) if cost.batch == batch => each(cost),
        (Some(below), Some(above)) => {
            let width = f64::from(above.batch) - f64::from(below.batch);
            let way = (f64::from(batch) - f64::from(below.batch)) / width;
            Some((of(below)? * (1.0 - way) + of(above)? * way) / f64::from(batch))
        }
        (None, None) => None,
    }
}

/// Returns how the latency of a batch varies: as that of the largest measured batch up to it, or else of the smallest; `None` if that is not
/// known.
pub fn batch_quantiles(costs: &[BatchCost], batch: u32) -> Option<LatencyQuantiles> {
    let within = costs.iter().rev().find(|cost| cost.batch <= batch);
    within.or(costs.first())?.quantiles
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(batch: u32, latency_s: f64, energy_j: Option<f64>) -> BatchCost {
        BatchCost {
            energy_j,
            ..BatchCost::new(batch, latency_s)
        }
    }

    #[test]
    fn a_line_is_found_and_noise_lowers_r2() {
        let fit = LinearFit::of([1.0, 2.0, 4.0].iter().map(|x| (*x, 3.0 + 2.0 * x))).unwrap();
        assert!((fit.intercept - 3.0).abs() < 1e-12 && (fit.slope - 2.0).abs() < 1e-12);
        assert!((fit.r2 - 1.0).abs() < 1e-12 && (fit.at(10.0) - 23.0).abs() < 1e-9);
        let noisy = LinearFit::of([(0.0, 0.0), (1.0, 5.0), (2.0, 1.0)].into_iter()).unwrap();
        assert!(noisy.r2 < 0.5);
    }

    #[test]
    fn degenerate_points_give_a_level_line_or_none() {
        let level = LinearFit::of([(8.0, 2.0)].into_iter()).unwrap();
        assert!((level.at(100.0) - 2.0).abs() < 1e-12);
        assert_eq!(LinearFit::of(std::iter::empty()), None);
        assert_eq!(LinearFit::of([(1.0, f64::NAN)].into_iter()), None);
    }

    #[test]
    fn run_times_and_costs_come_from_the_measurements() {
        let costs = [
            cost(1, 0.002, Some(0.1)),
            cost(9, 0.010, None),
            cost(17, 0.018, Some(0.9)),
        ];
        let run = run_time(&costs).unwrap();
        assert_eq!((run.base_us, run.per_request_us), (1_000, 1_000));
        let latency = |batch| per_request(&costs, batch, |cost| Some(cost.latency_s));
        assert!((latency(9).unwrap() - 0.010 / 9.0).abs() < 1e-12);
        assert!((latency(5).unwrap() - 0.006 / 5.0).abs() < 1e-12);
        assert!((latency(100).unwrap() - 0.018 / 17.0).abs() < 1e-12);
        assert_eq!(
            per_request(&costs, 5, |cost| cost.energy_j),
            None,
            "a neighbour is unknown"
        );
        assert!(per_request(&costs, 17, |cost| cost.energy_j).is_some());
        assert_eq!(latency(0), None);
        assert_eq!(per_request(&[], 1, |cost| Some(cost.latency_s)), None);
    }

    #[test]
    fn a_batch_costs_what_was_measured_or_what_lies_on_the_line() {
        let costs = [
            cost(2, 0.004, Some(0.1)),
            cost(4, 0.006, None),
            cost(8, 0.010, Some(0.9)),
        ];
        for (batch, latency) in [
            (1, 0.003),
            (2, 0.004),
            (3, 0.005),
            (4, 0.006),
            (6, 0.008),
            (8, 0.010),
            (16, 0.018),
        ] {
            let found = batch_latency_s(&costs, batch).unwrap();
            assert!((found - latency).abs() < 1e-12, "{batch}: {found}");
        }
        assert_eq!(batch_energy_j(&costs, 3), None);
        assert!((batch_energy_j(&costs, 8).unwrap() - 0.9).abs() < 1e-12);
        let one = [cost(4, 0.004, None)];
        assert!((batch_latency_s(&one, 8).unwrap() - 0.008).abs() < 1e-12);
        assert!((batch_latency_s(&one, 1).unwrap() - 0.004).abs() < 1e-12);
        assert_eq!(batch_latency_s(&one, 0), None);
        assert_eq!(batch_latency_s(&[], 1), None);
        assert_eq!(batch_latency_s(&[cost(1, f64::NAN, None)], 1), None);
    }

    #[test]
    fn utilisation_follows_kernel_time() {
        let with = |batch, latency_s, utilisation| BatchCost {
            utilisation,
            ..cost(batch, latency_s, None)
        };
        // A launch of 1 ms in which nothing runs, then 1 ms per request.
        let costs = [with(1, 0.002, Some(0.5)), with(4, 0.005, Some(0.8))];
        for (batch, share) in [(1, 0.5), (2, 2.0 / 3.0), (4, 0.8), (9, 0.9)] {
            let found = batch_utilisation(&costs, batch).unwrap();
            assert!((found - share).abs() < 1e-9, "{batch}: {found}");
        }
        assert_eq!(batch_utilisation(&[with(1, 0.002, None)], 1), None);
    }

    proptest! {
        #[test]
        fn no_other_line_is_nearer(
            points in prop::collection::vec((-10.0..10.0_f64, -10.0..10.0_f64), 3..20),
            turn in -1.0..1.0_f64,
            shift in -1.0..1.0_f64,
        ) {
            let fit = LinearFit::of(points.iter().copied()).unwrap();
            let error = |line: LinearFit| points.iter().map(|(x, y)| (line.at(*x) - y).powi(2)).sum::<f64>();
            let other = LinearFit { intercept: fit.intercept + shift, slope: fit.slope + turn, r2: 0.0 };
            prop_assert!(error(fit) <= error(other) + 1e-9);
            prop_assert!((0.0..=1.0).contains(&fit.r2));
        }
    }
}
