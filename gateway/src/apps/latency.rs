//! Latency histograms of an app.

use kaskade_actors::metrics::histogram::Histogram;

/// Histograms of an app's requests, seconds.
#[derive(Debug)]
pub(crate) struct LatencyHistograms {
    /// Time from the request to the complete answer.
    pub(crate) request: Histogram,
    /// Time from a streamed request to its first token.
    pub(crate) first_token: Histogram,
    /// Mean time between two tokens of a streamed answer.
    pub(crate) per_token: Histogram,
}

impl Default for LatencyHistograms {
    fn default() -> Self {
        Self {
            request: Histogram::with_time_buckets(),
            first_token: Histogram::with_time_buckets(),
            per_token: Histogram::with_time_buckets(),
        }
    }
}
