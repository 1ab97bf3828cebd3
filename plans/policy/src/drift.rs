//! Whether the load still is what the plan was made for (CascadeServe appendix C.2).
//!
//! A planner weighs gears by the assumed frequency of their loads. When the measured distribution has moved away, the
//! plan still serves, but another plan would serve better: drift triggers a notice and, if configured, a new plan.

use crate::plan::{Gear, LoadRange};

/// Parameters by which a difference in load counts as drift.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DriftConfig {
    /// Minimum total variation distance of a drift, in (0, 1].
    pub distance: f64,
    /// Ticks that must have been seen, and after which older ones count half: ten minutes of 100 ms.
    pub memory_ticks: u64,
}

impl Default for DriftConfig {
    fn default() -> Self {
        Self {
            distance: 0.3,
            memory_ticks: 6_000,
        }
    }
}

/// A measured distribution that is not the planned one.
#[derive(Debug, Clone, PartialEq)]
pub struct Drift {
    /// Total variation distance between the two, in [0, 1].
    pub distance: f64,
    /// Measured share of time in each gear's range of load.
    pub measured: Vec<f64>,
    /// Highest load seen, requests/s.
    pub peak_qps: f64,
}

/// Compares the measured distribution of load with the planned one.
#[derive(Debug, Clone)]
pub struct DriftWatch {
    config: DriftConfig,
    from_qps: Vec<f64>,
    planned: Vec<f64>,
    /// Mean of the planned distribution, requests/s.
    planned_qps: f64,
    measured: Vec<f64>,
    ticks: u64,
    sum_qps: f64,
    peak_qps: f64,
    told: bool,
}

impl DriftWatch {
    /// Watches the gears of a plan; `None` if the plan does not contain the distribution of loads that it was made for.
    pub fn new(gears: &[Gear], config: DriftConfig) -> Option<Self> {
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
            peak_qps: 0.0,
            told: false,
        })
    }

    /// Takes the load of one tick, requests/s. Returns a drift once when it begins, and again only after the load was as
    /// planned in between.
    pub fn tick(&mut self, qps: f64) -> Option<Drift> {
        let range = self
            .from_qps
            .partition_point(|from| *from <= qps)
            .saturating_sub(1);
        if let Some(time) = self.measured.get_mut(range) {
            *time += 1.0;
        }
        self.peak_qps = self.peak_qps.max(qps);
        self.sum_qps += qps;
        self.ticks += 1;
        if self.ticks < self.config.memory_ticks {
            return None;
        }
        let distance = self.distance();
        let drifted = distance >= self.config.distance;
        let news = drifted && !self.told;
        self.told = drifted;
        let drift = news.then(|| Drift {
            distance,
            measured: self.shares(),
            peak_qps: self.peak_qps,
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

    /// Halves the weight of the past, so that half of the next result comes from new measurements.
    fn fade(&mut self) {
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

    fn watch() -> DriftWatch {
        let config = DriftConfig {
            distance: 0.3,
            memory_ticks: 100,
        };
        DriftWatch::new(&gears(&[0.8, 0.2]), config).unwrap()
    }

    #[test]
    fn the_planned_load_is_no_drift() {
        let mut watch = watch();
        for tick in 0..1000 {
            let qps = if tick % 5 == 0 { 150.0 } else { 50.0 };
            assert_eq!(watch.tick(qps), None);
        }
        assert!(watch.distance() < 0.05);
    }

    #[test]
    fn a_drift_is_reported_once_per_episode() {
        let mut watch = watch();
        let mut told = 0;
        for load in [150.0, 50.0, 150.0] {
            let drifts: Vec<Drift> = (0..2000).filter_map(|_| watch.tick(load)).collect();
            told += drifts.len();
            for drift in drifts {
                assert!(drift.distance >= 0.3 && drift.peak_qps > 149.0, "{drift:?}");
                assert!((drift.measured.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            }
        }
        assert_eq!(told, 2);
    }

    #[test]
    fn the_scale_brings_the_measured_mean_to_the_planned_one() {
        let mut watch = watch();
        assert!((watch.scale() - 1.0).abs() < 1e-12);
        for _ in 0..80 {
            watch.tick(140.0);
        }
        // Planned: 0.8 * 50 + 0.2 * 150.
        assert!((watch.scale() - 70.0 / 140.0).abs() < 1e-9, "{}", watch.scale());
    }

    #[test]
    fn a_plan_without_expectations_is_not_watched() {
        let mut gears = gears(&[1.0]);
        gears[0].expected = None;
        assert!(DriftWatch::new(&gears, DriftConfig::default()).is_none());
    }
}
