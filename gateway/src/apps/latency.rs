//! Latency histograms of an app.

use kaskade_actors::metrics::histogram::Histogram;

/// Histograms of an app's requests, seconds.
#[derive(Debug)]
pub(crate) struct LatencyHistograms {
    /// From the request to the complete answer.
    pub(crate) request: Histogram,
    /// From a streamed request to its first token.
    pub(crate) first_token: Histogram,
    /// Between two tokens of a streamed answer, its mean.
    pub(crate) per_token: Histogram,
}

impl Default for LatencyHistograms {
    fn default() -> Self {
        Self {
            request: Histogram::of_times(),
            first_token: Histogram::of_times(),
            per_token: Histogram::of_times(),
        }
    }
}
