//! Times of hops at the rate at which requests are sent.

use rand::Rng;

use super::config::SimConfig;
use kaskade_policy::profile::{HopAtRate, LatencyQuantiles, hop};

/// Requests over which the rate is measured at most.
const MAX_REQUESTS: u32 = 32;

/// Time over which the rate is measured, if requests are so few, microseconds.
const MAX_WINDOW_US: u64 = 1_000_000;

/// The distribution of hop times at present.
#[derive(Debug)]
pub(super) struct HopTimes<'a> {
    config: &'a SimConfig,
    factor: f64,
    quantiles: Option<LatencyQuantiles>,
    /// When the rate was measured last, and requests since.
    since: u64,
    sent: u32,
}

impl<'a> HopTimes<'a> {
    /// Before the first requests the service is idle.
    pub(super) fn new(config: &'a SimConfig) -> Self {
        let mut times = Self {
            config,
            factor: 1.0,
            quantiles: config.hop_quantiles,
            since: 0,
            sent: 0,
        };
        times.set(0.0);
        times
    }

    fn set(&mut self, qps: f64) {
        if let Some(HopAtRate {
            factor, quantiles, ..
        }) = hop::at_rate(&self.config.hop_by_rate, qps)
        {
            self.factor = factor;
            self.quantiles = quantiles.or(self.config.hop_quantiles);
        }
    }

    /// Counts a request that is sent.
    #[inline]
    pub(super) fn count(&mut self, at: u64) {
        if self.config.hop_by_rate.is_empty() {
            return;
        }
        self.sent += 1;
        let passed = at.saturating_sub(self.since);
        if passed > 0 && (self.sent >= MAX_REQUESTS || passed >= MAX_WINDOW_US) {
            self.set(f64::from(self.sent) * 1e6 / passed as f64);
            (self.since, self.sent) = (at, 0);
        }
    }

    /// Returns the time of a hop of this median, microseconds.
    #[inline]
    pub(super) fn draw(&self, median_us: u64, rng: &mut impl Rng) -> u64 {
        if median_us == 0 {
            return 0;
        }
        let multiple = self.quantiles.map_or(1.0, |quantiles| quantiles.at(rng.random()));
        (median_us as f64 * self.factor * multiple) as u64
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn hops_follow_the_rate_of_the_last_requests() {
        let row = |qps, factor| HopAtRate {
            qps,
            factor,
            quantiles: None,
        };
        let config = SimConfig {
            hop_by_rate: vec![row(10.0, 2.0), row(1_000.0, 1.0)],
            ..SimConfig::default()
        };
        let mut times = HopTimes::new(&config);
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        assert_eq!(times.draw(100, &mut rng), 200, "idle");
        let mut at = 0;
        let mut send = |times: &mut HopTimes<'_>, count: u32, apart_us: u64| {
            for _ in 0..count {
                at += apart_us;
                times.count(at);
            }
        };
        send(&mut times, 31, 1_000);
        assert_eq!(times.draw(100, &mut rng), 200, "too few");
        send(&mut times, 1, 1_000);
        assert_eq!(times.draw(100, &mut rng), 100);
        // At 100/s it takes 32 requests, at 5/s a second.
        send(&mut times, 32, 10_000);
        assert_eq!(times.draw(100, &mut rng), 150);
        send(&mut times, 5, 200_000);
        assert_eq!(times.draw(100, &mut rng), 200);
        assert_eq!(times.draw(0, &mut rng), 0);
    }

    #[test]
    fn a_rate_without_quantiles_has_those_of_all_rates() {
        let quantiles = LatencyQuantiles {
            p10: 3.0,
            p90: 3.0,
            p95: 3.0,
            p99: 3.0,
        };
        let mut config = SimConfig {
            hop_quantiles: Some(quantiles),
            ..SimConfig::default()
        };
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let constant = SimConfig::default();
        assert_eq!(HopTimes::new(&constant).draw(100, &mut rng), 100);
        let drawn = |config: &SimConfig, rng: &mut ChaCha8Rng| HopTimes::new(config).draw(100, rng) > 100;
        assert!((0..50).any(|_| drawn(&config, &mut rng)));
        config.hop_by_rate = vec![HopAtRate {
            qps: 1.0,
            factor: 1.0,
            quantiles: None,
        }];
        assert!((0..50).any(|_| drawn(&config, &mut rng)));
    }
}
