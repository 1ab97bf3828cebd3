//! The failure detector of a process with ingresses: follows the workers' heartbeats and reports lost replicas.

use std::collections::{BTreeMap, BTreeSet};

use async_nats::connection::State;
use kaskade_policy::liveness::Start;

use crate::{
    bus::Bus, dispatch::dispatcher::Dispatcher, ingress::Ingresses, plan::versions::PlanVersions,
    wire::Heartbeat,
};

/// Updates the dispatcher's liveness state, and reports lost replicas to the ingresses. [`super::heartbeats`] feeds it.
pub(crate) struct FailureDetector {
    bus: Bus,
    dispatcher: Dispatcher,
    ingresses: Ingresses,
    /// Instance of the worker in this process.
    own: Option<u64>,
    /// Replicas that left since the last check, and between the last two checks.
    left: [Vec<String>; 2],
    /// Replicas by worker, as listed in the worker's last heartbeat.
    hosts: BTreeMap<String, BTreeSet<String>>,
    /// Time at which silent workers and replicas were last forgotten, microseconds.
    forgotten_at: u64,
}

/// Interval at which silent workers and replicas are forgotten, microseconds.
const FORGETS_EVERY_US: u64 = 1_000_000;

impl FailureDetector {
    pub(crate) fn new(bus: &Bus, dispatcher: &Dispatcher, ingresses: &Ingresses) -> Self {
        Self {
            bus: bus.control().clone(),
            dispatcher: dispatcher.clone(),
            ingresses: ingresses.clone(),
            own: None,
            left: Default::default(),
            hosts: BTreeMap::new(),
            forgotten_at: 0,
        }
    }

    /// Sets the instance of the worker that runs in the same process.
    pub(crate) fn with_local_worker(mut self, worker: Option<u64>) -> Self {
        self.own = worker;
        self
    }

    /// Records a heartbeat. The replicas that it lists are alive; replicas that its sender no longer lists have left in
    /// good order. If the worker restarted, the replicas that it hosted before are lost.
    pub(crate) fn record(&mut self, beat: &Heartbeat) {
        let now = self.dispatcher.clock().now();
        let named: BTreeSet<String> = beat.replicas.iter().map(|replica| replica.id.clone()).collect();
        let before = self
            .hosts
            .insert(beat.actor.clone(), named.clone())
            .unwrap_or_default();
        // Two epochs may give one id to replicas of two workers: the replica is present while either lists it.
        let gone = |replica: &&String| !self.hosts.values().any(|listed| listed.contains(*replica));
        let left: Vec<String> = before.difference(&named).filter(gone).cloned().collect();
        let start = self.dispatcher.liveness(|liveness| {
            for replica in &left {
                liveness.forget(replica);
            }
            for replica in &beat.replicas {
                if beat.leaving || replica.unavailable {
                    liveness.record_leaving(&replica.id, now);
                } else {
                    liveness.record_heartbeat(&replica.id, now);
                }
            }
            liveness.started(&beat.actor, beat.instance, beat.sequence, now)
        });
        if start == Start::DuplicateName {
            let worker = &beat.actor;
            tracing::warn!(
                worker,
                "two processes use the worker name `{worker}`; failures of either are detected late. Stop one, or give it another name"
            );
        }
        if start == Start::Restarted && self.own == Some(beat.instance) {
            // A connection broke. Requests handed to its replicas inside this process are still there.
            self.ingresses.reconnected();
        } else if start == Start::Restarted {
            self.report_lost(&before.into_iter().collect::<Vec<_>>());
        } else if beat.leaving {
            // A worker that stays unloads only drained replicas.
            let [newest, _] = &mut self.left;
            newest.extend(left);
        }
    }

    /// Reports replicas that fell silent.
    pub(crate) fn check(&mut self, plans: &PlanVersions) {
        // Without a connection no heartbeat arrives, which is no evidence of a failure.
        if self.bus.client().connection_state() != State::Connected {
            return;
        }
        let now = self.dispatcher.clock().now();
        self.report_lost(&self.dispatcher.liveness(|liveness| liveness.newly_lost(now)));
        // Results that a replica sent before it left may be queued behind its last heartbeat, so its requests are
        // retried one check later.
        let [newest, earlier] = &mut self.left;
        let due = std::mem::replace(earlier, std::mem::take(newest));
        if !due.is_empty() {
            self.ingresses.replicas_left(&due);
        }
        if now >= self.forgotten_at + FORGETS_EVERY_US {
            self.forgotten_at = now;
            self.forget_silent(now, plans);
        }
    }

