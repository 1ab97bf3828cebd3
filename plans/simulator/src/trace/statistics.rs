//! Summary statistics of a trace.

use serde::Serialize;

use super::Trace;

/// A trace in a few figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TraceStatistics {
    /// Length, seconds.
    pub seconds: usize,
    /// Requests.
    pub requests: f64,
    /// Mean load, requests/s.
    pub mean_qps: f64,
    /// Load of the busiest second, requests/s.
    pub peak_qps: f64,
    /// Standard deviation of the load, second by second, over its mean; 0 where no request comes.
    pub cv: f64,
}

impl Trace {
    /// The trace in a few figures.
    pub fn statistics(&self) -> TraceStatistics {
        let rates = self.rates();
        let seconds = rates.len();
        let requests: f64 = rates.iter().sum();
        let mean = requests / seconds.max(1) as f64;
        let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / seconds.max(1) as f64;
        TraceStatistics {
            seconds,
            requests,
            mean_qps: mean,
            peak_qps: rates.iter().copied().fold(0.0, f64::max),
            cv: if mean > 0.0 { variance.sqrt() / mean } else { 0.0 },
        }
    }

    /// The share of seconds whose load falls into each of `ranges` equal ranges of [0, `up_to_qps`]; higher loads count
    /// for the last. Sums to 1, which is what a gear planner weighs its ranges by.
    pub fn load_distribution(&self, ranges: usize, up_to_qps: f64) -> Vec<f64> {
        let rates = self.rates();
        let mut seconds = vec![0_u32; ranges];
        for rate in &rates {
            let range = (rate / up_to_qps * ranges as f64) as usize;
            if let Some(second) = seconds.get_mut(range.min(ranges.saturating_sub(1))) {
                *second += 1;
            }
        }
        let share = |seconds: u32| f64::from(seconds) / rates.len() as f64;
        seconds.into_iter().map(share).collect()
    }
}
