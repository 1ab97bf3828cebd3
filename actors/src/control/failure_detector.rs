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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use crate::actor::{Actor, Context, Handler, System};
    use crate::bus::{BusConfig, Embedded};
    use crate::clock::Clock;
    use crate::subjects::App;
    use crate::wire::ReplicaBeat;
    use kaskade_policy::liveness::BEAT_PERIOD_US;

    use super::*;

    struct Recorder(Arc<Mutex<Vec<String>>>);

    impl Actor for Recorder {
        type Context = Context<Self>;
    }

    impl Handler<LostReplicas> for Recorder {
        type Result = ();

        fn handle(&mut self, LostReplicas(lost): LostReplicas, _: &mut Context<Self>) {
            self.0.lock().unwrap().extend(lost);
        }
    }

    #[test]
    fn a_stalled_process_blames_no_other() {
        System::new().block_on(async {
            let embedded = Embedded::start(kaskade_broker::BrokerConfig::default()).unwrap();
            let config = BusConfig::new("stalled").embedded(&embedded);
            let bus = Bus::connect(config).await.unwrap();
            let dispatcher = Dispatcher::new(&bus, App::new("stalled").unwrap(), Clock::start());
            let lost = Arc::new(Mutex::new(Vec::new()));
            let recorder = Recorder(Arc::clone(&lost)).start();
            watch(&bus, &dispatcher, Some(recorder.recipient()))
                .await
                .unwrap();
            let mut seen = bus.subscribe(dispatcher.app().beats(), None).await.unwrap();
            bus.barrier().await.unwrap();
            let workers = ["a", "b"].map(|name| beating(name, embedded.url()));
            for _ in 0..4 {
                seen.next().await.unwrap();
            }
            // The stall under test: the thread of the actors does not run.
            std::thread::sleep(Duration::from_millis(500));
            for _ in 0..20 {
                seen.next().await.unwrap();
            }
            assert_eq!(*lost.lock().unwrap(), Vec::<String>::new());
            assert!(
                ["a", "b"]
                    .into_iter()
                    .all(|name| dispatcher.liveness(|liveness| liveness.alive(name)))
            );
            for worker in workers {
                worker.shutdown_background();
            }
        });
    }

    /// A worker on a thread of its own that publishes a heartbeat per period until it is dropped.
    fn beating(name: &'static str, url: String) -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let client = async_nats::connect(url).await.unwrap();
            let subject = App::new("stalled").unwrap().beat(name).unwrap();
            let mut period = tokio::time::interval(Duration::from_micros(BEAT_PERIOD_US));
            for sequence in 0.. {
                period.tick().await;
                let beat = Beat {
                    actor: name.to_owned(),
                    kind: "worker".to_owned(),
                    sequence,
                    replicas: vec![ReplicaBeat {
                        id: name.to_owned(),
                        ..ReplicaBeat::default()
                    }],
                    ..Beat::default()
                };
                client
                    .publish(subject.clone(), beat.encode().unwrap())
                    .await
                    .unwrap();
            }
        });
        runtime
    }
}
