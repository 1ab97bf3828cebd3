//! The connection to the broker: one client, two servers behind it.
//!
//! Without a URL the process starts its own broker on the loopback, or joins the one it already has; with one it connects to
//! a nats-server. Either way everything above speaks to the same client.
//!
//! What the client does when the connection is lost: it reconnects for ever, subscribes again, and keeps up to 2,048
//! commands meanwhile; after that publishing waits. What the server had not received, or had not delivered, is lost: core
//! NATS keeps nothing. So requests are retried by the ingress that owns them, and never by the bus.

mod bucket;
mod connection;
mod embedded;
mod error;
mod nkey;
pub mod publisher;

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

pub(crate) use bucket::Bucket;
pub use connection::{ConnectionCounts, ConnectionHealth, Link, Observer};
pub use embedded::Embedded;
use embedded::{SHARED, SharedBroker};
pub use error::BusError;

/// Oldest nats-server supported, major and minor: key-value buckets cannot be created on older ones.
pub const OLDEST_SERVER: (u32, u32) = (2, 10);

/// Messages that one subscription buffers by default: four times the client's own default. Memory is taken only for what
/// waits.
pub const SUBSCRIPTION_CAPACITY: usize = 1 << 18;

/// Longest pause between two attempts to reconnect: the time that a restarted server stands idle.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A frozen server is taken for lost after two of these.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Where plans are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlanStorage {
    /// In memory on an embedded broker, in JetStream on a nats-server.
    #[default]
    Auto,
    /// In this process's memory, also on a nats-server: for one process that serves an app alone.
    Memory,
}

/// How to reach a broker.
#[derive(Clone)]
pub struct BusConfig {
    /// The nats-server, `nats://host:4222` or several with commas between; none means the embedded broker.
    pub url: Option<String>,
    /// The app, for the connection's name.
    pub app: String,
    /// What connects, for the connection's name: `serve`, `infer`.
    pub name: String,
    /// A `.creds` file for a nats-server that wants one.
    pub credentials: Option<PathBuf>,
    /// A file with the seed of an nkey, for a nats-server that wants one. Answers then go to that user's own inbox
    /// ([`crate::subjects::inbox_prefix`]).
    pub nkey: Option<PathBuf>,
    /// A file with the certificates to trust beside the system's, for a nats-server that is reached by TLS.
    pub ca: Option<PathBuf>,
    /// An embedded broker to use instead of the process's shared one. Without effect when there is a URL.
    pub embedded: Option<Embedded>,
    /// Where the shared embedded broker listens when this process is the first to use it; port 0 takes a free one. When
    /// another process listens there already, that one is joined.
    pub listen: SocketAddr,
    /// `max_payload` of an embedded broker, bytes.
    pub max_payload: usize,
    /// Where plans are kept.
    pub plans: PlanStorage,
    /// Messages that one subscription buffers before it loses some.
    pub subscription_capacity: usize,
    /// How long connecting, and each question to the broker, may take.
    pub timeout: Duration,
    /// Told of every event of the connection.
    pub observer: Option<Observer>,
}

impl BusConfig {
    /// The embedded broker, for that app.
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
            subscription_capacity: SUBSCRIPTION_CAPACITY,
            timeout: Duration::from_secs(3),
            observer: None,
        }
    }

    /// The same, on a nats-server.
    #[must_use]
    pub fn url(self, url: impl Into<String>) -> Self {
        Self {
            url: Some(url.into()),
            ..self
        }
    }

    /// The same, on an embedded broker of one's own.
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

/// A connection to a broker. Cheap to clone. It belongs to the tokio runtime that it was made on, and ends with it.
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
    timeout: Duration,
}

impl Bus {
    /// Connects, and returns once the broker has been found good.
    ///
    /// # Errors
    /// [`BusError`]: an address that is none, nobody there, a refusal, a server before [`OLDEST_SERVER`]; within
    /// [`BusConfig::timeout`] for each address.
    pub async fn connect(config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = locate_broker(&config, &SHARED)?;
        let health = Arc::new(ConnectionHealth::new(config.observer.clone()));
        let client = connect(&config, &url, &health).await?;
        let found = client.server_info().version;
        if !new_enough(&found) {
            return Err(BusError::TooOld {
                url: without_credentials(&url),
                found,
            });
        }
        Ok(Self(Arc::new(Inner {
            client,
            url: without_credentials(&url),
            health,
            embedded,
            jetstream: OnceCell::new(),
            plans: config.plans,
            timeout: config.timeout,
        })))
    }

