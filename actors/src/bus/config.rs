//! Configuration of the connection to a broker.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use kaskade_broker::BrokerConfig;

use super::address::without_credentials;
use super::connection::Observer;
use super::embedded::Embedded;

/// Messages that one subscription buffers by default. Memory is allocated only for messages that wait. Subscriptions
/// are read at once: what exceeds the permits of an ingress or a replica is refused, not kept.
pub const SUBSCRIPTION_CAPACITY: usize = 1 << 16;

/// Oldest nats-server supported, major and minor. Key-value buckets cannot be created on older ones.
pub const OLDEST_SERVER: (u32, u32) = (2, 10);

/// Storage of plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlanStorage {
    /// In memory on an embedded broker, in JetStream on a nats-server.
    #[default]
    Auto,
    /// In this process's memory, also on a nats-server: for a single process that serves the app alone.
    Memory,
}

/// Configuration of the connection to a broker.
#[derive(Clone)]
pub struct BusConfig {
    /// The nats-server, `nats://host:4222`, or several separated by commas; `None` selects the embedded broker.
    pub url: Option<String>,
    /// The app; part of the connection's name.
    pub app: String,
    /// Role of the process; part of the connection's name: `serve`, `infer`.
    pub name: String,
    /// A `.creds` file for a nats-server that requires one.
    pub credentials: Option<PathBuf>,
    /// A file with an nkey seed, for a nats-server that requires one. Replies then go to that user's inbox
    /// ([`crate::subjects::inbox_prefix`]).
    pub nkey: Option<PathBuf>,
    /// A file with certificates to trust besides the system's, for a nats-server behind TLS.
    pub ca: Option<PathBuf>,
    /// Files with the certificate of this client and its key, for a nats-server that verifies clients by TLS.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// An embedded broker to use instead of the process's shared one. Ignored when there is a URL.
    pub embedded: Option<Embedded>,
    /// Address on which the shared embedded broker listens if this process starts it; port 0 selects a free port. If
    /// another process already listens there, the bus connects to that one.
    pub listen: SocketAddr,
    /// `max_payload` of an embedded broker, bytes.
    pub max_payload: usize,
    /// Storage of plans.
    pub plans: PlanStorage,
    /// Copies of each bucket and stream that this process creates on a nats-server; `None` selects 3 in a cluster of
    /// three or more servers, otherwise 1. Existing ones are not modified.
    pub replicas: Option<usize>,
    /// Messages that one subscription buffers before it loses some.
    pub subscription_capacity: usize,
    /// Timeout of connecting, and of each request to the broker.
    pub timeout: Duration,
    /// Called with every event of the connection.
    pub observer: Option<Observer>,
}

impl BusConfig {
    /// Configuration for the embedded broker.
    pub fn new(app: &str) -> Self {
        let BrokerConfig { max_payload, .. } = BrokerConfig::default();
        Self {
            url: None,
            app: app.to_owned(),
            name: "kaskade".to_owned(),
            credentials: None,
            nkey: None,
            ca: None,
            certificate: None,
            embedded: None,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            max_payload,
            plans: PlanStorage::Auto,
            replicas: None,
            subscription_capacity: SUBSCRIPTION_CAPACITY,
            timeout: Duration::from_secs(3),
            observer: None,
        }
    }

    /// Connects to a nats-server instead.
    #[must_use]
    pub fn url(self, url: impl Into<String>) -> Self {
        Self {
            url: Some(url.into()),
            ..self
        }
    }

    /// Connects to the given embedded broker instead.
    #[must_use]
    pub fn embedded(self, embedded: &Embedded) -> Self {
        Self {
            url: None,
            embedded: Some(embedded.clone()),
            ..self
        }
    }
}

impl fmt::Debug for BusConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusConfig")
            .field("url", &self.url.as_deref().map(without_credentials))
            .field("app", &self.app)
            .field("name", &self.name)
            .field("plans", &self.plans)
            .finish_non_exhaustive()
    }
}
