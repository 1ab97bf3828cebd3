//! An embedded NATS server on the loopback interface: core protocol only.
//!
//! It needs no installation, and any NATS client can use it. It supports `INFO`, `CONNECT`, `PING`/`PONG`, `SUB`,
//! `UNSUB`, `PUB` and `HPUB` with wildcards, queue groups, headers and the "no responders" status. Invalid input is treated
//! as by nats-server, with four exceptions: parser errors and invalid subjects of publications are reported where
//! nats-server is silent; the option `pedantic` is ignored; a subject that is not UTF-8 ends the connection; and so does
//! an option of `CONNECT` that is null. The broker has no `JetStream`, authentication, TLS or clustering; use a nats-server for these.
//!
//! - `parser.rs`: bytes to operations, pure
//! - `trie.rs`: subscriptions that match a subject, pure
//! - `outbox.rs`: queue of bytes to one client, pure
//! - `buffers.rs`: pool of read buffers, pure
//! - `hub.rs`: delivery, queue groups, "no responders"
//! - `session.rs`: state and queue of one client
//! - `connection.rs`: the loops that read and write a connection
//! - `server.rs`: the thread, the listener, the shutdown
//! - `stats.rs`: counters
//!
//! The broker runs on one thread of its own. A busy actor thread cannot stall it, subscriptions need no lock, and
//! messages from one publisher to one subscriber stay in order. One core forwards more messages than the models of
//! one machine can answer; for several machines use a NATS cluster.

mod buffers;
mod connection;
mod hub;
mod outbox;
mod parser;
mod server;
mod session;
mod stats;
mod trie;

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

pub use server::{SERVER_NAME, VERSION};
pub use stats::BrokerStats;

use connection::Limits;
use parser::MAX_CONTROL_LINE;
use server::Server;
use stats::Counters;

/// The largest `max_payload`, bytes; the same as nats-server's.
pub const MAX_PAYLOAD_LIMIT: usize = 64 << 20;

/// Default limit of pending data per client, bytes; the same as nats-server's.
const MAX_PENDING: usize = 64 << 20;

/// Configuration of an embedded broker.
#[derive(Debug, Clone, Copy)]
pub struct BrokerConfig {
    /// The loopback address to listen on. Port 0, the default, selects a free port.
    pub listen: SocketAddr,
    /// The largest message, headers included, bytes: 8 MiB by default, at most [`MAX_PAYLOAD_LIMIT`].
    pub max_payload: usize,
    /// Limit of pending data, bytes, above which a client is disconnected as a slow consumer; by default 64 MiB, or
    /// four times `max_payload` if that is more.
    pub max_pending_bytes: Option<usize>,
    /// Idle time after which a client is pinged; two unanswered pings end the connection at the third interval.
    pub ping_interval: Duration,
    /// Time without write progress after which a client is disconnected as a slow consumer.
    pub write_deadline: Duration,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            max_payload: 8 << 20,
            max_pending_bytes: None,
            ping_interval: Duration::from_mins(2),
            write_deadline: Duration::from_secs(10),
        }
    }
}

/// Why an embedded broker could not start.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// The address is not on the loopback interface; the broker has no authentication.
    #[error(
        "the embedded broker has no authentication and listens on the loopback interface only, not on {listen}; for access from \
         other machines use a real nats-server (2.10 or later) and give its URL"
    )]
    NotLoopback {
        /// The configured address.
        listen: SocketAddr,
    },
    /// `max_payload` is out of range.
    #[error("max_payload is {max_payload} bytes; it must be between 1 and {MAX_PAYLOAD_LIMIT}")]
    Payload {
        /// The configured limit.
        max_payload: usize,
    },
    /// The limit of pending data is too small for a message of the largest size.
    #[error(
        "max_pending_bytes is {max_pending}, but a message of max_payload takes up to {needed}: raise it or omit it"
    )]
    Pending {
        /// The configured limit.
        max_pending: usize,
        /// The smallest valid limit for this `max_payload`.
        needed: usize,
    },
    /// A duration is zero.
    #[error("{setting} is zero; it must be positive")]
    Zero {
        /// The setting.
        setting: &'static str,
    },
    /// The broker cannot listen on the address.
    #[error("the embedded broker cannot listen on {listen}: {source}; choose another port, or 0 for any")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// Reason that the system reports.
        source: io::Error,
    },
    /// The thread or its runtime could not start.
    #[error("the embedded broker's thread cannot be started: {0}")]
    Thread(#[source] io::Error),
}

