//! The connection to the broker: one client, two kinds of server.
//!
//! Without a URL the process starts its own broker on the loopback interface, or joins the one that it already runs.
//! With a URL it connects to a nats-server. All other code uses the same client for both.
//!
//! After a lost connection the client reconnects without limit, renews its subscriptions and buffers up to 2,048
//! commands; beyond that, publishing waits. Core NATS stores nothing, so messages that the server had not received or
//! not delivered are lost. The ingress that owns a request therefore retries it; the bus never retries.
//!
//! A process that serves has a second connection for control messages ([`Bus::control`]): heartbeats, states of
//! ingresses, gears, events. On one connection they would wait behind a large message that travels in chunks.

mod bucket;
mod connection;
mod embedded;
mod error;
mod nkey;
pub mod publisher;
pub(crate) mod replication;
mod subscription;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{ErrorCode, context::AccountErrorKind};
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, HeaderMap, RequestErrorKind, Subject, Subscriber,
};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use tokio::sync::OnceCell;

use crate::subjects;
use kaskade_broker::{BrokerConfig, BrokerError};

pub(crate) use bucket::{Bucket, Revision};
pub use connection::{ConnectionCounts, ConnectionHealth, Link, Observer};
pub use embedded::Embedded;
use embedded::{SHARED, SharedBroker};
pub use error::BusError;
pub(crate) use subscription::Subscription;

/// Oldest nats-server supported, major and minor. Key-value buckets cannot be created on older ones.
pub const OLDEST_SERVER: (u32, u32) = (2, 10);

/// Messages that one subscription buffers by default. Memory is allocated only for messages that wait. Subscriptions
/// are read at once: what exceeds the permits of an ingress or a replica is refused, not kept.
pub const SUBSCRIPTION_CAPACITY: usize = 1 << 16;

/// Longest pause between two attempts to reconnect, and thus the longest idle time of a restarted server.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// Interval of pings. The client drops the connection of a frozen server after two of them.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Where plans are stored.
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
    /// An embedded broker to use instead of the process's shared one. Ignored when there is a URL.
    pub embedded: Option<Embedded>,
    /// Address on which the shared embedded broker listens if this process starts it; port 0 selects a free port. If
    /// another process already listens there, the bus connects to that one.
    pub listen: SocketAddr,
    /// `max_payload` of an embedded broker, bytes.
    pub max_payload: usize,
    /// Where plans are stored.
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

/// A connection to a broker. Cheap to clone. It belongs to the tokio runtime on which it was created and ends with
/// it.
#[derive(Debug, Clone)]
pub struct Bus(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    /// Without credentials.
    url: String,
    health: Arc<ConnectionHealth>,
    embedded: Option<Embedded>,
    jetstream: OnceCell<bool>,
    plans: PlanStorage,
    replicas: Option<usize>,
    timeout: Duration,
    /// The connection for control messages, if it has one of its own.
    control: Option<Bus>,
}

impl Bus {
    /// Connects and checks the server's version.
    ///
    /// # Errors
    /// [`BusError`]: an invalid address, no answer, a refusal, or a server older than [`OLDEST_SERVER`]; within
    /// [`BusConfig::timeout`] for each address.
    pub async fn connect(config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = locate_broker(&config, &SHARED)?;
        Self::open(&config, &url, embedded, None).await
    }

    /// Connects twice: the second connection, with `/control` after its name, carries control messages
    /// ([`Bus::control`]). For processes that serve.
    ///
    /// # Errors
    /// As [`Bus::connect`].
    pub async fn connect_with_control(config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = locate_broker(&config, &SHARED)?;
        let second = BusConfig {
            name: format!("{}/control", config.name),
            ..config.clone()
        };
        let control = Self::open(&second, &url, embedded.clone(), None).await?;
        Self::open(&config, &url, embedded, Some(control)).await
    }

    async fn open(
        config: &BusConfig,
        url: &str,
        embedded: Option<Embedded>,
        control: Option<Self>,
    ) -> Result<Self, BusError> {
        let health = Arc::new(ConnectionHealth::new(config.observer.clone()));
        let client = connect(config, url, &health).await?;
        let found = client.server_info().version;
        if !new_enough(&found) {
            return Err(BusError::TooOld {
                url: without_credentials(url),
                found,
            });
        }
        Ok(Self(Arc::new(Inner {
            client,
            url: without_credentials(url),
            health,
            embedded,
            jetstream: OnceCell::new(),
            plans: config.plans,
            replicas: config.replicas,
            timeout: config.timeout,
            control,
        })))
    }

