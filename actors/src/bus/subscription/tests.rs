//! Tests that a subscription ends without loss on a connection that delays messages of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kaskade_broker::BrokerConfig;
use kaskade_testkit::{DelayProxy, NatsOptions, NatsServer, eventually};
use tokio::task::unconstrained;

use std::future::Future;

use super::super::{BusConfig, Embedded};
use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);
const DELAY: Duration = Duration::from_millis(50);
const PERIOD: Duration = Duration::from_micros(500);

async fn connect(url: String) -> Bus {
    let config = BusConfig {
        timeout: TIMEOUT,
        ..BusConfig::new("digits").url(url)
    };
    Bus::connect(config).await.unwrap()
}

/// Runs the test with the URL and port of an embedded broker and of a nats-server.
async fn over_both<T: Future<Output = ()>>(test: impl Fn(String, u16) -> T) {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    let port = embedded.url().rsplit(':').next().unwrap().parse().unwrap();
    test(embedded.url(), port).await;
    let server = NatsServer::start(NatsOptions::default());
    test(server.url(), server.port()).await;
}

/// Publishes 2,000 messages per second until `stop`; returns their number.
async fn publish(bus: &Bus, subject: &Subject, stop: &AtomicU64) -> u64 {
    let mut pace = tokio::time::interval(PERIOD);
    let mut sent = 0;
    while stop.load(Ordering::SeqCst) == 0 {
        pace.tick().await;
        let published = bus.publish(subject.clone(), None, None, Bytes::from_static(b"x"));
        published.await.unwrap();
        sent += 1;
    }
    sent
}

