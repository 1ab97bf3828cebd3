//! Whether the load still is what the plan was made for (CascadeServe appendix C.2).
//!
//! A planner weighs gears by the assumed frequency of their loads. When the measured distribution has moved away, the
//! plan still serves, but another plan would serve better: drift triggers a notice and, if configured, a new plan.

use crate::demand::BusiestSecond;
use crate::plan::{Gear, LoadRange};

/// Largest number of evaluations between two notices of the same drift: with the default configuration half an hour.
const MAX_PAUSE: u32 = 6;

/// Parameters by which a difference in load counts as drift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoadDriftConfig {
    /// Minimum total variation distance of a drift, in (0, 1].
    pub distance: f64,
    /// Ticks that must have been seen, and after which older ones count half: ten minutes of 100 ms.
    pub memory_ticks: u64,
}

impl Default for LoadDriftConfig {
    fn default() -> Self {
        Self {
            distance: 0.3,
            memory_ticks: 6_000,
        }
    }
}

/// A measured distribution that is not the planned one.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadDrift {
    /// Total variation distance between the two, in [0, 1].
    pub distance: f64,
    /// Measured share of time in each gear's range of load.
    pub measured: Vec<f64>,
    /// Load of the busiest second since the evaluation before the last, requests/s.
    pub peak_qps: f64,
}

/// Compares the measured distribution of load with the planned one.
#[derive(Debug, Clone)]
pub struct LoadDriftDetector {
    config: LoadDriftConfig,
    from_qps: Vec<f64>,
    planned: Vec<f64>,
    /// Mean of the planned distribution, requests/s.
    planned_qps: f64,
    measured: Vec<f64>,
    ticks: u64,
    sum_qps: f64,
    /// The busiest second since the last evaluation.
    busiest: BusiestSecond,
    /// The load of the busiest second between the two evaluations before, requests/s.
    peak_before: f64,
    repeat: Repeat,
}

/// When a drift that lasts is reported again.
#[derive(Debug, Clone, Copy, Default)]
struct Repeat {
    /// Evaluations between the last notice and the next; 0 before the first notice.
    pause: u32,
    /// Evaluations to come before the next notice.
    left: u32,
}

impl Repeat {
    /// Takes an evaluation; returns whether a notice is due.
    fn is_due(&mut self, drifted: bool) -> bool {
        if !drifted {
            *self = Self::default();
            return false;
        }
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.pause = (2 * self.pause).clamp(1, MAX_PAUSE);
        self.left = self.pause - 1;
        true
    }
}

impl LoadDriftDetector {
    /// Watches the gears of a plan from `now` (microseconds) on; `None` if the plan does not contain the distribution of loads that it
    /// was made for.
    pub fn new(gears: &[Gear], config: LoadDriftConfig, now: u64) -> Option<Self> {
        let planned: Option<Vec<f64>> = gears.iter().map(|gear| Some(gear.expected?.time_share)).collect();
        let planned = planned.filter(|shares| !shares.is_empty())?;
        Some(Self {
            config,
            from_qps: gears.iter().map(|gear| gear.load.from_qps).collect(),
            planned_qps: gears
                .iter()
                .zip(&planned)
                .map(|(gear, share)| share * middle(gear.load))
                .sum(),
            measured: vec![0.0; planned.len()],
            planned,
            ticks: 0,
            sum_qps: 0.0,
            busiest: BusiestSecond::new(now),
            peak_before: 0.0,
            repeat: Repeat::default(),
        })
    }

    /// Takes the load at a tick that ends at `now` (microseconds), requests/s, and the arrivals of the tick. Returns a drift when it
    /// begins, and again while it lasts: a planner may have been busy, or gone, or have found nothing at the time. The pauses between two
    /// notices double, from one evaluation to six; evaluations are half of `memory_ticks` apart.
    pub fn tick(&mut self, qps: f64, arrivals: u64, now: u64) -> Option<LoadDrift> {
        let range = self
            .from_qps
            .partition_point(|from| *from <= qps)
            .saturating_sub(1);
        if let Some(time) = self.measured.get_mut(range) {
            *time += 1.0;
        }
        // Not by `qps`: after a jump, that is the rate of a single tick.
        self.busiest.observe(arrivals, now);
        self.sum_qps += qps;
        self.ticks += 1;
        if self.ticks < self.config.memory_ticks {
            return None;
        }
        let distance = self.distance();
        let is_due = self.repeat.is_due(distance >= self.config.distance);
        let drift = is_due.then(|| LoadDrift {
            distance,
            measured: self.shares(),
            peak_qps: self.peak_before.max(self.busiest.qps()),
        });
        self.fade();
        drift
    }

    /// The factor that scales a measured load so that its mean is the planned one; 1 until enough load was measured. The planned
    /// mean takes every range at its middle, and an unbounded one at its beginning.
    pub fn scale(&self) -> f64 {
        let measured = self.sum_qps / self.ticks.max(1) as f64;
        if self.ticks < self.config.memory_ticks / 2 || measured <= 0.0 {
            return 1.0;
        }
        if self.planned_qps > 0.0 {
            self.planned_qps / measured
        } else {
            1.0
        }
    }

