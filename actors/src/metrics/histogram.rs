//! Histograms with Prometheus' cumulative buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets for times, seconds. The last bucket has no bound.
pub const SECONDS: [f64; 30] = [
    0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02,
    0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// Upper bounds of the buckets for batch sizes.
pub const SIZES: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

/// Counts of values by bucket.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// Counts by bucket, the unbounded one last.
    buckets: Box<[AtomicU64]>,
    /// Sum of the values, millionths.
    sum: AtomicU64,
}

/// Snapshot of a histogram.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counts {
    /// Counts by bucket, the unbounded one last.
    pub buckets: Vec<u64>,
    /// Sum of the values, millionths.
    pub sum: u64,
}

impl Histogram {
    /// Creates an empty histogram of times, in seconds.
    pub fn with_time_buckets() -> Self {
        Self::new(&SECONDS)
    }

    /// Creates an empty histogram of batch sizes.
    pub(crate) fn of_sizes() -> Self {
        Self::new(&SIZES)
    }

    fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            buckets: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
        }
    }

    /// Adds a time.
    pub fn add(&self, time: Duration) {
        self.add_us(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds a time, microseconds.
    pub(crate) fn add_us(&self, us: u64) {
        self.count(us as f64 / 1e6, us, 1);
    }

    /// Adds `number` times with the sum `us` microseconds, each as their mean.
    pub(crate) fn add_mean_us(&self, us: u64, number: u64) {
        self.count(us as f64 / 1e6 / number.max(1) as f64, us, number);
    }

    /// Adds a size.
    pub(crate) fn add_size(&self, size: usize) {
        self.count(size as f64, (size as u64).saturating_mul(1_000_000), 1);
    }

    fn count(&self, value: f64, millionths: u64, number: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(number, Relaxed);
        }
        self.sum.fetch_add(millionths, Relaxed);
    }

    /// Returns a snapshot.
    pub fn read(&self) -> Counts {
        Counts {
            buckets: self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
        }
    }

    /// Calls `sample` for each line of Prometheus' text format: the suffix of the metric's name, the value of the label
    /// `le` if the line has one, and the value.
    pub fn samples(&self, mut sample: impl FnMut(&str, Option<&str>, f64)) {
        let counts = self.read();
        let mut total = 0;
        for (index, count) in counts.buckets.iter().enumerate() {
            total += count;
            let bound = self
                .bounds
                .get(index)
                .map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            sample("_bucket", Some(&bound), total as f64);
        }
        sample("_sum", None, counts.sum as f64 / 1e6);
        sample("_count", None, total as f64);
    }
}

impl Counts {
    /// Returns the counts since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before);
        Self {
            buckets: buckets.map(|(now, then)| now.saturating_sub(then)).collect(),
            sum: self.sum.saturating_sub(earlier.sum),
        }
    }

    /// Returns the number of values.
    pub fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns a quantile of a histogram of times, seconds, interpolated within its bucket; `None` without values.
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        let rank = quantile * total as f64;
        let (mut below, mut from) = (0.0, 0.0);
        for (index, count) in self.buckets.iter().enumerate() {
            let until = SECONDS.get(index).copied().unwrap_or(from);
            let count = *count as f64;
            if count > 0.0 && below + count >= rank {
                return Some(from + (until - from) * ((rank - below) / count).clamp(0.0, 1.0));
            }
            below += count;
            from = until;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_in_their_bucket() {
        let histogram = Histogram::with_time_buckets();
        assert_eq!(histogram.read().quantile(0.5), None);
        for _ in 0..90 {
            histogram.add(Duration::from_millis(4));
        }
        let earlier = histogram.read();
        for _ in 0..10 {
            histogram.add(Duration::from_millis(600));
        }
        let counts = histogram.read();
        let half = counts.quantile(0.5).unwrap();
        assert!((0.003..=0.005).contains(&half), "{half}");
        let tail = counts.quantile(0.99).unwrap();
        assert!((0.5..=0.7).contains(&tail), "{tail}");
        assert_eq!(counts.since(&earlier).total(), 10);
    }

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        let lines = |histogram: &Histogram| {
            let mut lines = Vec::new();
            histogram.samples(|suffix, bound, value| {
                lines.push(format!("{suffix} {} {value}", bound.unwrap_or_default()));
            });
            lines
        };
        let times = Histogram::with_time_buckets();
        times.add(Duration::from_millis(1));
        times.add(Duration::from_secs(500));
        let times = lines(&times);
        for line in [
            "_bucket 0.0007 0",
            "_bucket 0.001 1",
            "_bucket 120 1",
            "_bucket +Inf 2",
            "_count  2",
        ] {
            assert!(times.iter().any(|found| found == line), "{line}: {times:?}");
        }
        let sizes = Histogram::of_sizes();
        sizes.add_size(4);
        sizes.add_size(5);
        let sizes = lines(&sizes);
        for line in ["_bucket 4 1", "_bucket 8 2", "_sum  9"] {
            assert!(sizes.iter().any(|found| found == line), "{line}: {sizes:?}");
        }
    }
}