/// Ends a group member behind a slow connection while others stay, and checks that a member receives every message.
async fn ends_without_loss(url: String, port: u16, others: u64) {
    let proxy = DelayProxy::start(port, DELAY);
    let (slow, fast) = (connect(proxy.url()).await, connect(url.clone()).await);
    let (subject, group) = (Subject::from(format!("work.{others}")), Some("q".to_owned()));
    let mut leaving = Subscription::open(&slow, subject.clone(), group.clone())
        .await
        .unwrap();
    slow.barrier().await.unwrap();
    let taken = Arc::new(AtomicU64::new(0));
    for _ in 0..others {
        let mut staying = Subscription::open(&fast, subject.clone(), group.clone())
            .await
            .unwrap();
        let taken = Arc::clone(&taken);
        tokio::spawn(async move {
            while staying.next().await.is_some() {
                taken.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    fast.barrier().await.unwrap();
    let stop = AtomicU64::new(0);
    let sender = connect(url).await;
    let ending = async {
        for _ in 0..200 {
            leaving.next().await.unwrap();
            taken.fetch_add(1, Ordering::SeqCst);
        }
        leaving
            .finish(|_| {
                taken.fetch_add(1, Ordering::SeqCst);
            })
            .await;
        stop.store(1, Ordering::SeqCst);
    };
    let (sent, ()) = tokio::join!(publish(&sender, &subject, &stop), ending);
    eventually(
        &format!("{sent} messages are taken by {others} others"),
        Duration::from_secs(5),
        async || {
            let taken = taken.load(Ordering::SeqCst);
            assert!(taken <= sent, "padding is handed over");
            taken == sent
        },
    )
    .await;
}

#[tokio::test]
async fn a_member_of_a_group_ends_without_losing_what_is_on_its_way() {
    over_both(|url, port| async move {
        for others in [1, 4] {
            ends_without_loss(url.clone(), port, others).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_last_subscription_takes_all_that_the_server_has_sent() {
    over_both(|url, port| async move {
        let proxy = DelayProxy::start(port, DELAY);
        let (slow, sender) = (connect(proxy.url()).await, connect(url).await);
        let mut leaving = Subscription::open(&slow, "work".into(), None).await.unwrap();
        slow.barrier().await.unwrap();
        let mut replies = sender.subscribe("unanswered".into(), None).await.unwrap();
        let stop = AtomicU64::new(0);
        let mut taken = 0;
        let sending = async {
            let mut pace = tokio::time::interval(PERIOD);
            let mut sent = 0_u64;
            while stop.load(Ordering::SeqCst) == 0 {
                pace.tick().await;
                let reply = Some(Subject::from_static("unanswered"));
                let published = sender.publish("work".into(), reply, None, Bytes::new());
                published.await.unwrap();
                sent += 1;
            }
            sender.barrier().await.unwrap();
            sent
        };
        let ending = async {
            for _ in 0..200 {
                leaving.next().await.unwrap();
                taken += 1;
            }
            leaving.finish(|_| taken += 1).await;
            stop.store(1, Ordering::SeqCst);
        };
        let (sent, ()) = tokio::join!(sending, ending);
        // The server reports each message that no subscriber received.
        let mut unserved = 0;
        while let Some(Some(_)) = unconstrained(replies.next()).now_or_never() {
            unserved += 1;
        }
        assert!(taken > 200 && unserved < sent);
        assert_eq!(taken + unserved, sent);
    })
    .await;
}

#[tokio::test]
async fn an_idle_subscription_ends_in_a_few_round_trips() {
    over_both(|url, _| async move {
        let bus = connect(url).await;
        let idle = Subscription::open(&bus, "idle".into(), Some("q".to_owned()))
            .await
            .unwrap();
        let ended = idle.finish(|message| panic!("unexpected: {message:?}"));
        tokio::time::timeout(TIMEOUT, ended).await.unwrap();
        let reply = Some(Subject::from_static("unanswered"));
        let mut notices = bus.subscribe("unanswered".into(), None).await.unwrap();
        bus.publish("idle".into(), reply, None, Bytes::new())
            .await
            .unwrap();
        assert_eq!(
            notices.next().await.unwrap().status,
            Some(async_nats::StatusCode::NO_RESPONDERS)
        );
    })
    .await;
}

#[tokio::test]
async fn a_subscription_ends_without_loss_after_a_reconnect() {
    let mut server = NatsServer::start(NatsOptions::default());
    let bus = connect(server.url()).await;
    let mut link = bus.connection().link();
    let mut again = Subscription::open(&bus, "again".into(), None).await.unwrap();
    bus.barrier().await.unwrap();
    for _ in 0..1_000 {
        bus.publish("again".into(), None, None, Bytes::new())
            .await
            .unwrap();
        again.next().await.unwrap();
    }
    let restart = async {
        server.kill();
        link.wait_for(|link| *link == Link::Down).await.unwrap();
        server.restart();
        link.wait_for(|link| *link == Link::Up).await.unwrap();
        bus.barrier().await.unwrap();
        bus.publish("again".into(), None, None, Bytes::from_static(b"back"))
            .await
            .unwrap();
    };
    let (message, ()) = tokio::join!(again.next(), restart);
    assert_eq!(message.unwrap().payload, "back");
    for _ in 0..500 {
        bus.publish("again".into(), None, None, Bytes::new())
            .await
            .unwrap();
    }
    let mut taken = 0;
    again.finish(|_| taken += 1).await;
    assert_eq!(taken, 500);
}

#[tokio::test]
async fn a_subscription_ends_where_padding_is_not_permitted() {
    let permissions = "authorization { users: [ { user: a, password: a, permissions: { publish: \"_KASKADE.>\", subscribe: \">\" } } ] }";
    let server = NatsServer::start(NatsOptions {
        config: permissions.to_owned(),
        ..NatsOptions::default()
    });
    let bus = connect(server.url().replace("nats://", "nats://a:a@")).await;
    let idle = Subscription::open(&bus, "idle".into(), None).await.unwrap();
    let ended = idle.finish(|message| panic!("unexpected: {message:?}"));
    tokio::time::timeout(TIMEOUT, ended).await.unwrap();
}