    /// Total variation distance between the measured and the planned distribution, in [0, 1].
    pub fn distance(&self) -> f64 {
        let apart = self.shares();
        let apart = apart.iter().zip(&self.planned);
        apart
            .map(|(measured, planned)| (measured - planned).abs())
            .sum::<f64>()
            / 2.0
    }

    /// Measured share of time in each range.
    pub fn shares(&self) -> Vec<f64> {
        let total: f64 = self.measured.iter().sum();
        self.measured.iter().map(|time| time / total.max(1.0)).collect()
    }

    /// Halves the weight of the past, so that half of the next result comes from new measurements. Of the peaks, that of the last half
    /// memory is kept.
    fn fade(&mut self) {
        self.peak_before = self.busiest.take();
        self.ticks /= 2;
        self.sum_qps /= 2.0;
        for time in &mut self.measured {
            *time /= 2.0;
        }
    }
}

fn middle(load: LoadRange) -> f64 {
    load.to_qps
        .map_or(load.from_qps, |to| f64::midpoint(load.from_qps, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Edge, Expected, Wiring};

    fn gears(time_shares: &[f64]) -> Vec<Gear> {
        let gear = |(index, time_share): (usize, &f64)| Gear {
            name: format!("g{index}"),
            load: LoadRange {
                from_qps: 100.0 * index as f64,
                to_qps: Some(100.0 * (index + 1) as f64),
            },
            expected: Some(Expected {
                time_share: *time_share,
                accuracy: 0.9,
                p95_us: 1,
                utilisation: 0.5,
            }),
            wiring: Wiring {
                entry: Edge::to("s"),
                ensemble: Vec::new(),
                stages: Vec::new(),
            },
        };
        time_shares.iter().enumerate().map(gear).collect()
    }

    const TICK: u64 = 100_000;

    fn detector() -> LoadDriftDetector {
        let config = LoadDriftConfig {
            distance: 0.25,
            memory_ticks: 100,
        };
        LoadDriftDetector::new(&gears(&[0.8, 0.2]), config, 0).unwrap()
    }

    /// Feeds that load for some ticks of 100 ms, the first of which is `from`; returns the drifts with their ticks.
    fn feed(detector: &mut LoadDriftDetector, from: u64, ticks: u64, qps: f64) -> Vec<(u64, LoadDrift)> {
        let arrivals = (qps / 10.0) as u64;
        (from..from + ticks)
            .filter_map(|tick| Some((tick, detector.tick(qps, arrivals, tick * TICK)?)))
            .collect()
    }

    #[test]
    fn the_planned_load_has_not_drifted() {
        let mut detector = detector();
        for tick in 1..=1000 {
            let qps = if tick % 5 == 0 { 150.0 } else { 50.0 };
            assert_eq!(detector.tick(qps, 7, tick * TICK), None);
        }
        assert!(detector.distance() < 0.05);
    }

    /// A notice that no planner could follow was the only one, however long the drift lasted.
    #[test]
    fn a_drift_that_lasts_is_reported_again_after_growing_pauses() {
        let mut detector = detector();
        let drifts = feed(&mut detector, 1, 1_450, 150.0);
        for (_, drift) in &drifts {
            assert!(
                (drift.distance - 0.8).abs() < 1e-9 && (drift.peak_qps - 150.0).abs() < 1e-9,
                "{drift:?}"
            );
            assert!((drift.measured.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        // Evaluations are 50 ticks apart.
        let at: Vec<u64> = drifts.iter().map(|(tick, _)| *tick).collect();
        assert_eq!(at, [100, 150, 250, 450, 750, 1_050, 1_350]);
        // Once the load is as planned again, the next drift begins anew.
        assert_eq!(feed(&mut detector, 1_451, 2_000, 50.0), []);
        let again: Vec<u64> = feed(&mut detector, 3_451, 200, 150.0)
            .iter()
            .map(|(tick, _)| *tick)
            .collect();
        assert_eq!(again, [3_500, 3_550, 3_650]);
    }

    /// The peak was the rate of the busiest tick since the plan was adopted.
    #[test]
    fn a_burst_counts_over_a_second_and_is_forgotten() {
        let mut detector = detector();
        assert_eq!(detector.tick(3_000.0, 300, TICK), None);
        let drifts = feed(&mut detector, 2, 249, 150.0);
        let peaks: Vec<f64> = drifts.iter().map(|(_, drift)| drift.peak_qps).collect();
        // The burst's second: 300 requests, and 15 in each other tick.
        assert_eq!(peaks, [435.0, 435.0, 150.0]);
    }

    #[test]
    fn the_scale_brings_the_measured_mean_to_the_planned_one() {
        let mut detector = detector();
        assert!((detector.scale() - 1.0).abs() < 1e-12);
        feed(&mut detector, 1, 80, 140.0);
        // Planned: 0.8 * 50 + 0.2 * 150.
        assert!(
            (detector.scale() - 70.0 / 140.0).abs() < 1e-9,
            "{}",
            detector.scale()
        );
    }

    #[test]
    fn a_plan_without_expectations_is_not_watched() {
        let mut gears = gears(&[1.0]);
        gears[0].expected = None;
        assert!(LoadDriftDetector::new(&gears, LoadDriftConfig::default(), 0).is_none());
    }
}
