//! Tests of both plan stores.

use std::time::{Duration, SystemTime};

use kaskade_policy::plan::{Edge, Plan, Wiring};
use kaskade_testkit::{NatsOptions, NatsServer};

use super::*;
use crate::bus::{BusConfig, Embedded};
use crate::error::{Code, Fault};
use kaskade_broker::BrokerConfig;

fn plan(made_by: &str) -> Plan {
    Plan {
        made_by: made_by.to_owned(),
        ..Plan::one_gear(
            "digits",
            Vec::new(),
            Vec::new(),
            Wiring {
                entry: Edge::to("tiny"),
                ensemble: Vec::new(),
                stages: Vec::new(),
            },
        )
    }
}

/// A store, and a way to write bytes that are not a plan.
enum Backend {
    Memory(MemoryStore),
    KeyValue(Box<KeyValueStore>),
}

impl Backend {
    fn store(&self) -> &dyn PlanStore {
        match self {
            Self::Memory(store) => store,
            Self::KeyValue(store) => &**store,
        }
    }

    async fn put_raw(&self, bytes: &[u8]) -> u64 {
        match self {
            Self::Memory(store) => store.put_raw(bytes),
            Self::KeyValue(store) => store.put_raw(bytes).await,
        }
    }

    /// Deletes all plans and creates the store again.
    async fn recreate(&self) {
        match self {
            Self::Memory(store) => store.recreate(),
            Self::KeyValue(store) => store.recreate().await,
        }
    }
}

fn config(server: &NatsServer) -> BusConfig {
    BusConfig {
        timeout: Duration::from_secs(20),
        ..BusConfig::new("digits").url(server.url())
    }
}

async fn over_both<T: Future<Output = ()>>(test: impl Fn(Backend) -> T) {
    test(Backend::Memory(MemoryStore::default())).await;
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = Bus::connect(config(&server)).await.unwrap();
    let store = KeyValueStore::open(&bus, &App::new("digits").unwrap())
        .await
        .unwrap();
    test(Backend::KeyValue(Box::new(store))).await;
}

#[tokio::test]
async fn a_plan_is_read_back_and_every_write_has_a_larger_epoch() {
    over_both(|backend| async move {
        let store = backend.store();
        assert_eq!(store.get().await, Ok(None));
        let first = store.put(&plan("first"), None).await.unwrap();
        assert!(first > 0);
        let second = store.put(&plan("second"), Some(first)).await.unwrap();
        assert!(second > first);
        let stored = store.get().await.unwrap().unwrap();
        assert_eq!((stored.plan, stored.epoch), (plan("second"), second));
    })
    .await;
}

