//! Distribution of the latency of a batch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Runs of a batch below which its quantiles are not known.
const MIN_RUNS: usize = 20;

/// Quantiles of the latency of a batch or of a message, as multiples of its median.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LatencyQuantiles {
    /// 10th percentile, at most 1.
    pub p10: f64,
    /// 90th percentile, at least 1.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl LatencyQuantiles {
    /// Returns the quantiles of measured latencies in ascending order, in any unit; `None` of fewer than 20, or if the median is not above 0.
    pub fn from_sorted(ascending: &[f64]) -> Option<Self> {
        if ascending.len() < MIN_RUNS {
            return None;
        }
        let at = |share: f64| {
            let place = (share * ascending.len() as f64).ceil() as usize;
            ascending.get(place.saturating_sub(1)).copied()
        };
        let median = at(0.5).filter(|median| *median > 0.0)?;
        Some(Self {
            p10: at(0.1)? / median,
            p90: at(0.9)? / median,
            p95: at(0.95)? / median,
            p99: at(0.99)? / median,
        })
    }

    /// Returns the multiple of the median at a `draw` from the uniform distribution over [0, 1): linear between the quantiles, and the first
    /// and the last beyond them.
    pub fn at(&self, draw: f64) -> f64 {
        let points = [
            (0.1, self.p10),
            (0.5, 1.0),
            (0.9, self.p90),
            (0.95, self.p95),
            (0.99, self.p99),
        ];
        let mut before = (0.0, self.p10);
        for (share, multiple) in points {
            if draw < share {
                let way = (draw - before.0) / (share - before.0);
                return before.1 + way * (multiple - before.1);
            }
            before = (share, multiple);
        }
        before.1
    }

    /// Returns whether the quantiles ascend around 1 and are finite.
    pub fn is_sound(&self) -> bool {
        let all = [self.p10, 1.0, self.p90, self.p95, self.p99];
        self.p10 >= 0.0 && self.p99.is_finite() && all.is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_quantiles_that_were_measured() {
        let latencies: Vec<f64> = (1..=1_000)
            .map(|run| 2.0 + f64::from(run).powi(2) / 1e6)
            .collect();
        let quantiles = LatencyQuantiles::from_sorted(&latencies).unwrap();
        assert!(quantiles.is_sound());
        let mut drawn: Vec<f64> = (0..10_000)
            .map(|draw| quantiles.at(f64::from(draw) / 1e4))
            .collect();
        drawn.sort_by(f64::total_cmp);
        for (place, expected) in [
            (1_000, quantiles.p10),
            (5_000, 1.0),
            (9_000, quantiles.p90),
            (9_500, quantiles.p95),
            (9_900, quantiles.p99),
        ] {
            assert!((drawn[place] - expected).abs() < 1e-3, "{place}");
        }
        assert_eq!(LatencyQuantiles::from_sorted(&latencies[..19]), None);
        assert_eq!(LatencyQuantiles::from_sorted(&[0.0; 50]), None);
    }
}
