//! Follows the states of the ingresses for workers: which replicas to avoid, and which epochs are in use.

use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use kaskade_policy::reachability::{IngressStates, IngressView, STATE_PERIOD_US};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    bus::{Bus, BusError},
    dispatch::dispatcher::Dispatcher,
    wire::{IngressState, Message as _},
};

/// Subscribes to the states and passes each to `on_state`. Returns once the subscription is active.
///
/// `avoids` is set in a process without an ingress: the states then update the dispatcher's view of reachable replicas;
/// until the first one arrives, every replica counts as reachable.
///
/// # Errors
/// [`BusError`] if the subscription fails.
pub(crate) async fn follow(
    bus: &Bus,
    dispatcher: &Dispatcher,
    avoids: bool,
    on_state: impl Fn(IngressState) + 'static,
) -> Result<(), BusError> {
    let states = IngressStates::default();
    if avoids {
        dispatcher.set_reachability(states.reachability());
    }
    let messages = bus
        .control()
        .subscribe(dispatcher.app().ingresses(), None)
        .await?;
    // Only a round trip proves that the subscription is active.
    bus.control().barrier().await?;
    let work = run(messages, states, dispatcher.clone(), avoids, on_state);
    dispatcher.supervisor().spawn("states of ingresses", work);
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

async fn run(
    mut messages: Subscriber,
    mut states: IngressStates,
    dispatcher: Dispatcher,
    avoids: bool,
    on_state: impl Fn(IngressState),
) {
    let mut expiries = interval(Duration::from_micros(STATE_PERIOD_US));
    expiries.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Read waiting states before expiring older ones.
        let changed = tokio::select! {
            biased;
            message = messages.next() => match message.map(|message| IngressState::decode(&message.payload)) {
                Some(Ok(state)) => {
                    let now = dispatcher.clock().now();
                    let changed = states.record(&state.ingress, view(&state), now);
                    on_state(state);
                    changed
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "the state of an ingress could not be decoded");
                    false
                }
                None => return,
            },
            _ = expiries.tick() => states.expire(dispatcher.clock().now()),
        };
        if changed && avoids {
            dispatcher.set_reachability(states.reachability());
        }
    }
}
