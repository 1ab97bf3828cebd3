//! The states of the ingresses, as a worker without an ingress of its own follows them: which replicas to avoid.

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_policy::reachability::{IngressStates, IngressView, STATE_PERIOD_US};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    actor,
    bus::{Bus, BusError},
    dispatch::dispatcher::Dispatcher,
    wire::{IngressState, Message as _},
};

/// Subscribes to the states, and keeps the dispatcher's view of reachable replicas up to date. Until the first state
/// arrives, every replica is reachable. Returns once the subscription is active.
///
/// # Errors
/// [`BusError`] if the subscription fails.
pub(crate) async fn follow(bus: &Bus, dispatcher: &Dispatcher) -> Result<(), BusError> {
    let messages = bus
        .control()
        .subscribe(dispatcher.app().ingresses(), None)
        .await?;
    // Only a round trip proves that the subscription is active.
    bus.control().barrier().await?;
    let states = IngressStates::default();
    dispatcher.set_reachability(states.reachability());
    actor::spawn(run(messages, states, dispatcher.clone()));
    Ok(())
}

fn view(state: &IngressState) -> IngressView {
    IngressView {
        sequence: state.sequence,
        starting: state.starting,
        unavailable: state.unavailable.iter().cloned().collect(),
        gone: state.gone,
    }
}

async fn run(mut messages: Subscriber, mut states: IngressStates, dispatcher: Dispatcher) {
    let mut expiries = interval(Duration::from_micros(STATE_PERIOD_US));
    expiries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // States first: those that waited are read before older ones expire.
        let changed = tokio::select! {
            biased;
            message = messages.next() => match message.map(|message| IngressState::decode(&message.payload)) {
                Some(Ok(state)) => {
                    let now = dispatcher.clock().now();
                    states.hear(&state.ingress, view(&state), now)
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the state of an ingress could not be decoded");
                    false
                }
                None => return,
            },
            _ = expiries.tick() => states.expire(dispatcher.clock().now()),
        };
        if changed {
            dispatcher.set_reachability(states.reachability());
        }
    }
}