impl BrokerConfig {
    fn limits(&self) -> Result<Limits, BrokerError> {
        let Self {
            listen, max_payload, ..
        } = *self;
        if !listen.ip().is_loopback() {
            return Err(BrokerError::NotLoopback { listen });
        }
        if !(1..=MAX_PAYLOAD_LIMIT).contains(&max_payload) {
            return Err(BrokerError::Payload { max_payload });
        }
        // A delivery repeats the subjects of a control line and adds some numbers and the subscription's id.
        let needed = max_payload + 3 * MAX_CONTROL_LINE;
        let max_pending = self
            .max_pending_bytes
            .unwrap_or_else(|| MAX_PENDING.max(4 * max_payload));
        if max_pending < needed {
            return Err(BrokerError::Pending { max_pending, needed });
        }
        let lengths = [
            ("ping_interval", self.ping_interval),
            ("write_deadline", self.write_deadline),
        ];
        if let Some((setting, _)) = lengths.into_iter().find(|(_, length)| length.is_zero()) {
            return Err(BrokerError::Zero { setting });
        }
        Ok(Limits {
            max_payload,
            max_pending,
            ping_interval: self.ping_interval,
            write_deadline: self.write_deadline,
        })
    }
}

/// A running embedded broker. Dropping it stops it without waiting; [`Broker::shutdown`] waits until it has stopped.
#[derive(Debug)]
pub struct Broker {
    address: SocketAddr,
    counters: Arc<Counters>,
    /// The thread stops when this is sent or dropped.
    stop: oneshot::Sender<()>,
    /// Closed by the thread when it has stopped.
    stopped: oneshot::Receiver<()>,
}

impl Broker {
    /// Starts a broker; it accepts connections when this returns.
    ///
    /// # Errors
    /// [`BrokerError`]: an address that is not on the loopback interface or is in use, or invalid limits.
    pub fn start(config: BrokerConfig) -> Result<Self, BrokerError> {
        let limits = config.limits()?;
        let BrokerConfig { listen, .. } = config;
        let listen_error = |source| BrokerError::Listen { listen, source };
        let listener = TcpListener::bind(listen).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        listener.set_nonblocking(true).map_err(listen_error)?;
        let mut runtime = runtime::Builder::new_current_thread();
        let runtime = runtime
            .enable_io()
            .enable_time()
            .build()
            .map_err(BrokerError::Thread)?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener).map_err(listen_error)?
        };
        let counters = Arc::new(Counters::default());
        let server = Server {
            listener,
            address,
            identity: format!("KASKADE{:016X}", RandomState::new().hash_one(address)),
            limits,
            counters: Arc::clone(&counters),
        };
        let (stop, stop_asked) = oneshot::channel();
        let (running, stopped) = oneshot::channel::<()>();
        let work = move || {
            LocalSet::new().block_on(&runtime, server.run(stop_asked));
            drop(runtime);
            drop(running);
        };
        thread::Builder::new()
            .name("kaskade-broker".to_owned())
            .spawn(work)
            .map_err(BrokerError::Thread)?;
        Ok(Self {
            address,
            counters,
            stop,
            stopped,
        })
    }

    /// Returns the URL for clients, `nats://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the broker's counters.
    pub fn stats(&self) -> BrokerStats {
        self.counters.snapshot()
    }

    /// Stops the broker: it accepts no more connections, writes pending data to its clients for a limited time,
    /// closes their connections and ends its thread.
    pub async fn shutdown(self) {
        let Self { stop, stopped, .. } = self;
        drop(stop);
        // The error is expected: the thread has dropped its end.
        let _ = stopped.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(config: BrokerConfig) -> BrokerError {
        match Broker::start(config) {
            Ok(broker) => panic!("started on {}", broker.url()),
            Err(error) => error,
        }
    }

    #[test]
    fn addresses_that_others_can_reach_are_refused_with_a_way_out() {
        for listen in ["0.0.0.0:0", "192.168.1.2:4222", "[::]:0"] {
            let listen = listen.parse().unwrap();
            let error = refusal(BrokerConfig {
                listen,
                ..BrokerConfig::default()
            });
            assert!(matches!(error, BrokerError::NotLoopback { listen: refused } if refused == listen));
            assert!(error.to_string().contains("use a real nats-server"));
        }
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let defaults = BrokerConfig::default;
        for max_payload in [0, MAX_PAYLOAD_LIMIT + 1] {
            let error = refusal(BrokerConfig {
                max_payload,
                ..defaults()
            });
            assert!(matches!(error, BrokerError::Payload { .. }), "{error}");
        }
        let error = refusal(BrokerConfig {
            max_pending_bytes: Some(1 << 20),
            ..defaults()
        });
        assert!(matches!(error, BrokerError::Pending { .. }), "{error}");
        let error = refusal(BrokerConfig {
            ping_interval: Duration::ZERO,
            ..defaults()
        });
        assert!(error.to_string().contains("ping_interval"));
        assert!(
            BrokerConfig {
                max_payload: MAX_PAYLOAD_LIMIT,
                ..defaults()
            }
            .limits()
            .is_ok()
        );
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_and_free_again_after_the_shutdown() {
        let first = Broker::start(BrokerConfig::default()).unwrap();
        let config = BrokerConfig {
            listen: first.address(),
            ..BrokerConfig::default()
        };
        let error = refusal(config);
        assert!(
            error.to_string().contains(&first.address().to_string()),
            "{error}"
        );
        first.shutdown().await;
        Broker::start(config).unwrap().shutdown().await;
    }
}
