//! Tests of the bus on both servers, and of errors without a server.

use std::future::Future;
use std::time::Instant;

use async_nats::jetstream::context::AccountErrorKind;
use futures::StreamExt;
use kaskade_broker::BrokerConfig;
use kaskade_testkit::{NatsOptions, NatsServer, eventually, free_port};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::connect::{RECONNECT_PAUSE, locate_broker, new_enough, reconnect_pause};
use super::embedded::SharedBroker;
use super::jetstream::may_become_available;
use super::*;
use crate::subjects::App;

/// Long enough for a machine under load; passing tests do not wait for it.
const TIMEOUT: Duration = Duration::from_secs(20);

fn config() -> BusConfig {
    BusConfig {
        timeout: TIMEOUT,
        ..BusConfig::new("digits")
    }
}

/// Runs the test on the embedded broker and on a nats-server.
async fn over_both<T: Future<Output = ()>>(test: impl Fn(BusConfig) -> T) {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    test(config().embedded(&embedded)).await;
    let server = NatsServer::start(NatsOptions::default());
    test(config().url(server.url())).await;
}

/// Starts a server that greets with `version` and answers pings.
async fn greeter(version: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let greeting =
        format!(r#"INFO {{"server_id":"X","version":"{version}","headers":true,"max_payload":1024}}"#);
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let (read, mut write) = client.split();
        write
            .write_all(format!("{greeting}\r\n").as_bytes())
            .await
            .unwrap();
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line.starts_with("PING") {
                write.write_all(b"PONG\r\n").await.unwrap();
            }
        }
    });
    url
}

#[tokio::test]
async fn a_server_that_is_too_old_is_named_with_both_versions() {
    let url = greeter("2.9.10").await;
    let error = Bus::connect(config().url(&url)).await.unwrap_err();
    assert!(matches!(&error, BusError::TooOld { found, .. } if found == "2.9.10"));
    let said = error.to_string();
    assert!(
        said.contains("2.9.10") && said.contains("2.10 or later") && said.contains(&url),
        "{said}"
    );
    assert_eq!(crate::Fault::from(error).code, crate::Code::BrokerTooOld);
}

