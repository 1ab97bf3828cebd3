//! Tests the queues of outgoing messages against a broker that stops reading.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, tcp::OwnedReadHalf};
use tokio::sync::Notify;

use super::*;
use crate::actor;
use crate::bus::BusConfig;

/// A broker that greets, answers pings, and reads nothing while it is stopped.
struct SlowBroker {
    url: String,
    stopped: Arc<AtomicBool>,
    go: Arc<Notify>,
    subjects: mpsc::UnboundedReceiver<(String, usize, String)>,
}

impl SlowBroker {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (stopped, go) = (Arc::new(AtomicBool::new(false)), Arc::new(Notify::new()));
        let (seen, subjects) = mpsc::unbounded_channel();
        let (halted, going) = (Arc::clone(&stopped), Arc::clone(&go));
        tokio::task::spawn_local(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (read, mut write) = stream.into_split();
            let info = r#"{"server_id":"s","server_name":"s","version":"2.10.0","go":"","host":"h","port":1,"headers":true,"max_payload":1048576,"proto":1}"#;
            write
                .write_all(format!("INFO {info}\r\n").as_bytes())
                .await
                .unwrap();
            let mut read = BufReader::new(read);
            loop {
                while halted.load(Ordering::SeqCst) {
                    going.notified().await;
                }
                let mut line = String::new();
                if read.read_line(&mut line).await.unwrap_or(0) == 0 {
                    return;
                }
                let words: Vec<&str> = line.split_whitespace().collect();
                match words.first().copied() {
                    Some("PING") => write.write_all(b"PONG\r\n").await.unwrap(),
                    Some("PUB") => take(&mut read, words[1], words[words.len() - 1], "0", &seen).await,
                    Some("HPUB") => {
                        take(
                            &mut read,
                            words[1],
                            words[words.len() - 1],
                            words[words.len() - 2],
                            &seen,
                        )
                        .await;
                    }
                    _ => {}
                }
            }
        });
        Self {
            url,
            stopped,
            go,
            subjects,
        }
    }

    fn stop_reading(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    fn read_again(&self) {
        self.stopped.store(false, Ordering::SeqCst);
        self.go.notify_one();
    }
}

/// Reads the body of a message and reports its subject, payload size in bytes and headers.
async fn take(
    read: &mut BufReader<OwnedReadHalf>,
    subject: &str,
    total: &str,
    head: &str,
    seen: &mpsc::UnboundedSender<(String, usize, String)>,
) {
    let (total, head): (usize, usize) = (total.parse().unwrap(), head.parse().unwrap());
    let mut body = vec![0; total + 2];
    read.read_exact(&mut body).await.unwrap();
    let headers = String::from_utf8_lossy(&body[..head]).into_owned();
    let _ = seen.send((subject.to_owned(), total - head, headers));
}

const LIMITS: QueueLimits = QueueLimits {
    data: 16 << 20,
    control: 1 << 20,
    unwritten: 2 << 20,
};

const BODY: usize = 1_000_000;

async fn connected(broker: &SlowBroker) -> Bus {
    Bus::connect(BusConfig::new("slow").url(&broker.url))
        .await
        .unwrap()
}

fn system(test: impl Future<Output = ()>) {
    actor::System::new().block_on(test);
}

#[test]
fn a_broker_that_stops_reading_bounds_the_queue_and_the_permits() {
    system(async {
        let mut broker = SlowBroker::start().await;
        let bus = connected(&broker).await;
        let publisher = Publisher::with(&bus, Clock::start(), &Supervisor::default(), LIMITS);
        broker.stop_reading();
        let requests = Arc::new(Semaphore::new(1_000));
        let body = Bytes::from(vec![7; BODY]);
        let subject = Subject::from("data");
        let (mut sent, mut refused) = (0, 0);
        for _ in 0..200 {
            let permit = Arc::clone(&requests).try_acquire_owned().unwrap();
            match publisher.send(&subject, None, HeaderMap::new(), None, &body, vec![permit]) {
                Ok(()) => sent += 1,
                Err(fault) => {
                    assert_eq!(fault.code, Code::Overloaded);
                    refused += 1;
                }
            }
            // Let the publishing task run.
            tokio::task::yield_now().await;
        }
        // The messages that fit into the socket buffers are written; all others are queued and hold their permits.
        assert!(refused > 0 && sent > 0);
        let held = 1_000 - requests.available_permits();
        assert!(held * BODY <= LIMITS.data, "{held} requests hold permits");
        assert!(held >= 10, "unwritten messages hold their permits: {held}");
        assert!(publisher.data_bytes.available_permits() < BODY + OVERHEAD);
        // A refusal does not wait behind data.
        publisher.control("refusal".into(), None, None, Bytes::from_static(b"no"));
        broker.read_again();
        let (mut data, mut control_after) = (0, None);
        while data < sent {
            let (subject, size, _) = broker.subjects.recv().await.unwrap();
            match subject.as_str() {
                "data" => {
                    assert_eq!(size, BODY);
                    data += 1;
                }
                "refusal" => control_after = Some(data),
                _ => {}
            }
        }
        let before = control_after.expect("the refusal was sent before the last message of data");
        assert!(
            before < sent,
            "the refusal came after {before} of {sent} messages"
        );
        publisher.flush().await;
        while requests.available_permits() < 1_000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(publisher.data_bytes.available_permits(), LIMITS.data);
        assert_eq!(publisher.control_bytes.available_permits(), LIMITS.control);
    });
}

#[test]
fn a_budget_is_computed_when_the_message_is_written_and_an_expired_one_is_not_sent() {
    system(async {
        let mut broker = SlowBroker::start().await;
        let bus = connected(&broker).await;
        let clock = Clock::start();
        let publisher = Publisher::with(&bus, clock, &Supervisor::default(), LIMITS);
        let budget_us = 60_000_000;
        let deadline = clock.now() + budget_us;
        let send = |subject: &str, deadline| {
            let subject = Subject::from(subject.to_owned());
            let body = Bytes::from_static(b"x");
            publisher.send(
                &subject,
                None,
                HeaderMap::new(),
                Some(deadline),
                &body,
                Vec::new(),
            )
        };
        send("late", clock.now()).unwrap();
        send("sound", deadline).unwrap();
        while clock.now() < deadline - budget_us + 2_000 {
            std::thread::yield_now();
        }
        let (subject, _, headers) = broker.subjects.recv().await.unwrap();
        assert_eq!(subject, "sound", "the expired one was not sent");
        let left = headers
            .lines()
            .find_map(|line| line.strip_prefix("Kaskade-Budget-Us: "));
        let left: u64 = left.unwrap().trim().parse().unwrap();
        assert!(left <= budget_us - 2_000, "{left} microseconds are left");
    });
}

#[test]
fn a_full_control_queue_drops_messages_instead_of_growing() {
    system(async {
        let broker = SlowBroker::start().await;
        let bus = connected(&broker).await;
        let limits = QueueLimits {
            control: 10 * (OVERHEAD + 4),
            ..LIMITS
        };
        let publisher = Publisher::with(&bus, Clock::start(), &Supervisor::default(), limits);
        for _ in 0..1_000 {
            publisher.control("beat".into(), None, None, Bytes::from_static(b"beat"));
        }
        assert_eq!(publisher.control_bytes.available_permits(), 0);
    });
}
