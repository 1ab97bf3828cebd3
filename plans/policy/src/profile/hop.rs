//! Time of a message, and its dependence on the rate of requests.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LatencyQuantiles;

/// Time of a message between two actors over a broker on the machine of the profile, of the mean size of the validation samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HopTime {
    /// Median, seconds.
    pub median_s: f64,
    /// Quantiles; absent if too few messages were sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<LatencyQuantiles>,
    /// Times while serving, by the rate of requests, ascending: at low rates, processes wake from idle. Empty if it was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_rate: Vec<HopAtRate>,
}

/// Time of a message at a rate of requests.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HopAtRate {
    /// The rate, requests/s.
    pub qps: f64,
    /// Median, as a multiple of the `median_s` of [`HopTime`].
    pub factor: f64,
    /// Quantiles, as multiples of this median; absent: those of [`HopTime`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<LatencyQuantiles>,
}

impl HopTime {
    /// Returns the time of measured messages, seconds in ascending order; `None` without a median above 0.
    pub fn from_sorted(ascending: &[f64]) -> Option<Self> {
        let median_s = *ascending.get(ascending.len().checked_sub(1)? / 2)?;
        (median_s > 0.0).then(|| Self {
            median_s,
            quantiles: LatencyQuantiles::from_sorted(ascending),
            by_rate: Vec::new(),
        })
    }

    /// Adds the times that were measured at rates of requests: each a rate, requests/s, and times of messages, seconds, in any order. Rates
    /// between the same powers of four become one row, at their geometric mean; a row of fewer than 20 messages is left out.
    #[must_use]
    pub fn with_rates(self, runs: &[(f64, Vec<f64>)]) -> Self {
        let mut rows: BTreeMap<i32, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
        for (qps, times) in runs.iter().filter(|(qps, _)| *qps > 0.0) {
            let (rates, all) = rows.entry((qps.log2() / 2.0).floor() as i32).or_default();
            rates.push(qps.ln());
            all.extend(times);
        }
        let rows = rows.into_values().filter_map(|(rates, mut times)| {
            times.sort_by(f64::total_cmp);
            let hop = Self::from_sorted(&times)?;
            hop.quantiles?;
            Some(HopAtRate {
                qps: (rates.iter().sum::<f64>() / rates.len() as f64).exp(),
                factor: hop.median_s / self.median_s,
                quantiles: hop.quantiles,
            })
        });
        Self {
            by_rate: rows.collect(),
            ..self
        }
    }

    /// The median, microseconds, at least 1.
    pub fn median_us(&self) -> u64 {
        ((self.median_s * 1e6).round() as u64).max(1)
    }
}

/// Returns the time of a message at this rate of requests, requests/s, from rows of ascending rates: linear in the logarithm of the rate
/// between two rows, and that of the first or last row outside them. `None` without rows.
pub fn at_rate(rows: &[HopAtRate], qps: f64) -> Option<HopAtRate> {
    let above = rows.partition_point(|row| row.qps <= qps);
    let below = above.checked_sub(1).and_then(|last| rows.get(last));
    match (below, rows.get(above)) {
        (Some(below), Some(above)) => {
            let way = (qps / below.qps).ln() / (above.qps / below.qps).ln();
            let between = |from: f64, to: f64| from + way * (to - from);
            let quantiles = match (below.quantiles, above.quantiles) {
                (Some(from), Some(to)) => Some(LatencyQuantiles {
                    p10: between(from.p10, to.p10),
                    p90: between(from.p90, to.p90),
                    p95: between(from.p95, to.p95),
                    p99: between(from.p99, to.p99),
                }),
                (from, to) => from.or(to),
            };
            Some(HopAtRate {
                qps,
                factor: between(below.factor, above.factor),
                quantiles,
            })
        }
        (below, above) => below.or(above).copied(),
    }
}

/// Returns whether rows have ascending rates above 0, factors above 0 and sound quantiles.
pub fn are_sound(rows: &[HopAtRate]) -> bool {
    let positive = |value: f64| value > 0.0 && value.is_finite();
    let sound = |row: &HopAtRate| {
        positive(row.qps)
            && positive(row.factor)
            && row.quantiles.is_none_or(|quantiles| quantiles.is_sound())
    };
    rows.iter().all(sound) && rows.is_sorted_by(|one, next| one.qps < next.qps)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(qps: f64, factor: f64, p99: f64) -> HopAtRate {
        let quantiles = LatencyQuantiles {
            p10: 0.5,
            p90: 1.5,
            p95: 2.0,
            p99,
        };
        HopAtRate {
            qps,
            factor,
            quantiles: Some(quantiles),
        }
    }

    #[test]
    fn between_two_rates_the_time_goes_by_the_logarithm_of_the_rate() {
        let rows = [row(10.0, 1.8, 4.0), row(1_000.0, 1.0, 8.0)];
        assert_eq!(at_rate(&rows, 0.0), Some(rows[0]));
        assert_eq!(at_rate(&rows, 10.0), Some(rows[0]));
        let middle = at_rate(&rows, 100.0).unwrap();
        assert!((middle.factor - 1.4).abs() < 1e-12 && (middle.quantiles.unwrap().p99 - 6.0).abs() < 1e-12);
        assert_eq!(at_rate(&rows, 1e6), Some(rows[1]));
        assert_eq!(at_rate(&[], 5.0), None);
        // Quantiles of one row hold beside another without.
        let without = HopAtRate {
            quantiles: None,
            ..rows[1]
        };
        assert_eq!(
            at_rate(&[rows[0], without], 100.0).unwrap().quantiles,
            rows[0].quantiles
        );
    }

    #[test]
    fn rates_that_are_alike_become_one_row_and_rows_of_few_messages_none() {
        let base = HopTime::from_sorted(&[1e-4]).unwrap();
        let times = |us: f64, count: usize| vec![us / 1e6; count];
        let runs = [
            (500.0, times(100.0, 30)),
            (20.0, times(180.0, 15)),
            (30.0, times(180.0, 15)),
            (5_000.0, times(50.0, 19)),
        ];
        let rows = base.with_rates(&runs).by_rate;
        assert!(are_sound(&rows));
        let found: Vec<(u32, u32)> = rows
            .iter()
            .map(|row| (row.qps.round() as u32, (row.factor * 100.0).round() as u32))
            .collect();
        assert_eq!(found, [(24, 180), (500, 100)]);
        assert!(!are_sound(&[rows[1], rows[0]]) && !are_sound(&[row(1.0, 0.0, 4.0)]));
        assert!(!are_sound(&[row(f64::NAN, 1.0, 4.0)]) && !are_sound(&[row(1.0, 1.0, 0.1)]));
    }

    proptest! {
        #[test]
        fn the_time_at_a_rate_lies_between_those_of_its_rows(
            rows in prop::collection::btree_map(1_u32..10_000, (0.1..10.0_f64, 3.0..9.0_f64), 1..6),
            qps in 0.0..20_000.0_f64,
        ) {
            let rows: Vec<HopAtRate> = rows.iter().map(|(qps, (factor, p99))| row(f64::from(*qps), *factor, *p99)).collect();
            let found = at_rate(&rows, qps).unwrap();
            let factors = || rows.iter().map(|row| row.factor);
            let least = factors().fold(f64::INFINITY, f64::min);
            let most = factors().fold(0.0, f64::max);
            prop_assert!((least - 1e-9..=most + 1e-9).contains(&found.factor));
            prop_assert!(found.quantiles.unwrap().is_sound());
        }
    }
}