#[test]
fn versions_are_compared_as_numbers() {
    for good in ["2.10.0", "v2.10.1", "2.11.0-preview.1", "3.0.0", "2.100"] {
        assert!(new_enough(good), "{good}");
    }
    for bad in ["2.9.99", "1.99.0", "", "2", "latest", "2.x"] {
        assert!(!new_enough(bad), "{bad}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_reported_immediately() {
    let url = format!("nats://kaskade:secret@127.0.0.1:{}", free_port());
    let start = Instant::now();
    let error = Bus::connect(config().url(url)).await.unwrap_err();
    assert!(start.elapsed() < TIMEOUT, "a refused connection was waited for");
    assert!(matches!(error, BusError::Unreachable { .. }), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("(`nats-server -js`), or give another address") && !said.contains("secret"),
        "{said}"
    );
}

#[tokio::test]
async fn a_silent_server_is_reported_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = BusConfig {
        timeout: Duration::from_millis(50),
        ..config().url(listener.local_addr().unwrap().to_string())
    };
    let error = Bus::connect(config).await.unwrap_err();
    assert!(matches!(error, BusError::Unreachable { .. }), "{error}");
}

#[tokio::test]
async fn addresses_that_are_none_are_refused() {
    for url in ["nats://", "http://[", "nats://host:port"] {
        let error = Bus::connect(config().url(url)).await.unwrap_err();
        assert!(
            matches!(error, BusError::BadUrl { .. } | BusError::Unreachable { .. }),
            "{url}: {error}"
        );
    }
}

#[tokio::test]
async fn a_server_without_tls_is_named_as_one() {
    let broker = Embedded::start(BrokerConfig::default()).unwrap();
    let url = broker.url().replace("nats://", "tls://");
    let error = Bus::connect(config().url(url)).await.unwrap_err();
    assert!(matches!(error, BusError::NoTls { .. }), "{error}");
}

/// Regression: the error for a missing file blamed the server, and a file without a certificate was ignored.
#[tokio::test]
async fn a_file_without_certificates_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (missing, other) = (folder.path().join("missing.pem"), folder.path().join("other.pem"));
    std::fs::write(&other, "no certificate").unwrap();
    for path in [missing, other] {
        let config = BusConfig {
            ca: Some(path.clone()),
            ..config().url("tls://127.0.0.1:1")
        };
        let error = Bus::connect(config).await.unwrap_err();
        assert!(matches!(error, BusError::Authority { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}

#[test]
fn credentials_are_taken_out_of_addresses() {
    assert_eq!(
        without_credentials("nats://a:b@one:1,two:2,c@three"),
        "nats://one:1,two:2,three"
    );
    assert_eq!(without_credentials("nats://a:p@ss@one"), "nats://one");
}

/// A nats-server that requires a password. The testkit's readiness check connects anonymously, so the test starts
/// this one itself.
struct Guarded(std::process::Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn wrong_credentials_are_a_refusal() {
    let port = free_port();
    let _server = std::process::Command::new(kaskade_testkit::nats_server_binary())
        .args([
            "--addr",
            "127.0.0.1",
            "--user",
            "kaskade",
            "--pass",
            "r@ght",
            "--port",
        ])
        .arg(port.to_string())
        .stderr(std::process::Stdio::null())
        .spawn()
        .map(Guarded)
        .unwrap();
    let with = |password: &str| config().url(format!("nats://kaskade:{password}@127.0.0.1:{port}"));
    eventually("the server refuses", TIMEOUT, async || {
        match Bus::connect(with("wrong")).await.unwrap_err() {
            BusError::Unreachable { .. } => false,
            BusError::Refused { .. } => true,
            error => panic!("{error}"),
        }
    })
    .await;
    let bus = Bus::connect(with("r%40ght")).await.unwrap();
    assert!(!format!("{} {bus:?} {:?}", bus.url(), with("r%40ght")).contains("ght"));
}

#[tokio::test]
async fn an_absent_file_of_credentials_is_named() {
    let config = BusConfig {
        credentials: Some("/nowhere/kaskade.creds".into()),
        ..config().url("nats://127.0.0.1:1")
    };
    let error = Bus::connect(config).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere/kaskade.creds"), "{error}");
}

#[tokio::test]
async fn buses_without_a_url_share_one_broker() {
    let (one, two) = tokio::join!(Bus::connect(config()), Bus::connect(config()));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.url(), two.url());
    assert!(one.embedded().is_some());
}

#[tokio::test]
async fn a_port_that_another_process_has_is_joined() {
    let another = Embedded::start(BrokerConfig::default()).unwrap();
    let config = BusConfig {
        listen: another.url().trim_start_matches("nats://").parse().unwrap(),
        ..config()
    };
    let slot = SharedBroker::empty();
    let (url, ours) = locate_broker(&config, &slot).unwrap();
    assert_eq!(url, another.url());
    assert!(ours.is_none());
    let bus = Bus::connect(config.url(url)).await.unwrap();
    let app = App::new("digits").unwrap();
    assert!(matches!(
        crate::plan::store::open(&bus, &app).await,
        Err(crate::plan::store::StoreError::NeedsJetStream { .. })
    ));
}

#[tokio::test]
async fn a_shared_broker_ends_with_its_last_user() {
    let slot = SharedBroker::empty();
    let (first, running) = locate_broker(&config(), &slot).unwrap();
    let (second, also) = locate_broker(&config(), &slot).unwrap();
    assert_eq!(first, second);
    drop((running, also));
    let (_, fresh) = locate_broker(&config(), &slot).unwrap();
    assert_eq!(fresh.unwrap().stats(), kaskade_broker::BrokerStats::default());
    let gone = BusConfig {
        timeout: Duration::from_millis(200),
        ..config().url(first)
    };
    eventually("the first broker is gone", TIMEOUT, async || {
        matches!(
            Bus::connect(gone.clone()).await,
            Err(BusError::Unreachable { .. })
        )
    })
    .await;
}

#[tokio::test]
async fn after_a_barrier_others_reach_a_subscription() {
    over_both(|config| async move {
        let server = Bus::connect(config.clone()).await.unwrap();
        let client = Bus::connect(config).await.unwrap();
        for round in 0..50 {
            let subject = Subject::from(format!("barrier.{round}"));
            let mut requests = server
                .subscribe(subject.clone(), Some("q".to_owned()))
                .await
                .unwrap();
            server.barrier().await.unwrap();
            let (answer, ()) = tokio::join!(client.client().request(subject, Bytes::new()), async {
                let request = requests.next().await.unwrap();
                let reply = request.reply.unwrap();
                server
                    .publish(reply, None, None, Bytes::from_static(b"here"))
                    .await
                    .unwrap();
            });
            assert_eq!(answer.unwrap().payload, "here");
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_over_max_payload_is_refused_with_both_sizes_before_it_is_sent() {
    over_both(|config| async move {
        let bus = Bus::connect(config).await.unwrap();
        let limit = bus.max_payload();
        let mut received = bus.subscribe("big".into(), None).await.unwrap();
        let mut headers = crate::wire::headers::for_body(crate::wire::ContentType::Json);
        crate::wire::headers::put_budget(&mut headers, Duration::from_secs(1));
        let room = limit - header_bytes(&headers);
        for size in [room, room + 1] {
            let sent = bus
                .publish("big".into(), None, Some(headers.clone()), vec![7; size].into())
                .await;
            match sent {
                Ok(()) => assert_eq!(received.next().await.unwrap().payload.len(), room),
                Err(BusError::TooLarge {
                    size: refused,
                    limit: named,
                }) => {
                    assert_eq!((size, refused, named), (room + 1, limit + 1, limit));
                }
                Err(error) => panic!("{error}"),
            }
        }
        let error = bus.check_size(None, limit + 1).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains(&limit.to_string()) && said.contains(&(limit + 1).to_string()),
            "{said}"
        );
        assert!(
            said.contains("under `[nats]`") && said.contains("nats-server"),
            "{said}"
        );
        bus.check_size(None, limit).unwrap();
        // The connection still works.
        bus.barrier().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_larger_max_payload_of_the_embedded_broker_is_used() {
    let embedded = Embedded::start(BrokerConfig {
        max_payload: 8 << 20,
        ..BrokerConfig::default()
    });
    let bus = Bus::connect(config().embedded(&embedded.unwrap())).await.unwrap();
    let mut received = bus.subscribe("big".into(), None).await.unwrap();
    bus.publish("big".into(), None, None, vec![1; 8 << 20].into())
        .await
        .unwrap();
    assert_eq!(received.next().await.unwrap().payload.len(), 8 << 20);
}

#[tokio::test]
async fn messages_lost_by_a_full_subscription_are_counted_and_observed() {
    over_both(|config| async move {
        let told = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = Arc::clone(&told);
        let config = BusConfig {
            subscription_capacity: 4,
            observer: Some(Arc::new(move |event| {
                let slow = matches!(event, async_nats::Event::SlowConsumer(_));
                seen.fetch_add(slow.into(), std::sync::atomic::Ordering::Relaxed);
            })),
            ..config
        };
        let bus = Bus::connect(config).await.unwrap();
        let _idle = bus.subscribe("flood".into(), None).await.unwrap();
        for _ in 0..20 {
            bus.publish("flood".into(), None, None, Bytes::new())
                .await
                .unwrap();
        }
        eventually("the loss is counted", TIMEOUT, async || {
            bus.connection().counts().slow_consumer > 0 && told.load(std::sync::atomic::Ordering::Relaxed) > 0
        })
        .await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_loses_nothing_that_was_published_or_received() {
    over_both(|config| async move {
        let ours = Bus::connect(config.clone()).await.unwrap();
        let theirs = Bus::connect(config).await.unwrap();
        let mut at_theirs = theirs.subscribe("out".into(), None).await.unwrap();
        let mut at_ours = ours.subscribe("in".into(), None).await.unwrap();
        theirs.barrier().await.unwrap();
        ours.barrier().await.unwrap();
        for _ in 0..1000 {
            theirs
                .publish("in".into(), None, None, Bytes::from_static(b"x"))
                .await
                .unwrap();
        }
        theirs.barrier().await.unwrap();
        for _ in 0..1000 {
            ours.publish("out".into(), None, None, Bytes::from_static(b"y"))
                .await
                .unwrap();
        }
        ours.drain(TIMEOUT).await.unwrap();
        assert_eq!(*ours.connection().link().borrow(), Link::Closed);
        let mut buffered = 0;
        while at_ours.next().await.is_some() {
            buffered += 1;
        }
        assert_eq!(buffered, 1000);
        for _ in 0..1000 {
            at_theirs.next().await.unwrap();
        }
        let again = ours.publish("out".into(), None, None, Bytes::new()).await;
        assert!(matches!(again, Err(BusError::Failed { .. })), "{again:?}");
    })
    .await;
}

#[tokio::test]
async fn subscriptions_survive_a_restart_of_the_server() {
    let mut server = NatsServer::start(NatsOptions::default());
    let bus = Bus::connect(config().url(server.url())).await.unwrap();
    let mut received = bus.subscribe("again".into(), None).await.unwrap();
    bus.barrier().await.unwrap();
    let mut link = bus.connection().link();
    assert_eq!(*link.borrow(), Link::Up);
    server.kill();
    link.wait_for(|link| *link == Link::Down).await.unwrap();
    server.restart();
    link.wait_for(|link| *link == Link::Up).await.unwrap();
    bus.barrier().await.unwrap();
    bus.publish("again".into(), None, None, Bytes::from_static(b"back"))
        .await
        .unwrap();
    assert_eq!(received.next().await.unwrap().payload, "back");
    assert_eq!(bus.connection().counts().disconnects, 1);
}

#[test]
fn pauses_between_attempts_start_at_nothing_and_stay_short() {
    let pauses = (0..12).map(reconnect_pause).collect::<Vec<_>>();
    assert!(pauses.is_sorted());
    assert_eq!(pauses[1], Duration::ZERO);
    assert_eq!(pauses[11], RECONNECT_PAUSE);
    assert_eq!(reconnect_pause(usize::MAX), RECONNECT_PAUSE);
}

#[test]
fn a_jetstream_that_is_still_forming_is_waited_for() {
    let said = |code: u64| {
        let error = format!(r#"{{"code": 503, "err_code": {code}, "description": "as the server says"}}"#);
        AccountErrorKind::JetStream(serde_json::from_str(&error).unwrap())
    };
    for later in [said(10008), AccountErrorKind::TimedOut] {
        assert!(may_become_available(&later), "{later}");
    }
    for never in [said(10039), said(10076), AccountErrorKind::JetStreamUnavailable] {
        assert!(!may_become_available(&never), "{never}");
    }
}

#[tokio::test]
async fn jetstream_is_found_where_it_is() {
    let embedded = Embedded::start(BrokerConfig::default()).unwrap();
    assert!(
        !Bus::connect(config().embedded(&embedded))
            .await
            .unwrap()
            .has_jetstream()
            .await
    );
    let plain = NatsServer::start(NatsOptions::default());
    assert!(
        !Bus::connect(config().url(plain.url()))
            .await
            .unwrap()
            .has_jetstream()
            .await
    );
    let server = NatsServer::start(NatsOptions::jetstream());
    assert!(
        Bus::connect(config().url(server.url()))
            .await
            .unwrap()
            .has_jetstream()
            .await
    );
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_jetstream_is_told_at_once() {
    let options = NatsOptions {
        config: r#"authorization { users = [{ user: a, password: b, permissions: { publish: { deny: "$JS.>" } } }] }"#
            .to_owned(),
        ..NatsOptions::jetstream()
    };
    let server = NatsServer::start(options);
    let url = server.url().replace("nats://", "nats://a:b@");
    let bus = Bus::connect(config().url(url)).await.unwrap();
    let asked = tokio::time::timeout(Duration::from_secs(10), bus.has_jetstream());
    assert_eq!(asked.await, Ok(false));
}
