//! Latency counts in logarithmic buckets: four per octave, so that a quantile is within 10 % of the latency.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets per factor of two.
const PARTS: usize = 4;

/// Number of buckets: the last one begins at about two minutes, the default of `ingress.max_budget`.
const BUCKETS: usize = 27 * PARTS;

/// Latency counts by bucket.
#[derive(Debug)]
pub(super) struct Latencies([AtomicU64; BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Latencies {
    /// Adds a latency, microseconds.
    pub(super) fn add(&self, us: u64) {
        let bucket = (us.max(1) as f64).log2() * PARTS as f64;
        let bucket = self.0.get(bucket as usize).or(self.0.last());
        if let Some(count) = bucket {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Returns the counts by bucket, without trailing empty ones.
    pub(super) fn read(&self) -> Vec<u64> {
        let mut counts: Vec<u64> = self.0.iter().map(|count| count.load(Relaxed)).collect();
        while counts.last() == Some(&0) {
            counts.pop();
        }
        counts
    }
}

/// Returns a quantile of latency counts ([`super::Snapshot::latencies`]), seconds: the middle of its bucket. `None`
/// without counts.
pub fn quantile(counts: &[u64], quantile: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let rank = quantile.clamp(0.0, 1.0) * total as f64;
    let mut below = 0.0;
    for (bucket, count) in counts.iter().enumerate() {
        below += *count as f64;
        if *count > 0 && below >= rank {
            let middle = (bucket as f64 + 0.5) / PARTS as f64;
            return Some(middle.exp2() / 1e6);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_tenth() {
        let latencies = Latencies::default();
        assert_eq!(quantile(&latencies.read(), 0.5), None);
        for us in 1..=1_000 {
            latencies.add(us * 100);
        }
        let counts = latencies.read();
        for (share, seconds) in [(0.5, 0.05), (0.95, 0.095), (0.99, 0.099), (0.0, 1e-4)] {
            let found = quantile(&counts, share).unwrap();
            assert!((found / seconds - 1.0).abs() < 0.1, "{share}: {found}");
        }
        latencies.add(0);
        latencies.add(u64::MAX);
        assert_eq!(latencies.read().iter().sum::<u64>(), 1_002);
    }
}
