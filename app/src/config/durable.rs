//! How an app keeps and tries durable requests.

use std::num::NonZeroU32;

use kaskade_actors::ingress::durable::DurableConfig;
use kaskade_policy::redelivery::RedeliveryConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::{Size, Span};

/// Durable requests, taken at `kaskade.<app>.submit`. An empty table is enough; the streams are made with these values, and stay as
/// they are when the values change later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DurableRule {
    /// Deliveries of a request at which models fail, before it is put aside as a dead letter.
    pub max_deliver: NonZeroU32,
    /// Pause before the second delivery; it doubles with every further one.
    pub backoff: Span,
    /// Longest pause between two deliveries.
    pub max_backoff: Span,
    /// How long a request is tried that nobody can serve.
    pub give_up: Span,
    /// Durable requests that one ingress has in flight at once.
    pub in_flight: NonZeroU32,
    /// Silence of an ingress after which what it had is delivered to another; at least a second.
    pub silence: Span,
    /// How long results are kept.
    pub results: Span,
    /// How long dead letters are kept.
    pub dead: Span,
    /// Most bytes of requests that wait, again of results, and again of dead letters.
    pub max_size: Size,
    /// Copies of each stream in a cluster of nats-servers, 1 to 5.
    #[schemars(range(min = 1, max = 5))]
    pub replicas: NonZeroU32,
}

impl Default for DurableRule {
    fn default() -> Self {
        const fn seconds(seconds: u64) -> Span {
            Span::from_millis(seconds * 1_000)
        }
        Self {
            max_deliver: NonZeroU32::MIN.saturating_add(4),
            backoff: seconds(1),
            max_backoff: seconds(30),
            give_up: seconds(3_600),
            in_flight: NonZeroU32::MIN.saturating_add(255),
            silence: seconds(5),
            results: seconds(3_600),
            dead: seconds(7 * 24 * 3_600),
            max_size: Size::mebibytes(256),
            replicas: NonZeroU32::MIN,
        }
    }
}

impl DurableRule {
    /// What does not fit.
    pub(super) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.replicas.get() > 5 {
            problems.push(format!(
                "durable.replicas: JetStream keeps at most 5 copies, not {}",
                self.replicas
            ));
        }
        if self.silence < Span::from_millis(1_000) {
            problems.push(format!(
                "durable.silence: {} is too short for an ingress to say that it is at work; write `1s` or more",
                self.silence
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

impl From<&DurableRule> for DurableConfig {
    fn from(rule: &DurableRule) -> Self {
        let size = |count: NonZeroU32| usize::try_from(count.get()).unwrap_or(usize::MAX);
        Self {
            redelivery: RedeliveryConfig {
                max_deliver: rule.max_deliver.get(),
                backoff_us: rule.backoff.as_micros(),
                max_backoff_us: rule.max_backoff.as_micros(),
                give_up_us: rule.give_up.as_micros(),
            },
            in_flight: size(rule.in_flight),
            ack_wait: rule.silence.duration(),
            results: rule.results.duration(),
            dead: rule.dead.duration(),
            max_bytes: rule.max_size.bytes(),
            replicas: size(rule.replicas),
        }
    }
}
