//! Waits until the senders of an app no longer choose the replicas that are leaving.

use std::{collections::BTreeSet, time::Duration};

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_policy::liveness::{HEARTBEAT_PERIOD_US, MISSED_HEARTBEATS};
use tokio::time::{Instant, timeout_at};

use crate::{
    bus::{Bus, BusError},
    subjects::App,
    wire::{IngressState, Message as _},
};

/// Shortest wait: a process that has not received the last heartbeat by then would count the replicas as lost.
const MIN_WAIT: Duration = Duration::from_micros(MISSED_HEARTBEATS * HEARTBEAT_PERIOD_US);

/// Longest wait for an ingress that continues to send.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Subscription to the ingress states of an app.
pub(super) struct Senders(Subscriber);

impl Senders {
    /// Subscribes to the ingress states. Call it before announcing the departure.
    ///
    /// # Errors
    /// [`BusError`] if the subscription fails.
    pub(super) async fn listen(bus: &Bus, app: &App) -> Result<Self, BusError> {
        Ok(Self(bus.subscribe(app.ingresses(), None).await?))
    }

    /// Waits for [`MIN_WAIT`], then until every ingress lists all of `replicas` as unavailable in its newest state;
    /// never beyond [`MAX_WAIT`] or `end`.
    pub(super) async fn heed(mut self, replicas: &[String], end: Instant) {
        let begun = Instant::now();
        let mut sending = BTreeSet::new();
        loop {
            let wait = if sending.is_empty() { MIN_WAIT } else { MAX_WAIT };
            let Ok(Some(message)) = timeout_at(end.min(begun + wait), self.0.next()).await else {
                break;
            };
            let Ok(state) = IngressState::decode(&message.payload) else {
                continue;
            };
            let avoids = |replica| state.unavailable.contains(replica);
            if state.gone || replicas.iter().all(avoids) {
                sending.remove(&state.ingress);
            } else {
                sending.insert(state.ingress);
            }
        }
        if !sending.is_empty() {
            tracing::warn!(?sending, "leaving although these ingresses still send requests");
        }
    }
}
