//! Waits until the senders of an app no longer choose replicas that leave.

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

/// Shortest wait: a process that has not received the last heartbeat by then would take the replicas for lost.
const MIN_WAIT: Duration = Duration::from_micros(MISSED_HEARTBEATS * HEARTBEAT_PERIOD_US);

/// Longest wait for an ingress that continues to send.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The states that the ingresses of an app publish.
pub(super) struct Senders(Subscriber);

impl Senders {
    /// Subscribes to the states. Call it before the leave is announced.
    ///
    /// # Errors
    /// [`BusError`] if the subscription fails.
    pub(super) async fn listen(bus: &Bus, app: &App) -> Result<Self, BusError> {
        Ok(Self(bus.subscribe(app.ingresses(), None).await?))
    }

    /// Waits, until `end` at most, for [`MIN_WAIT`] and then for every ingress whose newest state does not list all of
    /// these replicas as unavailable.
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
