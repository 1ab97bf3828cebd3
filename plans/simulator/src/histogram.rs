//! Latencies in buckets whose width grows with the latency: any number of them, in a few kilobytes, each within 0.8 %.

use serde::{Serialize, Serializer};

/// Buckets per doubling of the latency. A bucket is at most 1/64 of its lower end wide, and a latency is taken for the
/// middle of its bucket.
const PER_DOUBLING: u64 = 64;

/// Counts of latencies, microseconds. Log-linear: exact below 128, then 64 buckets per doubling, so that every figure is
/// within 0.8 % of the true one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LatencyHistogram {
    buckets: Vec<u64>,
    count: u64,
    sum: u128,
    max: u64,
}

/// The reported percentiles, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Number of latencies.
    pub count: u64,
    /// Mean, exact.
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// Longest latency, exact.
    pub max_us: u64,
}

impl LatencyHistogram {
    /// Notes a latency, microseconds.
    pub fn record(&mut self, latency_us: u64) {
        let bucket = bucket(latency_us);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum += u128::from(latency_us);
        self.max = self.max.max(latency_us);
    }

    /// Adds what another one counted.
    pub fn merge(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.buckets.fill(0);
        (self.count, self.sum, self.max) = (0, 0, 0);
    }

    /// Number of latencies.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The latency that this share of them, in [0, 1], does not exceed, microseconds; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64).clamp(1, self.count);
        if rank == self.count {
            return Some(self.max);
        }
        let mut seen = 0;
        let bucket = self.buckets.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        Some(middle(bucket).min(self.max))
    }

    /// The 95th percentile, microseconds; `None` if there are none.
    pub fn p95(&self) -> Option<u64> {
        self.quantile(0.95)
    }

    /// The mean, microseconds, exact; `None` if there are none.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The longest, microseconds, exact; `None` if there are none.
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// Returns the summary; `None` if there are no latencies.
    pub fn summary(&self) -> Option<LatencySummary> {
        Some(LatencySummary {
            count: self.count,
            mean_us: self.mean()?,
            p50_us: self.quantile(0.5)?,
            p95_us: self.quantile(0.95)?,
            p99_us: self.quantile(0.99)?,
            p999_us: self.quantile(0.999)?,
            max_us: self.max()?,
        })
    }
}

/// Written as its summary.
impl Serialize for LatencyHistogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.summary().serialize(serializer)
    }
}

fn bucket(value: u64) -> usize {
    // How often the value must be halved to fall below 128; its top seven bits then number the bucket within the doubling.
    let halvings = (u64::BITS - value.leading_zeros()).saturating_sub(7);
    (u64::from(halvings) * PER_DOUBLING + (value >> halvings)) as usize
}

fn middle(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let halvings = (bucket / PER_DOUBLING).saturating_sub(1);
    let lower = (bucket - halvings * PER_DOUBLING) << halvings;
    lower + (1 << halvings) / 2
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_has_no_figures() {
        let empty = LatencyHistogram::default();
        assert_eq!(empty.quantile(0.5), None);
        assert_eq!(empty.summary(), None);
    }

    #[test]
    fn small_latencies_are_exact() {
        let mut latencies = LatencyHistogram::default();
        (1..=100).for_each(|latency| latencies.record(latency));
        assert_eq!(latencies.quantile(0.5), Some(50));
        assert_eq!(latencies.p95(), Some(95));
        assert_eq!(latencies.quantile(0.0), Some(1));
        assert_eq!(latencies.quantile(1.0), Some(100));
        assert_eq!(latencies.mean(), Some(50.5));
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut latencies = LatencyHistogram::default();
        for latency in [0, 127, 128, u64::MAX] {
            latencies.record(latency);
        }
        assert_eq!(latencies.max(), Some(u64::MAX));
        assert_eq!(latencies.quantile(0.25), Some(0));
        latencies.clear();
        assert_eq!(latencies, {
            let mut same = LatencyHistogram::default();
            same.buckets.resize(latencies.buckets.len(), 0);
            same
        });
    }

    proptest! {
        #[test]
        fn a_latency_is_within_a_percent_of_its_bucket(value in 0..u64::MAX / 2) {
            let error = middle(bucket(value)).abs_diff(value) as f64;
            prop_assert!(error <= 0.008 * value as f64, "{value}: {}", middle(bucket(value)));
        }

        #[test]
        fn quantiles_are_those_of_the_sorted_latencies(
            mut values in prop::collection::vec(0..10_000_000_u64, 1..200),
            share in 0.0..=1.0_f64,
        ) {
            let (mut all, mut rest) = (LatencyHistogram::default(), LatencyHistogram::default());
            for (place, value) in values.iter().enumerate() {
                if place % 2 == 0 { all.record(*value) } else { rest.record(*value) }
            }
            all.merge(&rest);
            values.sort_unstable();
            let rank = ((share * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let (found, exact) = (all.quantile(share).unwrap(), values[rank - 1]);
            prop_assert!(found.abs_diff(exact) as f64 <= 0.01 * exact as f64, "{found} for {exact}");
        }
    }
}
