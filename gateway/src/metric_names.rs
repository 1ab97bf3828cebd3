//! Names of the metrics of a gateway; its histograms are those of `kaskade_actors`.

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

/// Failures to accept a connection, as without free file descriptors, since the start of the process.
pub(crate) const ACCEPT_FAILURES: &str = "kaskade_gateway_accept_failures_total";