    /// The client, for everything that the bus does not wrap. It does not keep an embedded broker running; the bus does.
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// Where the broker is, without credentials.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The embedded broker, when this process runs it.
    pub fn embedded(&self) -> Option<&Embedded> {
        self.0.embedded.as_ref()
    }

    /// How the connection fares.
    pub fn connection(&self) -> &ConnectionHealth {
        &self.0.health
    }

    /// Bytes that one message may have, headers included.
    pub fn max_payload(&self) -> usize {
        self.0.client.max_payload()
    }

    /// Whether the broker has JetStream, asked once. Not asked before somebody needs it: a client that only asks an app need not
    /// be allowed the question.
    pub async fn has_jetstream(&self) -> bool {
        let ask =
            || async { self.0.embedded.is_none() && has_jetstream(&self.0.client, self.0.timeout).await };
        *self.0.jetstream.get_or_init(ask).await
    }

    /// Subscribes; with a `group`, its members share the messages. Messages arrive from everybody's point of view only
    /// after a [`Bus::barrier`].
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

    /// Publishes, if the broker carries that much.
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

    /// Nothing, if the broker carries a message of these headers and that many bytes.
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

    /// Returns once the broker has processed everything that this connection sent before, subscriptions included.
    ///
    /// A flush only says that the bytes have left. What makes a round trip is a request that nobody can answer: the server
    /// says so itself, in its turn. In a cluster it speaks for the server connected to, not for its peers.
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

    /// Ends every subscription of this connection after what it has buffered, sends what is still to be sent, and closes;
    /// waits for that at most `grace`. Without it what was published last may never leave the process.
    ///
    /// # Errors
    /// [`BusError::Timeout`] when the grace was too short, [`BusError::Failed`] when it was closed before.
    pub async fn drain(&self, grace: Duration) -> Result<(), BusError> {
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
            Err(_) => Err(BusError::Timeout { what: "to draining" }),
        }
    }

    /// [`Bus::drain`] for whoever has nothing left to say about it.
    pub async fn close(&self) {
        if let Err(error) = self.drain(self.0.timeout).await {
            tracing::warn!(%error, "the connection was not closed in good order");
        }
    }

    /// Where plans are kept.
    pub(crate) fn plan_storage(&self) -> PlanStorage {
        self.0.plans
    }
}

/// The address to connect to, and the broker behind it when it is this process's.
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
        // Another process was first: join it, whatever it is; the version tells.
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
    // Each host may have several addresses, and each of those is tried for the whole timeout; together they get twice that.
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

/// The client reads no credentials out of an address, so they are given to it: a user and a password, or a lone token.
fn with_user_info(options: ConnectOptions, address: &async_nats::ServerAddr) -> ConnectOptions {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(address.username().unwrap_or_default());
    match address.password() {
        Some(password) => options.user_and_password(user, decoded(password)),
        None => options.token(user),
    }
}

/// Nothing before the first attempt, then 10 ms doubling up to [`RECONNECT_PAUSE`].
fn reconnect_pause(attempts: usize) -> Duration {
    let Some(doublings) = attempts.checked_sub(2) else {
        return Duration::ZERO;
    };
    let factor = 1_u32 << doublings.min(16);
    (Duration::from_millis(10) * factor).min(RECONNECT_PAUSE)
}

/// Asked of the account and not read from the greeting: in a cluster the server connected to need not have it itself, and
/// an account may be without on a server that does. A cluster that has just started says nothing, or "later", until its servers have
/// agreed on one of them; that is waited for.
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
        tracing::warn!(%error, "JetStream is not there yet; it is asked again");
        tokio::time::sleep(JETSTREAM_RETRY_PAUSE).await;
    }
}

/// How long a cluster may take until its JetStream answers.
const JETSTREAM_WAIT: Duration = Duration::from_secs(30);

/// Between two questions whether it does.
const JETSTREAM_RETRY_PAUSE: Duration = Duration::from_millis(250);

/// Whether JetStream may answer later that answers so now.
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

/// The address with whatever stands between `//` and `@` taken out.
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

/// Bytes of a header block as the protocol writes it.
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
