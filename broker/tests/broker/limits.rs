//! Clients that misbehave or disappear, and the shutdown of the broker.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use bytes::Bytes;
use futures::StreamExt as _;
use kaskade_broker::{Broker, BrokerConfig};
use kaskade_testkit::{eventually, wait_until};
use tokio::time::timeout;

use crate::embedded;

const SOON: Duration = Duration::from_mins(1);

/// A hand-written client that reads only on demand.
struct Raw(TcpStream);

impl Raw {
    /// Connects, sends `lines`, and waits until the broker has processed them.
    fn connect(broker: &Broker, lines: &str) -> Self {
        let mut stream = TcpStream::connect(broker.address()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let hello = r#"CONNECT {"verbose":false}"#;
        stream
            .write_all(format!("{hello}\r\n{lines}PING\r\n").as_bytes())
            .unwrap();
        let mut raw = Self(stream);
        raw.read_until("PONG\r\n");
        raw
    }

    fn read_until(&mut self, end: &str) {
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(end.as_bytes()) {
            self.0.read_exact(&mut byte).unwrap();
            said.extend_from_slice(&byte);
        }
    }

    /// Reads until the broker closes the connection.
    fn read_to_end(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        match self.0.read_to_end(&mut said) {
            Ok(_) => said,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => said,
            Err(error) => panic!("{error} after {} bytes", said.len()),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_disconnected_without_stopping_others() {
    const MESSAGES: usize = 600;
    const SIZE: usize = 50_000;
    let broker = embedded(BrokerConfig {
        max_payload: 1 << 20,
        max_pending_bytes: Some(2 << 20),
        ..BrokerConfig::default()
    });
    let mut slow = Raw::connect(&broker, "SUB load 1\r\n");
    let client = async_nats::connect(broker.url()).await.unwrap();
    let mut healthy = client.subscribe("load").await.unwrap();
    client.flush().await.unwrap();
    let publisher = async_nats::connect(broker.url()).await.unwrap();
    for number in 0..MESSAGES {
        publisher
            .publish("load", vec![number as u8; SIZE].into())
            .await
            .unwrap();
        // The slow client's messages must not flood clients that read.
        let message = timeout(SOON, healthy.next()).await.unwrap().unwrap();
        assert_eq!(message.payload[0], number as u8);
    }
    eventually("the slow client is out", SOON, async || {
        broker.stats().slow_consumers == 1
    })
    .await;
    let said = slow.read_to_end();
    let messages = said
        .strip_suffix(b"-ERR 'Slow Consumer'\r\n")
        .expect("the reason");
    let one = format!("MSG load 1 {SIZE}\r\n").len() + SIZE + 2;
    assert_eq!(messages.len() % one, 0, "the stream was cut inside a message");
    assert!(messages.len() / one < MESSAGES);
    assert_eq!(broker.stats().connections, 2);
    assert_eq!(publisher.connection_state(), State::Connected);
}

#[test]
fn a_publisher_is_slowed_down_before_its_receiver_is_given_up() {
    const LIMIT: usize = 32 << 20;
    let broker = embedded(BrokerConfig {
        max_pending_bytes: Some(LIMIT),
        ..BrokerConfig::default()
    });
    let _deaf = Raw::connect(&broker, "SUB load 1\r\n");
    let (mut publisher, mut bystander) = (Raw::connect(&broker, ""), Raw::connect(&broker, ""));
    publisher.0.set_write_timeout(Some(SOON)).unwrap();
    let messages = format!("PUB load 1000\r\n{}\r\n", "x".repeat(1000)).repeat(200);
    let mut nearly_full = None;
    while broker.stats().slow_consumers == 0 {
        publisher.0.write_all(messages.as_bytes()).unwrap();
        if broker.stats().bytes_in > LIMIT as u64 / 4 * 3 {
            nearly_full.get_or_insert_with(Instant::now);
        }
        // Other clients are not delayed.
        bystander.0.write_all(b"PING\r\n").unwrap();
        bystander.read_until("PONG\r\n");
    }
    // The last quarter takes more than a hundred reads, with a pause of ten milliseconds before each; without pauses
    // it would arrive in the time of a few reads.
    let last_quarter = nearly_full.unwrap().elapsed();
    assert!(last_quarter > Duration::from_millis(700), "{last_quarter:?}");
    assert_eq!(broker.stats().connections, 2);
}

#[test]
fn a_client_that_takes_nothing_for_too_long_is_disconnected() {
    let broker = embedded(BrokerConfig {
        write_deadline: Duration::from_millis(50),
        ..BrokerConfig::default()
    });
    let _slow = Raw::connect(&broker, "SUB load 1\r\n");
    let mut publisher = Raw::connect(&broker, "");
    let message = format!("PUB load 1000000\r\n{}\r\n", "x".repeat(1_000_000));
    // More than the system buffers for a connection, less than the limit of pending data.
    for _ in 0..30 {
        publisher.0.write_all(message.as_bytes()).unwrap();
    }
    wait_until("the slow client is out", SOON, || {
        broker.stats().slow_consumers == 1
    });
    assert_eq!(broker.stats().connections, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_is_pinged_and_disconnected() {
    let broker = embedded(BrokerConfig {
        ping_interval: Duration::from_secs(1),
        ..BrokerConfig::default()
    });
    let answers = async_nats::connect(broker.url()).await.unwrap();
    let mut silent = Raw::connect(&broker, "");
    let said = tokio::task::spawn_blocking(move || silent.read_to_end())
        .await
        .unwrap();
    assert_eq!(
        String::from_utf8(said).unwrap(),
        "PING\r\nPING\r\n-ERR 'Stale Connection'\r\n"
    );
    assert_eq!(answers.connection_state(), State::Connected);
    assert_eq!(broker.stats().connections, 1);
}

#[test]
fn pings_with_unread_answers_are_bounded() {
    let broker = embedded(BrokerConfig {
        max_payload: 1 << 20,
        max_pending_bytes: Some(1_100_000),
        ..BrokerConfig::default()
    });
    let mut rude = Raw::connect(&broker, "");
    rude.0.set_write_timeout(Some(SOON)).unwrap();
    let pings = "PING\r\n".repeat(10_000);
    // Many times what the system buffers for a connection; writing fails once the broker disconnects the client.
    for _ in 0..1000 {
        if rude.0.write_all(pings.as_bytes()).is_err() {
            break;
        }
    }
    wait_until("the client is out", SOON, || broker.stats().connections == 0);
    assert_eq!(broker.stats().slow_consumers, 1);
}

#[test]
fn clients_that_come_and_go_leave_nothing() {
    let broker = embedded(BrokerConfig::default());
    let open_files = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    drop(Raw::connect(&broker, "SUB a.b 1\r\n"));
    let before = open_files();
    for round in 0..1000 {
        let lines = format!("SUB round.{round}.* 1\r\nSUB group.{round} g 2\r\nSUB few 3\r\nUNSUB 3 5\r\n");
        let raw = Raw::connect(&broker, &lines);
        if round % 2 == 0 {
            let _ = raw.0.shutdown(std::net::Shutdown::Both);
        }
    }
    wait_until("all clients have left", SOON, || broker.stats().connections == 0);
    assert_eq!(broker.stats().subscriptions, 0);
    // Other tests of this process open files too, but not a thousand more than before.
    wait_until("their sockets are closed", SOON, || open_files() < before + 300);
}

#[test]
fn a_truncated_message_does_not_affect_others() {
    let broker = embedded(BrokerConfig::default());
    for torn in ["PU", "PUB a 10\r\nabc", "PUB a 10", "CONNECT {", "SUB a"] {
        let mut stream = TcpStream::connect(broker.address()).unwrap();
        stream.write_all(torn.as_bytes()).unwrap();
    }
    let _fine = Raw::connect(&broker, "SUB a 1\r\nPUB a 0\r\n\r\n");
    wait_until("the torn ones have left", SOON, || {
        broker.stats().connections == 1
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_delivers_what_was_published_and_frees_the_port() {
    let broker = embedded(BrokerConfig::default());
    let address = broker.address();
    let mut reader = Raw::connect(&broker, "SUB a 1\r\n");
    let client = async_nats::connect(broker.url()).await.unwrap();
    for _ in 0..100 {
        client
            .publish("a", Bytes::from(vec![b'x'; 10_000]))
            .await
            .unwrap();
    }
    client.flush().await.unwrap();
    eventually("all is published", SOON, async || {
        broker.stats().messages_in == 100
    })
    .await;
    let reading = tokio::task::spawn_blocking(move || reader.read_to_end());
    timeout(SOON, broker.shutdown())
        .await
        .expect("a shutdown that ends");
    let one = "MSG a 1 10000\r\n".len() + 10_000 + 2;
    assert_eq!(reading.await.unwrap().len(), 100 * one);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn dropping_the_broker_stops_it() {
    let broker = embedded(BrokerConfig::default());
    let address = broker.address();
    let mut client = Raw::connect(&broker, "");
    drop(broker);
    assert_eq!(client.read_to_end(), b"");
    wait_until("the listener is closed", SOON, || {
        TcpStream::connect(address).is_err()
    });
}