    /// Forgets workers, and replicas that no adopted plan places, after a minute of silence.
    fn forget_silent(&mut self, now: u64, plans: &PlanVersions) {
        let versions = plans.all();
        let placed = versions.iter().flat_map(|version| &version.plan.placement);
        let placed: BTreeSet<&str> = placed.map(|replica| replica.id.as_str()).collect();
        self.dispatcher.liveness(|liveness| {
            liveness.forget_lost(now, |name| placed.contains(name));
            self.hosts.retain(|worker, _| liveness.knows_process(worker));
        });
    }

    fn report_lost(&self, lost: &[String]) {
        if !lost.is_empty() {
            self.ingresses.replicas_lost(lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use futures::StreamExt;

    use crate::actor::{Actor, Context, Handler, System};
    use crate::bus::{BusConfig, Embedded};
    use crate::clock::Clock;
    use crate::control::heartbeats::Heartbeats;
    use crate::ingress::{DepartedReplicas, LostReplicas, ProcessReconnected};
    use crate::subjects::App;
    use crate::wire::{Message as _, ReplicaBeat};
    use kaskade_policy::liveness::{CHECK_PERIOD_US, FORGOTTEN_US, HEARTBEAT_PERIOD_US};

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

    impl Handler<DepartedReplicas> for Recorder {
        type Result = ();

        fn handle(&mut self, _: DepartedReplicas, _: &mut Context<Self>) {}
    }

    impl Handler<ProcessReconnected> for Recorder {
        type Result = ();

        fn handle(&mut self, _: ProcessReconnected, _: &mut Context<Self>) {
            self.0.lock().unwrap().push("reconnected".to_owned());
        }
    }

    /// Regression: every request at a replica of the process was retried after a connection broke, although none had
    /// used it.
    #[test]
    fn a_broken_connection_of_the_process_loses_no_replica_of_it() {
        System::new().block_on(async {
            let bus = Bus::connect(BusConfig::new("own-beats")).await.unwrap();
            let dispatcher = Dispatcher::new(&bus, App::new("own-beats").unwrap(), Clock::start());
            for (shards, is_own, told) in [
                (1, true, Vec::new()),
                (2, true, vec!["reconnected"; 2]),
                (1, false, vec!["r"]),
            ] {
                let recorded = Arc::new(Mutex::new(Vec::new()));
                let ingresses = Ingresses::default();
                let recorders: Vec<_> = (0..shards)
                    .map(|_| Recorder(Arc::clone(&recorded)).start())
                    .collect();
                for recorder in &recorders {
                    ingresses.add("recorder", recorder);
                }
                let detector = FailureDetector::new(&bus, &dispatcher, &ingresses);
                let mut detector = detector.with_local_worker(is_own.then_some(7));
                let worker = format!("w-{shards}-{is_own}");
                for sequence in [1, 2, 3, 1] {
                    detector.record(&Heartbeat {
                        actor: worker.clone(),
                        instance: 7,
                        replicas: vec![ReplicaBeat {
                            id: "r".to_owned(),
                            ..ReplicaBeat::default()
                        }],
                        sequence,
                        ..Heartbeat::default()
                    });
                }
                for recorder in &recorders {
                    // Behind the other messages in the mailbox.
                    recorder.send(DepartedReplicas(Vec::new())).await.unwrap();
                }
                assert_eq!(*recorded.lock().unwrap(), told, "{shards} {is_own}");
            }
        });
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
            let mut heartbeats = Heartbeats::default();
            let ingresses = Ingresses::default();
            ingresses.add("recorder", &recorder);
            let detector = FailureDetector::new(&bus, &dispatcher, &ingresses);
            heartbeats.detect(detector);
            heartbeats
                .start(&bus, &dispatcher, &PlanVersions::new("stalled"))
                .await
                .unwrap();
            let mut seen = bus.subscribe(dispatcher.app().beats(), None).await.unwrap();
            bus.barrier().await.unwrap();
            let workers = ["a", "b"].map(|name| beating(name, embedded.url()));
            for _ in 0..4 {
                seen.next().await.unwrap();
            }
            // The simulated stall: the actors' thread does not run.
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

    /// Regression: stages in other languages have a new name at every start, so killed ones filled the memory of every
    /// ingress.
    #[test]
    fn a_killed_stage_is_forgotten_after_a_minute() {
        System::new().block_on(async {
            let embedded = Embedded::start(kaskade_broker::BrokerConfig::default()).unwrap();
            let bus = Bus::connect(BusConfig::new("forgets").embedded(&embedded))
                .await
                .unwrap();
            let dispatcher = Dispatcher::new(&bus, App::new("forgets").unwrap(), Clock::start());
            let mut detector = FailureDetector::new(&bus, &dispatcher, &Ingresses::default());
            let plans = PlanVersions::new("forgets");
            for actor in ["alive", "killed"] {
                detector.record(&Heartbeat {
                    actor: actor.to_owned(),
                    replicas: vec![ReplicaBeat {
                        id: format!("{actor}-replica"),
                        ..ReplicaBeat::default()
                    }],
                    ..Heartbeat::default()
                });
            }
            let later = dispatcher.clock().now() + FORGOTTEN_US + CHECK_PERIOD_US;
            dispatcher.liveness(|liveness| {
                assert!(liveness.declare_lost("killed-replica"));
                assert_eq!(liveness.started("alive", 0, 0, later), Start::Same);
            });
            detector.forget_silent(later, &plans);
            assert_eq!(detector.hosts.keys().collect::<Vec<_>>(), ["alive"]);
            dispatcher.liveness(|liveness| {
                assert!(liveness.alive("alive-replica"));
                assert!(!liveness.lost("killed-replica"), "it is forgotten");
            });
        });
    }

    #[test]
    fn a_replica_that_cannot_answer_is_avoided_and_not_lost() {
        System::new().block_on(async {
            let embedded = Embedded::start(kaskade_broker::BrokerConfig::default()).unwrap();
            let config = BusConfig::new("unavailable").embedded(&embedded);
            let bus = Bus::connect(config).await.unwrap();
            let dispatcher = Dispatcher::new(&bus, App::new("unavailable").unwrap(), Clock::start());
            let lost = Arc::new(Mutex::new(Vec::new()));
            let recorder = Recorder(Arc::clone(&lost)).start();
            let ingresses = Ingresses::default();
            ingresses.add("recorder", &recorder);
            let mut detector = FailureDetector::new(&bus, &dispatcher, &ingresses);
            let mut beat = |unavailable: bool, sequence: u64| {
                detector.record(&Heartbeat {
                    actor: "w".to_owned(),
                    replicas: vec![ReplicaBeat {
                        id: "large".to_owned(),
                        unavailable,
                        ..ReplicaBeat::default()
                    }],
                    sequence,
                    ..Heartbeat::default()
                });
                detector.check(&PlanVersions::new("unavailable"));
                dispatcher.liveness(|liveness| {
                    let view = liveness.reachability();
                    assert!(liveness.alive("large") && !liveness.lost("large"));
                    assert_eq!(view.is_avoided("large"), unavailable);
                    view.is_reachable("large")
                })
            };
            assert!(beat(false, 0));
            assert!(!beat(true, 1) && !beat(true, 2), "its endpoint is down");
            assert!(beat(false, 3), "it answers again");
            bus.barrier().await.unwrap();
            assert_eq!(*lost.lock().unwrap(), Vec::<String>::new());
        });
    }

    /// Starts a worker on a separate thread that publishes a heartbeat per period until it is dropped.
    fn beating(name: &'static str, url: String) -> tokio::runtime::Runtime {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(async move {
            let client = async_nats::connect(url).await.unwrap();
            let subject = App::new("stalled").unwrap().beat(name).unwrap();
            let mut period = tokio::time::interval(Duration::from_micros(HEARTBEAT_PERIOD_US));
            for sequence in 0.. {
                period.tick().await;
                let beat = Heartbeat {
                    actor: name.to_owned(),
                    kind: "worker".to_owned(),
                    sequence,
                    replicas: vec![ReplicaBeat {
                        id: name.to_owned(),
                        ..ReplicaBeat::default()
                    }],
                    ..Heartbeat::default()
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