    /// Returns the connection for control messages; this one if it has no other. Messages on the two connections are
    /// not ordered with respect to each other.
    pub fn control(&self) -> &Self {
        self.0.control.as_ref().unwrap_or(self)
    }

    /// Returns the NATS client, for operations that the bus does not wrap. The client does not keep an embedded
    /// broker running; the bus does.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Returns the address of the broker, without credentials.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Returns the embedded broker if this process runs it.
    pub fn embedded(&self) -> Option<&Embedded> {
        self.0.embedded.as_ref()
    }

    /// Returns the state and counters of the connection.
    pub fn connection(&self) -> &ConnectionHealth {
        &self.0.health
    }

    /// Returns the largest message that the broker accepts, headers included, bytes.
    pub fn max_payload(&self) -> usize {
        self.0.client.max_payload()
    }

    /// Returns whether the broker has JetStream. The bus asks once, and only on demand: a client that only sends
    /// requests may lack the permission to ask.
    pub async fn has_jetstream(&self) -> bool {
        let ask =
            || async { self.0.embedded.is_none() && has_jetstream(&self.0.client, self.0.timeout).await };
        *self.0.jetstream.get_or_init(ask).await
    }

    /// Subscribes to a subject; the members of a `group` share the messages. Only after a [`Bus::barrier`] is the
    /// subscription certain to receive what other connections publish.
    ///
    /// # Errors
    /// [`BusError::Failed`].
    pub async fn subscribe(&self, subject: Subject, group: Option<String>) -> Result<Subscriber, BusError> {
        let subscribed = match group {
            Some(group) => self.0.client.queue_subscribe(subject, group).await,
            None => self.0.client.subscribe(subject).await,
        };
        subscribed.map_err(|error| BusError::failed("subscribing", &error))
    }

