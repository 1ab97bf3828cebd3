//! The failure detector: follows the heartbeats of an app and reports lost replicas.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::actor::Recipient;
use async_nats::connection::State;
use futures::StreamExt;

use crate::{
    bus::{Bus, BusError},
    dispatch::dispatcher::Dispatcher,
    ingress::{LeftReplicas, LostReplicas},
    wire::{Beat, Message as _},
};

/// Interval of the checks for missed heartbeats: half a heartbeat period.
const LOOK: Duration = Duration::from_millis(50);

/// Subscribes to every heartbeat of the app, updates the dispatcher's liveness, and reports lost replicas to the
/// ingress, if this process has one.
///
/// # Errors
/// [`BusError`] if the subscription fails.
pub(crate) async fn watch(
    bus: &Bus,
    dispatcher: &Dispatcher,
    ingress: Option<(Recipient<LostReplicas>, Recipient<LeftReplicas>)>,
) -> Result<(), BusError> {
    let mut beats = bus.subscribe(dispatcher.app().beats(), None).await?;
    let supervisor = dispatcher.supervisor().clone();
    let (client, dispatcher) = (bus.client().clone(), dispatcher.clone());
    let tell = move |lost: Vec<String>, left: Vec<String>| {
        let Some((losses, leaves)) = &ingress else { return };
        if !lost.is_empty() {
            losses.do_send(LostReplicas(lost));
        }
        if !left.is_empty() {
            leaves.do_send(LeftReplicas(left));
        }
    };
    supervisor.spawn("failure detector", async move {
        let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        // Replicas that have left since the last check, and before it.
        let (mut left, mut earlier) = (Vec::new(), Vec::new());
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                message = beats.next() => match message.map(|message| Beat::decode(&message.payload)) {
                    Some(Ok(beat)) => {
                        let heard = hear(&dispatcher, &mut hosts, &beat);
                        left.extend(heard.left);
                        tell(heard.lost, Vec::new());
                    }
                    Some(Err(error)) => tracing::warn!(%error, "a heartbeat could not be decoded"),
                    None => return,
                },
                _ = look.tick() => {
                    // Without a connection no heartbeat arrives; that is no evidence of a failure.
                    if client.connection_state() != State::Connected {
                        continue;
                    }
                    let now = dispatcher.clock().now();
                    let lost = dispatcher.liveness(|liveness| liveness.newly_lost(now));
                    // The results that a replica sent before it left may wait behind its last heartbeat.
                    let left = std::mem::replace(&mut earlier, std::mem::take(&mut left));
                    tell(lost, left);
                }
            }
        }
    });
    Ok(())
}

/// Replicas whose requests the ingress must send again.
struct Changes {
    lost: Vec<String>,
    /// They have left in good order.
    left: Vec<String>,
}

/// Records a heartbeat: the replicas that it lists are alive, or leaving; those that its sender no longer lists have
/// left in good order. The replicas of a worker that restarted are lost.
fn hear(dispatcher: &Dispatcher, hosts: &mut BTreeMap<String, BTreeSet<String>>, beat: &Beat) -> Changes {
    let now = dispatcher.clock().now();
    let named: BTreeSet<String> = beat.replicas.iter().map(|replica| replica.id.clone()).collect();
    let before = hosts
        .insert(beat.actor.clone(), named.clone())
        .unwrap_or_default();
    dispatcher.liveness(|liveness| {
        let left: Vec<String> = before.difference(&named).cloned().collect();
        for replica in &left {
            liveness.forget(replica);
        }
        for replica in &named {
            if beat.leaving {
                liveness.leaving(replica, now);
            } else {
                liveness.beat(replica, now);
            }
        }
        if liveness.restarted(&beat.actor, beat.sequence) {
            let lost = before.into_iter().collect();
            return Changes {
                lost,
                left: Vec::new(),
            };
        }
        Changes {
            lost: Vec::new(),
            left,
        }
    })
}
