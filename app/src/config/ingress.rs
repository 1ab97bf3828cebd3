//! Admission and batching of requests.

use std::num::NonZeroU32;

use kaskade_actors::wire::headers::MAX_BUDGET;
use kaskade_policy::plan::Batching;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, HumanDuration};

/// Admission of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct IngressConfig {
    /// Maximum requests in flight in one process; more are refused.
    pub max_in_flight: NonZeroU32,
    /// Maximum bytes of the inputs of requests in flight in one process; more are refused.
    pub max_in_flight_bytes: ByteSize,
    /// Maximum requests in the queue of one replica; more are refused.
    pub queue_capacity: NonZeroU32,
    /// Budget of a request that states none.
    pub default_budget: HumanDuration,
    /// Maximum budget, at most 1 h; a longer budget of a request is shortened to it.
    pub max_budget: HumanDuration,
    /// Replies that an ingress remembers, by the ids of their requests, for labels that arrive later (`kaskade feedback`).
    pub recent_replies: u32,
    /// Time to finish requests in flight on shutdown.
    pub drain_timeout: HumanDuration,
}

impl Default for IngressConfig {
    fn default() -> Self {
        const fn count(n: u32) -> NonZeroU32 {
            NonZeroU32::MIN.saturating_add(n - 1)
        }
        Self {
            max_in_flight: count(4_096),
            max_in_flight_bytes: ByteSize::mebibytes(1_024),
            queue_capacity: count(1_024),
            default_budget: HumanDuration::from_millis(2_000),
            max_budget: HumanDuration::from_millis(120_000),
            recent_replies: 10_000,
            drain_timeout: HumanDuration::from_millis(10_000),
        }
    }
}

impl IngressConfig {
    /// Returns what is wrong with the maximum budget, if it is too long.
    pub(super) fn problem(&self) -> Option<String> {
        (self.max_budget.duration() > MAX_BUDGET).then(|| {
            format!(
                "ingress.max_budget: {} is longer than the longest budget; write `{}` or less",
                self.max_budget,
                humantime::format_duration(MAX_BUDGET)
            )
        })
    }
}

/// Triggers by which a replica's queue becomes a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BatchingConfig {
    /// An idle replica starts a batch when this many requests wait.
    pub min_queue: NonZeroU32,
    /// Maximum batch size.
    pub max_batch: NonZeroU32,
    /// An idle replica starts a batch when the oldest request has waited this long.
    pub max_wait: HumanDuration,
}

impl Default for BatchingConfig {
    fn default() -> Self {
        Self {
            min_queue: NonZeroU32::MIN,
            max_batch: NonZeroU32::MIN.saturating_add(31),
            max_wait: HumanDuration::from_millis(2),
        }
    }
}

impl From<BatchingConfig> for Batching {
    fn from(config: BatchingConfig) -> Self {
        Self {
            min_queue: config.min_queue.get(),
            max_batch: config.max_batch.get(),
            max_wait_us: config.max_wait.as_micros(),
        }
    }
}
