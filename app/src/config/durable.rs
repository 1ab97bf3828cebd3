//! Retention and retries of an app's durable requests.

use std::num::NonZeroU32;

use kaskade_actors::ingress::durable;
use kaskade_policy::redelivery::RedeliveryConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{ByteSize, HumanDuration};

/// Durable requests, submitted at `kaskade.<app>.submit`. An empty table enables them. The streams are created with these
/// values; later changes do not alter them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DurableConfig {
    /// Failed deliveries of a request before it becomes a dead letter.
    pub max_deliver: NonZeroU32,
    /// Pause before the second delivery; it doubles with each further delivery.
    pub backoff: HumanDuration,
    /// Maximum pause between two deliveries.
    pub max_backoff: HumanDuration,
    /// How long a request is retried while no replica can serve it.
    pub retry_timeout: HumanDuration,
    /// Maximum durable requests in flight in one ingress.
    pub max_in_flight: NonZeroU32,
    /// How long an ingress may be silent before its requests are delivered to another one; at least 1 s.
    pub ack_wait: HumanDuration,
    /// How long results are kept.
    pub result_retention: HumanDuration,
    /// How long dead letters are kept.
    pub dead_letter_retention: HumanDuration,
    /// Maximum size of each stream: waiting requests, results, dead letters. JetStream reserves it.
    pub max_size: ByteSize,
    /// Replicas of each stream in a cluster of nats-servers, 1 to 5 [default: `nats.replicas`].
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 5))]
    pub replicas: Option<NonZeroU32>,
}

impl Default for DurableConfig {
    fn default() -> Self {
        const fn seconds(seconds: u64) -> HumanDuration {
            HumanDuration::from_millis(seconds * 1_000)
        }
        Self {
            max_deliver: NonZeroU32::MIN.saturating_add(4),
            backoff: seconds(1),
            max_backoff: seconds(30),
            retry_timeout: seconds(3_600),
            max_in_flight: NonZeroU32::MIN.saturating_add(255),
            ack_wait: seconds(5),
            result_retention: seconds(3_600),
            dead_letter_retention: seconds(7 * 24 * 3_600),
            max_size: ByteSize::mebibytes(256),
            replicas: None,
        }
    }
}

/// Returns a problem if JetStream does not support a number of replicas.
pub(super) fn too_many_replicas(field: &str, replicas: Option<NonZeroU32>) -> Option<String> {
    let replicas = replicas.filter(|replicas| replicas.get() > MAX_REPLICAS)?;
    Some(format!(
        "{field}: JetStream supports at most {MAX_REPLICAS} replicas of a stream, not {replicas}"
    ))
}

/// Maximum number of replicas of a stream in JetStream.
const MAX_REPLICAS: u32 = 5;

impl DurableConfig {
    /// Returns the values that contradict each other or are out of range.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        problems.extend(too_many_replicas("durable.replicas", self.replicas));
        if self.ack_wait < HumanDuration::from_millis(1_000) {
            problems.push(format!(
                "durable.ack_wait: {} is shorter than an ingress needs to report progress; write `1s` or more",
                self.ack_wait
            ));
        }
        if self.max_backoff < self.backoff {
            problems.push(format!(
                "durable.max_backoff: {} is shorter than the first pause, {}",
                self.max_backoff, self.backoff
            ));
        }
        problems
    }
}

impl From<&DurableConfig> for durable::DurableConfig {
    fn from(config: &DurableConfig) -> Self {
        let size = |count: NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
        Self {
            redelivery: RedeliveryConfig {
                max_deliver: config.max_deliver.get(),
                backoff_us: config.backoff.as_micros(),
                max_backoff_us: config.max_backoff.as_micros(),
                give_up_us: config.retry_timeout.as_micros(),
            },
            in_flight: size(config.max_in_flight),
            ack_wait: config.ack_wait.duration(),
            results: config.result_retention.duration(),
            dead: config.dead_letter_retention.duration(),
            max_bytes: config.max_size.bytes(),
            replicas: config.replicas.map(size),
        }
    }
}
