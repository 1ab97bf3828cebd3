//! The gear that serves each load, as a shifter chooses it (CascadeServe §5).
//!
//! A plan assigns a gear to a load, but the service does not know its load: a [`Shifter`] estimates it from arrivals, a few requests a tick
//! with large models. It shifts up at once and down later, so a gear is in force at lower loads than its own, for as long as the count was
//! high by chance and two seconds more. At 40 requests/s and ranges of 6 requests/s that is more than a quarter of the time: a range of load
//! that never comes may serve as much. Weighed by its load's frequency, such a gear costs nothing, and a plan with a very inaccurate gear
//! there seems good.
//!
//! So a range weighs as much as its gear serves. That is found out by running the policy itself on counts drawn for loads drawn from
//! the distribution. Queues are taken to be empty (the policy shifts down later if they are not), and every range to have a separate
//! gear. The weights have the unit of the distribution: shares of requests in, shares of requests out.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use kaskade_policy::shifting::{ShiftConfig, Shifter};
use kaskade_simulator::trace::normal;

/// Stretches of even load that are drawn, about; every range that occurs at all has at least one.
const STRETCHES: f64 = 1_000.0;

/// How long an even load lasts, seconds.
const STRETCH_S: u64 = 10;

/// The share of every range's gear, given how common the ranges are: `common` sums to 1, and so does the result. The ranges divide
/// `[0, qps_max]` (requests/s) into equal parts. The same input gives the same shares.
pub(super) fn shares(common: &[f64], qps_max: f64, seed: u64) -> Vec<f64> {
    if common.len() < 2 {
        return common.to_vec();
    }
    let width = qps_max / common.len() as f64;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let config = ShiftConfig::default();
    let mut served = Served::new(common, width, config);
    let mut stretches = stretches(common, width);
    stretches.shuffle(&mut rng);
    for (range, qps) in stretches {
        served.serve(range, qps, &mut rng);
    }
    served.shares(common)
}

/// Ranges, each as often as it is common, and loads evenly over each of them, requests/s.
fn stretches(common: &[f64], width: f64) -> Vec<(usize, f64)> {
    let of_range = |(range, share): (usize, &f64)| {
        let times = (share * STRETCHES).ceil() as usize;
        (0..times).map(move |nth| {
            let into = (nth as f64 + 0.5) / times as f64;
            (range, (range as f64 + into) * width)
        })
    };
    common.iter().enumerate().flat_map(of_range).collect()
}

/// A shifter at work, and what came of it.
struct Served {
    shifter: Shifter,
    tick_us: u64,
    now_us: u64,
    /// Requests by the range of their load and the gear in force.
    requests: Vec<Vec<u64>>,
}

impl Served {
    fn new(common: &[f64], width: f64, config: ShiftConfig) -> Self {
        let ranges = common.len();
        Self {
            shifter: Shifter::with_bounds((0..ranges).map(|range| range as f64 * width).collect(), config),
            tick_us: config.tick_us,
            now_us: 0,
            requests: common
                .iter()
                .map(|share| if *share > 0.0 { vec![0; ranges] } else { Vec::new() })
                .collect(),
        }
    }

    /// A stretch of even load, requests/s.
    fn serve(&mut self, range: usize, qps: f64, rng: &mut ChaCha8Rng) {
        let expected = qps * self.tick_us as f64 / 1e6;
        for _ in 0..STRETCH_S * 1_000_000 / self.tick_us {
            let arrivals = count(expected, rng);
            let gear = self.shifter.gear() as usize;
            let slot = self.requests.get_mut(range).and_then(|gears| gears.get_mut(gear));
            if let Some(requests) = slot {
                *requests += arrivals;
            }
            self.now_us += self.tick_us;
            self.shifter.tick(self.now_us, arrivals, 0);
        }
    }

    fn shares(&self, common: &[f64]) -> Vec<f64> {
        let mut shares = vec![0.0; common.len()];
        for (range, (share, gears)) in common.iter().zip(&self.requests).enumerate() {
            let all: u64 = gears.iter().sum();
            if all == 0 {
                // So low a load that no request came.
                if let Some(own) = shares.get_mut(range) {
                    *own += share;
                }
                continue;
            }
            for (served, requests) in shares.iter_mut().zip(gears) {
                *served += share * *requests as f64 / all as f64;
            }
        }
        shares
    }
}

/// A Poisson count.
fn count(expected: f64, rng: &mut ChaCha8Rng) -> u64 {
    /// Mean above which a normal variate is accurate enough, and takes fewer draws.
    const MANY: f64 = 32.0;
    if expected > MANY {
        return (expected + expected.sqrt() * normal(rng)).round().max(0.0) as u64;
    }
    let never = (-expected).exp();
    let mut left = rng.random::<f64>();
    let mut count = 0;
    while left > never {
        left *= rng.random::<f64>();
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counts_scatter_as_poisson_says() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for expected in [0.3, 4.0, 31.0, 33.0, 500.0] {
            let counts: Vec<f64> = (0..20_000).map(|_| count(expected, &mut rng) as f64).collect();
            let mean = counts.iter().sum::<f64>() / counts.len() as f64;
            let variance =
                counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
            assert!((mean / expected - 1.0).abs() < 0.03, "{expected}: mean {mean}");
            assert!(
                (variance / expected - 1.0).abs() < 0.05,
                "{expected}: variance {variance}"
            );
        }
    }

    #[test]
    fn few_requests_are_served_in_higher_gears_than_many() {
        let common = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
        let above = |qps_max: f64| shares(&common, qps_max, 0)[7..].iter().sum::<f64>();
        let (few, many) = (above(60.0), above(60_000.0));
        assert!((0.2..0.4).contains(&few), "{few}");
        assert!(many < 0.1, "{many}");
    }

    #[test]
    fn one_gear_serves_all() {
        assert_eq!(shares(&[1.0], 60.0, 0), [1.0]);
        assert_eq!(
            shares(&[0.0, 1.0], 1e-9, 0),
            [0.0, 1.0],
            "nothing comes, and nothing is shifted"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_is_lost(
            weights in prop::collection::vec(0.0..1.0_f64, 1..40),
            magnitude in -2.0..5.0_f64,
            seed in any::<u64>(),
        ) {
            let total: f64 = weights.iter().sum();
            prop_assume!(total > 0.0);
            let common: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
            let qps_max = 10_f64.powf(magnitude);
            let found = shares(&common, qps_max, seed);
            prop_assert_eq!(found.len(), common.len());
            prop_assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9 && found.iter().all(|share| *share >= 0.0));
            prop_assert_eq!(found, shares(&common, qps_max, seed));
        }
    }
}
