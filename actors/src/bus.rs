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

mod address;
mod bucket;
mod config;
mod connect;
mod connection;
mod embedded;
mod error;
mod jetstream;
mod nkey;
pub mod publisher;
pub(crate) mod replication;
mod subscription;

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, HeaderMap, RequestErrorKind, Subject, Subscriber};
use bytes::Bytes;
use tokio::sync::OnceCell;

use crate::subjects;

use address::without_credentials;
pub(crate) use bucket::{Bucket, Revision};
pub use config::{BusConfig, OLDEST_SERVER, PlanStorage, SUBSCRIPTION_CAPACITY};
pub use connection::{ConnectionCounts, ConnectionHealth, Link, Observer};
pub use embedded::Embedded;
use embedded::SHARED;
pub use error::BusError;
pub(crate) use error::RAISE_MAX_PAYLOAD;
pub(crate) use subscription::Subscription;

/// A connection to a broker. Cheap to clone. It belongs to the tokio runtime on which it was created and ends with
/// it.
#[derive(Debug, Clone)]
pub struct Bus(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    client: Client,
    /// URL of the broker, without credentials.
    url: String,
    health: Arc<ConnectionHealth>,
    embedded: Option<Embedded>,
    jetstream: OnceCell<bool>,
    plans: PlanStorage,
    replicas: Option<usize>,
    timeout: Duration,
    control: Option<Control>,
}

/// The connection for control messages.
#[derive(Debug)]
struct Control {
    bus: Bus,
    /// Whether another shard of the process owns the connection and closes it.
    shared: bool,
}

impl Bus {
    /// Connects and checks the server's version.
    ///
    /// # Errors
    /// [`BusError`]: an invalid address, no answer, a refusal, or a server older than [`OLDEST_SERVER`]; within
    /// [`BusConfig::timeout`] for each address.
    pub async fn connect(config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = connect::locate_broker(&config, &SHARED)?;
        Self::open(&config, &url, embedded, None).await
    }

    /// Connects like [`Bus::connect`] and opens a second connection for control messages ([`Bus::control`]), whose name
    /// ends in `/control`. For processes that serve.
    ///
    /// # Errors
    /// As [`Bus::connect`].
    pub(crate) async fn connect_with_control(config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = connect::locate_broker(&config, &SHARED)?;
        let second = BusConfig {
            name: format!("{}/control", config.name),
            ..config.clone()
        };
        let control = Control {
            bus: Self::open(&second, &url, embedded.clone(), None).await?,
            shared: false,
        };
        Self::open(&config, &url, embedded, Some(control)).await
    }

    /// Opens the connection of another shard of this process: a new data connection on the calling runtime, and the
    /// existing control connection. `config` must be the configuration that this bus was created with.
    ///
    /// # Errors
    /// As [`Bus::connect`].
    pub(crate) async fn connect_shard(&self, config: BusConfig) -> Result<Self, BusError> {
        let (url, embedded) = connect::locate_broker(&config, &SHARED)?;
        let control = Control {
            bus: self.control().clone(),
            shared: true,
        };
        Self::open(&config, &url, embedded, Some(control)).await
    }

    async fn open(
        config: &BusConfig,
        url: &str,
        embedded: Option<Embedded>,
        control: Option<Control>,
    ) -> Result<Self, BusError> {
        let health = Arc::new(ConnectionHealth::new(
            format!("{}/{}", config.app, config.name),
            without_credentials(url),
            config.observer.clone(),
        ));
        let client = connect::connect(config, url, &health).await?;
        let found = client.server_info().version;
        if !connect::new_enough(&found) {
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

    /// Returns the connection for control messages, or this bus if there is no separate one. Messages on the two
    /// connections are not ordered with respect to each other.
    pub fn control(&self) -> &Self {
        self.0.control.as_ref().map_or(self, |control| &control.bus)
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

    /// Returns whether the broker has JetStream. The bus queries it once, on first use: a client that only sends
    /// requests may lack the permission to query.
    pub(crate) async fn has_jetstream(&self) -> bool {
        let ask = || async {
            let Inner {
                client,
                health,
                timeout,
                ..
            } = &*self.0;
            self.0.embedded.is_none() && jetstream::has_jetstream(client, health, *timeout).await
        };
        *self.0.jetstream.get_or_init(ask).await
    }

    /// Subscribes to a subject; the members of a queue group (`group`) share the messages. The subscription is certain
    /// to receive messages of other connections only after a [`Bus::barrier`].
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

    /// Checks that a message with these headers and `payload` bytes fits the broker's `max_payload`.
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

    /// Waits until the broker has processed everything that this connection has sent, subscriptions included.
    ///
    /// A flush only shows that the bytes have left. The barrier sends a request to a subject without subscribers, which
    /// the server answers in order with "no responders". In a cluster this covers the connected server, not its peers.
    ///
    /// # Errors
    /// [`BusError::Timeout`] or [`BusError::Failed`].
    pub async fn barrier(&self) -> Result<(), BusError> {
        let request = async_nats::Request::new()
            .payload(Bytes::new())
            .timeout(Some(self.0.timeout));
        let answer = self
            .0
            .client
            .send_request(subjects::without_subscribers(), request)
            .await;
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

    /// Closes the connection within `grace`, after delivering the buffered messages of every subscription and sending
    /// what is queued. Also closes the control connection unless another shard owns it. Without a drain the last
    /// publications may never leave the process.
    ///
    /// # Errors
    /// [`BusError::Timeout`] if `grace` was too short, [`BusError::Failed`] if a connection was already closed.
    pub async fn drain(&self, grace: Duration) -> Result<(), BusError> {
        let Some(control) = self.0.control.as_ref().filter(|control| !control.shared) else {
            return self.drain_one(grace).await;
        };
        let (data, control) = tokio::join!(self.drain_one(grace), control.bus.drain_one(grace));
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

    /// Drains with the default timeout and logs failures.
    pub async fn close(&self) {
        if let Err(error) = self.drain(self.0.timeout).await {
            tracing::warn!(%error, "draining the connection failed");
        }
    }

    /// Returns where plans are stored.
    pub(crate) fn plan_storage(&self) -> PlanStorage {
        self.0.plans
    }

    /// Returns the configured number of replicas of buckets and streams.
    pub(crate) fn replicas(&self) -> Option<usize> {
        self.0.replicas
    }
}

/// Returns the size of a header block on the wire, bytes.
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