    /// Publishes a message after checking its size.
    ///
    /// # Errors
    /// [`BusError::TooLarge`] with both sizes, before anything is sent; [`BusError::Failed`].
    pub async fn publish(
        &self,
        subject: Subject,
        reply: Option<Subject>,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<(), BusError> {
        self.check_size(headers.as_ref(), payload.len())?;
        let client = &self.0.client;
        let published = match (reply, headers) {
            (None, None) => client.publish(subject, payload).await,
            (None, Some(headers)) => client.publish_with_headers(subject, headers, payload).await,
            (Some(reply), None) => client.publish_with_reply(subject, reply, payload).await,
            (Some(reply), Some(headers)) => {
                client
                    .publish_with_reply_and_headers(subject, reply, headers, payload)
                    .await
            }
        };
        published.map_err(|error| BusError::failed("publishing", &error))
    }

    /// Checks that a message of these headers and `payload` bytes fits the broker's `max_payload`.
    ///
    /// # Errors
    /// [`BusError::TooLarge`] with both sizes.
    pub fn check_size(&self, headers: Option<&HeaderMap>, payload: usize) -> Result<(), BusError> {
        let size = payload + headers.map_or(0, header_bytes);
        let limit = self.max_payload();
        if size > limit {
            return Err(BusError::TooLarge { size, limit });
        }
        Ok(())
    }

    /// Waits until the broker has processed everything that this connection sent before, subscriptions included.
    ///
    /// A flush only tells that the bytes have left. The barrier sends a request to a subject without subscribers; the
    /// server answers it in order with "no responders". In a cluster this covers the server connected to, not its
    /// peers.
    ///
    /// # Errors
    /// [`BusError::Timeout`] or [`BusError::Failed`].
    pub async fn barrier(&self) -> Result<(), BusError> {
        let request = async_nats::Request::new()
            .payload(Bytes::new())
            .timeout(Some(self.0.timeout));
        let answer = self.0.client.send_request(subjects::unserved(), request).await;
        match answer.map_err(|error| (error.kind(), error)) {
            Ok(_) | Err((RequestErrorKind::NoResponders, _)) => Ok(()),
            Err((RequestErrorKind::TimedOut, _)) => Err(BusError::Timeout { what: "a round trip" }),
            Err((_, error)) => Err(BusError::failed("a round trip", &error)),
        }
    }

    /// Waits until everything published has left this process.
    ///
    /// # Errors
    /// [`BusError::Timeout`] or [`BusError::Failed`].
    pub async fn flush(&self) -> Result<(), BusError> {
        match tokio::time::timeout(self.0.timeout, self.0.client.flush()).await {
            Ok(flushed) => flushed.map_err(|error| BusError::failed("flushing", &error)),
            Err(_) => Err(BusError::Timeout { what: "a flush" }),
        }
    }

    /// Ends every subscription after its buffered messages, sends what is still queued, and closes the connection and
    /// that for control messages, within `grace`. Without a drain the last publications may never leave the process.
    ///
    /// # Errors
    /// [`BusError::Timeout`] if `grace` was too short, [`BusError::Failed`] if a connection was already closed.
    pub async fn drain(&self, grace: Duration) -> Result<(), BusError> {
        let Some(control) = &self.0.control else {
            return self.drain_one(grace).await;
        };
        let (data, control) = tokio::join!(self.drain_one(grace), control.drain_one(grace));
        data.and(control)
    }

    async fn drain_one(&self, grace: Duration) -> Result<(), BusError> {
        let mut link = self.0.health.link();
        let drained = async {
            self.0
                .client
                .drain()
                .await
                .map_err(|error| BusError::failed("draining", &error))?;
            let _ = link.wait_for(|link| *link == Link::Closed).await;
            Ok(())
        };
        match tokio::time::timeout(grace, drained).await {
            Ok(drained) => drained,
            Err(_) => Err(BusError::Timeout { what: "a drain" }),
        }
    }

    /// Drains with the default timeout and logs a failure.
    pub async fn close(&self) {
        if let Err(error) = self.drain(self.0.timeout).await {
            tracing::warn!(%error, "draining the connection failed");
        }
    }

    /// Returns where plans are stored.
    pub(crate) fn plan_storage(&self) -> PlanStorage {
        self.0.plans
    }

    /// Returns the configured number of copies of buckets and streams.
    pub(crate) fn replicas(&self) -> Option<usize> {
        self.0.replicas
    }
}

/// Returns the address to connect to, and the broker behind it if this process runs it.
fn locate_broker(config: &BusConfig, shared: &SharedBroker) -> Result<(String, Option<Embedded>), BusError> {
    if let Some(url) = &config.url {
        return Ok((url.clone(), None));
    }
    if let Some(embedded) = &config.embedded {
        return Ok((embedded.url(), Some(embedded.clone())));
    }
    let broker = BrokerConfig {
        listen: config.listen,
        max_payload: config.max_payload,
        ..BrokerConfig::default()
    };
    match shared.join(broker) {
        Ok(embedded) => Ok((embedded.url(), Some(embedded))),
        // Another process listens there already: connect to it; the version check follows.
        Err(BrokerError::Listen { listen, source }) if source.kind() == std::io::ErrorKind::AddrInUse => {
            Ok((format!("nats://{listen}"), None))
        }
        Err(error) => Err(error.into()),
    }
}

async fn connect(config: &BusConfig, url: &str, health: &Arc<ConnectionHealth>) -> Result<Client, BusError> {
    let addresses = url
        .split(',')
        .map(|address| address.trim().parse::<async_nats::ServerAddr>())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| BusError::BadUrl {
            url: without_credentials(url),
            reason: error.to_string(),
        })?;
    // Each host may have several addresses, and each of them is tried for the whole timeout; together they get twice
    // that.
    let limit = config.timeout * 2 * u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    let options = options(config, health).await?;
    let options = match addresses.iter().find(|address| address.has_user_pass()) {
        Some(address) => with_user_info(options, address),
        None => options,
    };
    let connecting = options.connect(addresses);
    let absent = |reason: String| BusError::Unreachable {
        url: without_credentials(url),
        reason,
    };
    match tokio::time::timeout(limit, connecting).await {
        Err(_) => Err(absent(format!("no answer in {limit:?}"))),
        Ok(Ok(client)) => Ok(client),
        Ok(Err(error)) => Err(match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                BusError::Refused {
                    url: without_credentials(url),
                    reason: error.to_string(),
                }
            }
            ConnectErrorKind::ServerParse => BusError::BadUrl {
                url: without_credentials(url),
                reason: error.to_string(),
            },
            _ => absent(error.to_string()),
        }),
    }
}

