//! A small NATS server in this process, on the loopback: core protocol only.
//!
//! It lets everything be tried on one machine with nothing installed, and any NATS client can talk to it. It speaks
//! `INFO`, `CONNECT`, `PING`/`PONG`, `SUB`, `UNSUB`, `PUB` and `HPUB` with wildcards, queue groups, headers and the "no
//! responders" status, and treats bad input as nats-server does. It has no `JetStream`, no authentication, no TLS and no
//! clustering: what needs one of them needs a real nats-server.
//!
//! - `parser.rs`: bytes to operations, pure
//! - `trie.rs`: which subscriptions a subject reaches, pure
//! - `outbox.rs`: what waits to be written to one client, pure
//! - `buffers.rs`: read buffers that are used again, pure
//! - `hub.rs`: delivery, queue groups, no responders
//! - `session.rs`: what is known of one client, and what waits for it
//! - `connection.rs`: the loops that read and write its connection
//! - `server.rs`: the thread, the listener, the shutdown
//! - `stats.rs`: what is counted
//!
//! All of it runs on one thread of its own. A busy actor thread cannot stall it, no lock guards the subscriptions, and
//! messages from one publisher to one subscriber stay in order because nothing runs beside them. One core moves more
//! messages than the models behind it can answer; beyond one machine the engine is a NATS cluster.

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

pub use stats::BrokerStats;

use connection::Limits;
use parser::MAX_CONTROL_LINE;
use server::Server;
use stats::Counters;

/// `server_name` in the greeting, by which a client knows that this is no full nats-server.
pub const SERVER_NAME: &str = "kaskade-embedded";
/// `version` in the greeting: the nats-server whose core protocol it speaks.
pub const VERSION: &str = "2.10.0";
/// The largest `max_payload`, in bytes, which is nats-server's too.
pub const LARGEST_PAYLOAD: usize = 64 << 20;

/// What may be pending for a client by default, in bytes; nats-server's default.
const MAX_PENDING: usize = 64 << 20;

/// How an embedded broker is set up.
#[derive(Debug, Clone, Copy)]
pub struct BrokerConfig {
    /// Where it listens; a loopback address. Port 0, the default, takes a free one.
    pub listen: SocketAddr,
    /// The largest message, headers included, in bytes: 1 MiB by default, at most [`LARGEST_PAYLOAD`].
    pub max_payload: usize,
    /// How many bytes may wait for a client before it is disconnected as a slow consumer; without a number 64 MiB, or
    /// four times `max_payload` if that is more.
    pub max_pending_bytes: Option<usize>,
    /// How long a client may be silent before it is pinged; the third such interval without a sign of life ends the
    /// connection.
    pub ping_interval: Duration,
    /// How long a client may take no byte of what waits for it before it is disconnected as a slow consumer.
    pub write_deadline: Duration,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            max_payload: 1 << 20,
            max_pending_bytes: None,
            ping_interval: Duration::from_mins(2),
            write_deadline: Duration::from_secs(10),
        }
    }
}

/// Why an embedded broker does not start.
#[derive(Debug, Error)]
pub enum BrokerError {
    /// It has no authentication, so other machines must not reach it.
    #[error(
        "the embedded broker listens on the loopback only, not on {listen}: it has no authentication; to be reached \
         from other machines use a real nats-server (2.10 or later) and give its URL"
    )]
    NotLoopback {
        /// The address asked for.
        listen: SocketAddr,
    },
    /// The payload limit is none.
    #[error("max_payload is {max_payload} bytes; between 1 and {LARGEST_PAYLOAD} is possible")]
    Payload {
        /// The limit asked for.
        max_payload: usize,
    },
    /// A message of the largest size could never be delivered.
    #[error(
        "max_pending_bytes is {max_pending}, but a message of max_payload takes up to {needed}: raise it or leave it out"
    )]
    Pending {
        /// The limit asked for.
        max_pending: usize,
        /// The least that works with this `max_payload`.
        needed: usize,
    },
    /// An interval or a deadline of no length.
    #[error("{setting} is zero; give it a length")]
    Zero {
        /// Which one.
        setting: &'static str,
    },
    /// The address cannot be listened on.
    #[error("the embedded broker cannot listen on {listen}: {source}; choose another port, or 0 for any")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Its thread or runtime cannot be started.
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
        if !(1..=LARGEST_PAYLOAD).contains(&max_payload) {
            return Err(BrokerError::Payload { max_payload });
        }
        // A delivery repeats the subjects of a control line and adds a few counts and the subscription's name.
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

/// A running embedded broker. Dropping it stops it without waiting; [`Broker::shutdown`] waits until it is gone.
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
    /// [`BrokerError`]: an address that is not on the loopback or is taken, or limits that make no sense.
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

    /// The URL for clients, `nats://127.0.0.1:<port>`.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has counted.
    pub fn stats(&self) -> BrokerStats {
        self.counters.snapshot()
    }

    /// Stops it: it takes no more connections, writes out what waits for its clients (for a second at most), closes
    /// their connections and ends its thread.
    pub async fn shutdown(self) {
        let Self { stop, stopped, .. } = self;
        drop(stop);
        // An error is what is waited for: the thread has dropped its end.
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
        for max_payload in [0, LARGEST_PAYLOAD + 1] {
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
                max_payload: LARGEST_PAYLOAD,
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
