//! What became of every request.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use serde::Serialize;

/// Latencies are kept to three significant digits up to this; longer ones count as this long.
const LONGEST: Duration = Duration::from_mins(10);

/// What a request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A result.
    Answered {
        /// The variant that answered.
        variant: String,
    },
    /// A typed refusal or failure, by its code.
    Failed {
        /// The code.
        code: String,
    },
}

/// Counts and latencies of one run.
#[derive(Debug)]
pub struct Record {
    slo: Duration,
    latencies: Histogram<u64>,
    in_time: u64,
    variants: BTreeMap<String, u64>,
    errors: BTreeMap<String, u64>,
}

/// A run in figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// Length of the measured part, seconds.
    pub seconds: f64,
    /// Requests sent in it.
    pub requests: u64,
    /// Results received.
    pub replies: u64,
    /// Results per second.
    pub throughput_per_s: f64,
    /// Results inside the objective, per second.
    pub goodput_per_s: f64,
    /// The latency objective, milliseconds.
    pub slo_ms: f64,
    /// Latencies of the results, from when the request was due.
    pub latency_ms: Latency,
    /// Share of the results per variant.
    pub variants: BTreeMap<String, f64>,
    /// Failures by code.
    pub errors: BTreeMap<String, u64>,
}

/// Quantiles of a latency, milliseconds; absent where nothing was answered.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Mean.
    pub mean: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// Maximum.
    pub max: Option<f64>,
}

impl Record {
    /// An empty record with a latency objective.
    ///
    /// # Errors
    /// Never for the constants used here; the histogram's own bounds check is passed on.
    pub fn new(slo: Duration) -> Result<Self, CreationError> {
        Ok(Self {
            slo,
            latencies: Histogram::new_with_bounds(1, micros(LONGEST), 3)?,
            in_time: 0,
            variants: BTreeMap::new(),
            errors: BTreeMap::new(),
        })
    }

    /// Adds one request: how long after it was due its terminal reply came, and what that was.
    pub fn add(&mut self, latency: Duration, outcome: Outcome) {
        match outcome {
            Outcome::Answered { variant } => {
                self.latencies.saturating_record(micros(latency).max(1));
                self.in_time += u64::from(latency <= self.slo);
                *self.variants.entry(variant).or_default() += 1;
            }
            Outcome::Failed { code } => *self.errors.entry(code).or_default() += 1,
        }
    }

    /// The run in figures.
    pub fn figures(&self, length: Duration) -> Figures {
        let seconds = length.as_secs_f64();
        let replies = self.latencies.len();
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        Figures {
            seconds,
            requests: replies + self.errors.values().sum::<u64>(),
            replies,
            throughput_per_s: per_second(replies),
            goodput_per_s: per_second(self.in_time),
            slo_ms: self.slo.as_secs_f64() * 1e3,
            latency_ms: self.latency(),
            variants: self
                .variants
                .iter()
                .map(|(variant, count)| (variant.clone(), *count as f64 / replies as f64))
                .collect(),
            errors: self.errors.clone(),
        }
    }

    fn latency(&self) -> Latency {
        if self.latencies.is_empty() {
            return Latency::default();
        }
        let at = |quantile| Some(self.latencies.value_at_quantile(quantile) as f64 / 1e3);
        Latency {
            mean: Some(self.latencies.mean() / 1e3),
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: Some(self.latencies.max() as f64 / 1e3),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(variant: &str) -> Outcome {
        Outcome::Answered {
            variant: variant.to_owned(),
        }
    }

    #[test]
    fn results_and_failures_are_counted_apart() {
        let mut record = Record::new(Duration::from_millis(50)).unwrap();
        for millis in 1..=100 {
            record.add(
                Duration::from_millis(millis),
                answered(if millis <= 75 { "s" } else { "l" }),
            );
        }
        let refused = Outcome::Failed {
            code: "full".to_owned(),
        };
        record.add(Duration::from_millis(1), refused);
        let figures = record.figures(Duration::from_secs(2));
        assert_eq!((figures.requests, figures.replies), (101, 100));
        assert!((figures.throughput_per_s - 50.0).abs() < 1e-9);
        assert!((figures.goodput_per_s - 25.0).abs() < 1e-9);
        assert!((figures.variants["s"] - 0.75).abs() < 1e-9);
        assert_eq!(figures.errors["full"], 1);
        let p99 = figures.latency_ms.p99.unwrap();
        assert!((p99 - 99.0).abs() < 0.1, "{p99}");
    }

    #[test]
    fn a_run_without_a_result_has_no_latency() {
        let record = Record::new(Duration::from_millis(50)).unwrap();
        let figures = record.figures(Duration::ZERO);
        assert_eq!(figures.latency_ms, Latency::default());
        assert!(figures.throughput_per_s.abs() < f64::EPSILON);
    }

    #[test]
    fn a_latency_beyond_the_longest_still_counts() {
        let mut record = Record::new(Duration::from_millis(50)).unwrap();
        record.add(Duration::from_hours(24), answered("s"));
        let max = record.figures(Duration::from_secs(1)).latency_ms.max.unwrap();
        assert!(max >= 599_000.0, "{max}");
    }
}
