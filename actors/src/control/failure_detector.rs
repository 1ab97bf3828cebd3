//! The failure detector: follows the heartbeats of an app and reports lost replicas.

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
    plan::{beats, versions::PlanVersions},
    wire::Beat,
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
    plans: &PlanVersions,
    ingress: Option<Recipient<LostReplicas>>,
) -> Result<(), BusError> {
    let mut heartbeats = bus.subscribe(dispatcher.app().beats(), None).await?;
    let (client, dispatcher, plans) = (bus.client().clone(), dispatcher.clone(), plans.clone());
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
                message = heartbeats.next() => match message.map(|message| beats::read(dispatcher.app(), &plans, &message)) {
                    Some(Ok(None)) => {}
                    Some(Ok(Some(beat))) => tell(hear(&dispatcher, &mut hosts, &beat)),
                    Some(Err(error)) => tracing::warn!(%error, "a heartbeat could not be decoded"),
                    None => return,
                },
                _ = look.tick() => {
                    // Without a connection no heartbeat arrives; that is no evidence of a failure.
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

/// Records a heartbeat: the replicas that it lists are alive; those that its sender no longer lists have left in good
/// order. Returns the replicas to treat as lost because their worker restarted.
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