async fn options(config: &BusConfig, health: &Arc<ConnectionHealth>) -> Result<ConnectOptions, BusError> {
    let observed = Arc::clone(health);
    let options = ConnectOptions::new()
        .name(format!("{}/{}", config.app, config.name))
        .connection_timeout(config.timeout)
        .subscription_capacity(config.subscription_capacity)
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(reconnect_pause)
        .event_callback(move |event| {
            let health = Arc::clone(&observed);
            async move { health.observe(&event) }
        });
    let options = match &config.ca {
        Some(path) => options.add_root_certificates(path.clone()),
        None => options,
    };
    let options = match &config.nkey {
        Some(path) => nkey::with_nkey(options, path)?,
        None => options,
    };
    let Some(path) = &config.credentials else {
        return Ok(options);
    };
    options
        .credentials_file(path)
        .await
        .map_err(|error| BusError::Credentials {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
}

/// Passes the user and password, or the token, of an address to the client, which does not read them itself.
fn with_user_info(options: ConnectOptions, address: &async_nats::ServerAddr) -> ConnectOptions {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(address.username().unwrap_or_default());
    match address.password() {
        Some(password) => options.user_and_password(user, decoded(password)),
        None => options.token(user),
    }
}

/// Returns no pause before the first attempt, then 10 ms, doubling up to [`RECONNECT_PAUSE`].
fn reconnect_pause(attempts: usize) -> Duration {
    let Some(doublings) = attempts.checked_sub(2) else {
        return Duration::ZERO;
    };
    let factor = 1_u32 << doublings.min(16);
    (Duration::from_millis(10) * factor).min(RECONNECT_PAUSE)
}

/// Asks the account instead of reading the greeting: in a cluster the server connected to need not have JetStream
/// itself, and an account may lack it on a server that does. A cluster that has just started does not answer, or
/// answers "not available", until its servers have elected a leader; this function waits for that.
async fn has_jetstream(client: &Client, timeout: Duration) -> bool {
    let mut jetstream = async_nats::jetstream::new(client.clone());
    jetstream.set_timeout(timeout);
    let begun = tokio::time::Instant::now();
    loop {
        let Err(error) = jetstream.query_account().await else {
            return true;
        };
        if !may_become_available(&error.kind()) || begun.elapsed() >= JETSTREAM_WAIT {
            return false;
        }
        tracing::warn!(%error, "JetStream is not available yet; retrying");
        tokio::time::sleep(JETSTREAM_RETRY_PAUSE).await;
    }
}

/// Time that a cluster may take until its JetStream answers.
const JETSTREAM_WAIT: Duration = Duration::from_secs(30);

/// Pause between two such queries.
const JETSTREAM_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Returns whether a JetStream that answers with this error may become available later.
fn may_become_available(error: &AccountErrorKind) -> bool {
    match error {
        AccountErrorKind::TimedOut => true,
        AccountErrorKind::JetStream(error) => error.error_code() == ErrorCode::CLUSTER_NOT_AVAILABLE,
        AccountErrorKind::JetStreamUnavailable | AccountErrorKind::Other => false,
    }
}

fn new_enough(version: &str) -> bool {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    matches!((next(), next()), (Some(major), Some(minor)) if (major, minor) >= OLDEST_SERVER)
}

/// Removes user information (everything between `//` and `@`) from the addresses.
fn without_credentials(url: &str) -> String {
    url.split(',')
        .map(
            |address| match (address.split_once("://"), address.rsplit_once('@')) {
                (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
                (None, Some((_, host))) => host.to_owned(),
                (_, None) => address.to_owned(),
            },
        )
        .collect::<Vec<_>>()
        .join(",")
}

/// Size of a header block in the protocol, bytes.
fn header_bytes(headers: &HeaderMap) -> usize {
    if headers.is_empty() {
        return 0;
    }
    let lines = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values
            .iter()
            .map(move |value| name.len() + value.as_str().len() + ": \r\n".len())
    });
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}

#[cfg(test)]
mod tests;