#[tokio::test]
async fn a_stale_writer_is_refused_and_changes_nothing() {
    over_both(|backend| async move {
        let store = backend.store();
        let missing = store.put(&plan("x"), Some(7)).await.unwrap_err();
        assert_eq!(
            missing,
            StoreError::Stale {
                expected: Some(7),
                newest: None
            }
        );
        let first = store.put(&plan("first"), None).await.unwrap();
        let second = store.put(&plan("second"), Some(first)).await.unwrap();
        for expected in [None, Some(first), Some(second + 1)] {
            let refused = store.put(&plan("late"), expected).await.unwrap_err();
            assert_eq!(
                refused,
                StoreError::Stale {
                    expected,
                    newest: Some(second)
                }
            );
        }
        assert_eq!(
            Fault::from(StoreError::Stale {
                expected: None,
                newest: None
            })
            .code,
            Code::StaleEpoch
        );
        assert_eq!(store.get().await.unwrap().unwrap().plan, plan("second"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_that_race_exactly_one_wins_each_round() {
    over_both(|backend| async move {
        let backend = Arc::new(backend);
        let mut newest = None;
        for round in 0..10 {
            let race = (0..4).map(|writer| {
                let backend = Arc::clone(&backend);
                tokio::spawn(async move {
                    let mine = plan(&format!("{round}.{writer}"));
                    (backend.store().put(&mine, newest).await, mine)
                })
            });
            let outcomes = futures::future::join_all(race).await;
            let outcomes = outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>();
            let winners = outcomes.iter().filter(|(put, _)| put.is_ok()).collect::<Vec<_>>();
            assert_eq!(winners.len(), 1, "{outcomes:?}");
            let losers = outcomes
                .iter()
                .filter(|(put, _)| matches!(put, Err(StoreError::Stale { .. })));
            assert_eq!(losers.count(), 3);
            let (epoch, winning) = (winners[0].0.clone().unwrap(), &winners[0].1);
            let stored = backend.store().get().await.unwrap().unwrap();
            assert_eq!((&stored.plan, stored.epoch), (winning, epoch));
            newest = Some(epoch);
        }
    })
    .await;
}

#[tokio::test]
async fn a_watch_gives_the_newest_plan_and_then_the_newer_ones() {
    over_both(|backend| async move {
        let store = backend.store();
        let mut from_nothing = store.watch().await.unwrap();
        let first = store.put(&plan("first"), None).await.unwrap();
        assert_eq!(
            from_nothing.next().await,
            Some(Ok(StoredPlan {
                plan: plan("first"),
                epoch: first
            }))
        );
        let mut from_first = store.watch().await.unwrap();
        assert_eq!(from_first.next().await.unwrap().unwrap().epoch, first);
        let second = store.put(&plan("second"), Some(first)).await.unwrap();
        for watch in [&mut from_nothing, &mut from_first] {
            let stored = watch.next().await.unwrap().unwrap();
            assert_eq!((stored.plan, stored.epoch), (plan("second"), second));
        }
    })
    .await;
}

#[tokio::test]
async fn what_is_no_plan_is_a_typed_error_and_can_be_written_over() {
    over_both(|backend| async move {
        let store = backend.store();
        let mut watch = store.watch().await.unwrap();
        let good = store.put(&plan("good"), None).await.unwrap();
        assert_eq!(watch.next().await.unwrap().unwrap().epoch, good);
        let mut newest = good;
        for garbage in [
            &b"{"[..],
            b"",
            b"[]",
            br#"{"version":1,"app":"digits","surprise":true}"#,
            b"\xff\x00",
        ] {
            newest = backend.put_raw(garbage).await;
            for read in [
                store.get().await.map(|_| ()),
                watch.next().await.unwrap().map(|_| ()),
            ] {
                let Err(StoreError::Malformed { epoch, .. }) = read else {
                    panic!("{read:?}")
                };
                assert_eq!(epoch, newest);
            }
        }
        let better = store.put(&plan("better"), Some(newest)).await.unwrap();
        assert_eq!(
            watch.next().await,
            Some(Ok(StoredPlan {
                plan: plan("better"),
                epoch: better
            }))
        );
    })
    .await;
}

#[tokio::test]
async fn epochs_continue_after_the_store_is_recreated() {
    over_both(|backend| async move {
        let store = backend.store();
        let mut newest = store.put(&plan("first"), None).await.unwrap();
        for made_by in ["second", "third"] {
            newest = store.put(&plan(made_by), Some(newest)).await.unwrap();
        }
        backend.recreate().await;
        assert_eq!(store.get().await, Ok(None));
        assert_eq!(store.history().await, Ok(Vec::new()));
        store.write(&plan("third"), newest, None).await.unwrap();
        let stored = store.get().await.unwrap().unwrap();
        assert_eq!((stored.plan, stored.epoch), (plan("third"), newest));
        let next = store.put(&plan("fourth"), Some(newest)).await.unwrap();
        assert_eq!(next, newest + 1);
        let stale = store.put(&plan("stale"), Some(2)).await.unwrap_err();
        assert_eq!(
            stale,
            StoreError::Stale {
                expected: Some(2),
                newest: Some(next)
            },
            "the revision is 2, the epoch is not"
        );
        assert_eq!(
            store.put_above(&plan("fifth"), Some(next), 40).await,
            Ok(41),
            "a writer goes above what it knows"
        );
    })
    .await;
}

#[tokio::test]
async fn a_deleted_bucket_is_an_empty_store_and_a_write_creates_it() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = Bus::connect(config(&server)).await.unwrap();
    let store = open(&bus, &App::new("digits").unwrap()).await.unwrap();
    store.put(&plan("first"), None).await.unwrap();
    let jetstream = async_nats::jetstream::new(bus.client().clone());
    jetstream.delete_key_value("kaskade-digits").await.unwrap();
    assert_eq!(store.get().await, Ok(None));
    assert_eq!(store.history().await, Ok(Vec::new()));
    assert!(matches!(
        store.put(&plan("late"), Some(1)).await,
        Err(StoreError::Stale { newest: None, .. })
    ));
    store.write(&plan("first"), 1, None).await.unwrap();
    assert_eq!(store.get().await.unwrap().unwrap().epoch, 1);
}

#[tokio::test]
async fn the_history_holds_past_plans_with_their_times() {
    over_both(|backend| async move {
        let store = backend.store();
        let begun = SystemTime::now() - Duration::from_mins(1);
        let mut newest = None;
        for number in 0..20 {
            newest = Some(store.put(&plan(&number.to_string()), newest).await.unwrap());
        }
        backend.put_raw(b"{").await;
        let past = store.history().await.unwrap();
        let epochs = past.iter().map(|past| past.stored.epoch).collect::<Vec<_>>();
        assert_eq!(
            epochs,
            (6..=20).collect::<Vec<_>>(),
            "of 16 values, one is no plan"
        );
        assert!(past.iter().all(|past| past.written_at > begun));
        assert_eq!(past[0].stored.plan, plan("5"));
    })
    .await;
}

#[tokio::test]
async fn a_plan_without_an_epoch_has_the_revision_as_epoch() {
    over_both(|backend| async move {
        let store = backend.store();
        let revision = backend
            .put_raw(&serde_json::to_vec(&plan("by hand")).unwrap())
            .await;
        let stored = store.get().await.unwrap().unwrap();
        assert_eq!((stored.plan, stored.epoch), (plan("by hand"), revision));
        let next = store.put(&plan("next"), Some(revision)).await.unwrap();
        assert_eq!(next, revision + 1);
    })
    .await;
}

#[tokio::test]
async fn without_jetstream_a_shared_store_is_refused_and_a_private_one_is_not() {
    let server = NatsServer::start(NatsOptions::default());
    let app = App::new("digits").unwrap();
    let bus = Bus::connect(config(&server)).await.unwrap();
    let Err(error) = open(&bus, &app).await else {
        panic!("a store without JetStream")
    };
    assert_eq!(error, StoreError::NeedsJetStream { url: server.url() });
    assert_eq!(Fault::from(error).code, Code::NeedsJetStream);
    let private = BusConfig {
        plans: PlanStorage::Memory,
        ..config(&server)
    };
    let bus = Bus::connect(private).await.unwrap();
    let store = open(&bus, &app).await.unwrap();
    assert_eq!(store.put(&plan("mine"), None).await, Ok(1));
}

#[tokio::test]
async fn on_an_embedded_broker_every_bus_shares_an_apps_store() {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let config = BusConfig::new("digits").embedded(&embedded);
    let (one, two) = (
        Bus::connect(config.clone()).await.unwrap(),
        Bus::connect(config).await.unwrap(),
    );
    let app = App::new("digits").unwrap();
    let epoch = open(&one, &app)
        .await
        .unwrap()
        .put(&plan("shared"), None)
        .await
        .unwrap();
    let seen = open(&two, &app).await.unwrap().get().await.unwrap().unwrap();
    assert_eq!((seen.plan, seen.epoch), (plan("shared"), epoch));
    let other = open(&two, &App::new("other").unwrap()).await.unwrap();
    assert_eq!(other.get().await, Ok(None));
}

#[tokio::test]
async fn a_key_value_store_survives_a_restart_and_its_watch_goes_on() {
    let mut server = NatsServer::start(NatsOptions::jetstream());
    let bus = Bus::connect(config(&server)).await.unwrap();
    let app = App::new("digits").unwrap();
    let store = open(&bus, &app).await.unwrap();
    let first = store.put(&plan("first"), None).await.unwrap();
    let mut watch = store.watch().await.unwrap();
    assert_eq!(watch.next().await.unwrap().unwrap().epoch, first);
    let mut link = bus.connection().link();
    server.stop();
    link.wait_for(|link| *link == crate::bus::Link::Down)
        .await
        .unwrap();
    server.restart();
    // A second process opens the same bucket.
    let other_bus = Bus::connect(config(&server)).await.unwrap();
    let another = open(&other_bus, &app).await.unwrap();
    assert_eq!(another.get().await.unwrap().unwrap().epoch, first);
    let second = another.put(&plan("second"), Some(first)).await.unwrap();
    let seen = tokio::time::timeout(Duration::from_mins(1), async {
        loop {
            // While reconnecting, the watch may report an interruption or the first plan again.
            if let Some(Ok(stored)) = watch.next().await
                && stored.epoch == second
            {
                return stored.plan;
            }
        }
    });
    assert_eq!(seen.await.unwrap(), plan("second"));
}

#[tokio::test]
async fn a_deleted_plan_is_none_and_the_next_has_a_larger_epoch() {
    let server = NatsServer::start(NatsOptions::jetstream());
    let bus = Bus::connect(config(&server)).await.unwrap();
    let store = open(&bus, &App::new("digits").unwrap()).await.unwrap();
    let first = store.put(&plan("first"), None).await.unwrap();
    let jetstream = async_nats::jetstream::new(bus.client().clone());
    let bucket = jetstream.get_key_value("kaskade-digits").await.unwrap();
    bucket.delete("plan").await.unwrap();
    assert_eq!(store.get().await, Ok(None));
    assert!(store.put(&plan("stale"), Some(first)).await.is_err());
    assert!(store.put(&plan("new"), None).await.unwrap() > first);
}

#[tokio::test]
async fn a_plan_over_max_payload_is_refused_with_both_sizes() {
    let server = NatsServer::start(NatsOptions {
        max_payload: Some(4096),
        ..NatsOptions::jetstream()
    });
    let bus = Bus::connect(config(&server)).await.unwrap();
    let store = open(&bus, &App::new("digits").unwrap()).await.unwrap();
    let error = store.put(&plan(&"x".repeat(5000)), None).await.unwrap_err();
    assert!(
        matches!(error, StoreError::TooLarge { size, limit } if size > 5000 && limit < 4096),
        "{error}"
    );
}
