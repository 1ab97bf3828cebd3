//! Histograms of times in seconds, with Prometheus' cumulative buckets.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets, seconds; a last bucket has no bound.
pub(crate) const BOUNDS: [f64; 30] = [
    0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02,
    0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0,
];

/// Time from a request at the gateway to its complete answer, seconds.
pub(crate) const REQUEST: &str = "kaskade_gateway_request_seconds";
/// Time from a streamed request to its first token (TTFT), seconds.
pub(crate) const FIRST_TOKEN: &str = "kaskade_gateway_time_to_first_token_seconds";
/// Mean time between two tokens of a streamed answer (TPOT), seconds.
pub(crate) const PER_TOKEN: &str = "kaskade_gateway_time_per_output_token_seconds";

/// Spans that the collector took, since the start of the process.
pub(crate) const SPANS: &str = "kaskade_gateway_spans_total";
/// Spans that were dropped, because their queue was full or the collector did not take them.
pub(crate) const SPANS_DROPPED: &str = "kaskade_gateway_spans_dropped_total";

/// Counts of times by bucket.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    above: AtomicU64,
    sum_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// By bucket, the unbounded one last.
    pub(crate) buckets: Vec<u64>,
    /// All times, microseconds.
    pub(crate) sum_us: u64,
}

impl Histogram {
    /// Counts a time.
    pub(crate) fn add(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let bucket = BOUNDS.iter().position(|bound| seconds <= *bound);
        let bucket = bucket
            .and_then(|index| self.buckets.get(index))
            .unwrap_or(&self.above);
        bucket.fetch_add(1, Relaxed);
        self.sum_us
            .fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Returns the counts.
    pub(crate) fn read(&self) -> Counts {
        let buckets = self.buckets.iter().chain([&self.above]);
        Counts {
            buckets: buckets.map(|bucket| bucket.load(Relaxed)).collect(),
            sum_us: self.sum_us.load(Relaxed),
        }
    }

    /// Appends the histogram in Prometheus' text format.
    pub(crate) fn write(&self, name: &str, app: &str, page: &mut String) {
        let counts = self.read();
        let mut total = 0;
        for (index, count) in counts.buckets.iter().enumerate() {
            total += count;
            let bound = BOUNDS
                .get(index)
                .map_or_else(|| "+Inf".to_owned(), ToString::to_string);
            let _ = writeln!(page, "{name}_bucket{{app=\"{app}\",le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(page, "{name}_sum{{app=\"{app}\"}} {}", counts.sum_us as f64 / 1e6);
        let _ = writeln!(page, "{name}_count{{app=\"{app}\"}} {total}");
    }
}

impl Counts {
    /// Returns the counts since an earlier moment.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before);
        Self {
            buckets: buckets.map(|(now, then)| now.saturating_sub(then)).collect(),
            sum_us: self.sum_us.saturating_sub(earlier.sum_us),
        }
    }

    /// Number of times.
    pub(crate) fn total(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns a quantile in seconds, interpolated within its bucket; `None` without times.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let total = self.total();
        let rank = quantile * total as f64;
        let (mut below, mut from) = (0.0, 0.0);
        for (index, count) in self.buckets.iter().enumerate() {
            let until = BOUNDS.get(index).copied().unwrap_or(from);
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
        let histogram = Histogram::default();
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
    fn prometheus_buckets_are_cumulative() {
        let histogram = Histogram::default();
        histogram.add(Duration::from_millis(1));
        histogram.add(Duration::from_secs(500));
        let mut page = String::new();
        histogram.write("t", "a", &mut page);
        assert!(page.contains("t_bucket{app=\"a\",le=\"0.001\"} 1\n"), "{page}");
        assert!(page.contains("t_bucket{app=\"a\",le=\"120\"} 1\n"), "{page}");
        assert!(page.contains("t_bucket{app=\"a\",le=\"+Inf\"} 2\n"), "{page}");
        assert!(page.contains("t_count{app=\"a\"} 2\n"), "{page}");
    }
}
