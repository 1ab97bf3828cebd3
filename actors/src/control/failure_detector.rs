//! Hears the heartbeats of an app and tells who fell silent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::actor::{self, Recipient};
use async_nats::connection::State;
use futures::StreamExt;

use crate::{
    bus::{Bus, BusError},
    dispatch::dispatcher::Dispatcher,
    ingress::LostReplicas,
    wire::{Beat, Message as _},
};

/// How often silence is looked for: half a beat.
const LOOK: Duration = Duration::from_millis(50);

/// Listens to every beat of the app, keeps the dispatcher's liveness, and reports lost replicas to the ingress, if this
/// process has one.
///
/// # Errors
/// [`BusError`] when the subscription fails.
pub async fn watch(
    bus: &Bus,
    dispatcher: &Dispatcher,
    ingress: Option<Recipient<LostReplicas>>,
) -> Result<(), BusError> {
    let mut beats = bus.subscribe(dispatcher.app().beats(), None).await?;
    let (client, dispatcher) = (bus.client().clone(), dispatcher.clone());
    let tell = move |lost: Vec<String>| {
        if let (false, Some(ingress)) = (lost.is_empty(), &ingress) {
            ingress.do_send(LostReplicas(lost));
        }
    };
    actor::spawn(async move {
        let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                message = beats.next() => match message.map(|message| Beat::decode(&message.payload)) {
                    Some(Ok(beat)) => tell(hear(&dispatcher, &mut hosts, &beat)),
                    Some(Err(error)) => tracing::warn!(%error, "a heartbeat could not be read"),
                    None => return,
                },
                _ = look.tick() => {
                    // Cut off from the broker, everybody is silent: that says nothing about anybody.
                    if client.connection_state() != State::Connected {
                        continue;
                    }
                    let now = dispatcher.clock().now();
                    tell(dispatcher.liveness(|liveness| liveness.newly_lost(now)));
                }
            }
        }
    });
    Ok(())
}

/// Notes a beat: the replicas it names live; those that its sender no longer names have left in good order. Gives those that its sender
/// hosted before it started again.
fn hear(dispatcher: &Dispatcher, hosts: &mut BTreeMap<String, BTreeSet<String>>, beat: &Beat) -> Vec<String> {
    let now = dispatcher.clock().now();
    let named: BTreeSet<String> = beat.replicas.iter().map(|replica| replica.id.clone()).collect();
    let before = hosts
        .insert(beat.actor.clone(), named.clone())
        .unwrap_or_default();
    dispatcher.liveness(|liveness| {
        for left in before.difference(&named) {
            liveness.forget(left);
        }
        for replica in &named {
            liveness.beat(replica, now);
        }
        if liveness.restarted(&beat.actor, beat.sequence) {
            before.into_iter().collect()
        } else {
            Vec::new()
        }
    })
}
