//! The streams of an app's durable requests, and the state shared by all submissions of an ingress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::{
    self, AckKind, ErrorCode,
    consumer::{AckPolicy, PullConsumer, pull},
    context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind, PublishError, PublishErrorKind},
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use async_nats::{HeaderMap, Subject, header};
use bytes::Bytes;
use dashmap::DashMap;

use super::config::{DurableConfig, DurableError};
use super::failures::{MAX_COUNTED, RETENTION, SharedFailures};
use crate::bus::{Bus, replication};
use crate::dispatch::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::subjects::{self, App};

/// Number of progress notices per `ack_wait`.
const IN_PROGRESS_PER_ACK_WAIT: u32 = 3;

/// State shared by all durable requests of one ingress.
pub(crate) struct Streams {
    pub(super) config: DurableConfig,
    pub(super) dispatcher: Dispatcher,
    pub(super) metrics: Arc<Metrics>,
    pub(super) bus: Bus,
    jetstream: jetstream::Context,
    /// The consumer's `ack_wait`, milliseconds. An existing consumer keeps its own value, regardless of the
    /// configuration.
    ack_wait_ms: AtomicU64,
    /// Ack subjects of requests in progress, by stream sequence number.
    in_progress: DashMap<u64, Subject>,
    /// Model failures at requests that are redelivered.
    pub(super) failures: SharedFailures,
}

impl Streams {
    pub(crate) fn new(
        bus: &Bus,
        config: DurableConfig,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        let config_ms = milliseconds(config.ack_wait);
        let failures = SharedFailures::new(bus, dispatcher.app());
        Self {
            config,
            dispatcher,
            metrics,
            bus: bus.clone(),
            ack_wait_ms: AtomicU64::new(config_ms),
            jetstream: jetstream::new(bus.client().clone()),
            in_progress: DashMap::new(),
            failures,
        }
    }

    /// Returns whether the app has a stream that accepts durable requests; `None` if JetStream does not answer.
    pub(super) async fn has_stream(bus: &Bus, app: &App) -> Option<bool> {
        if !bus.has_jetstream().await {
            return Some(false);
        }
        let jetstream = jetstream::new(bus.client().clone());
        let found = jetstream.get_stream(app.submitted_stream()).await;
        match found.map_err(|error| error.kind()) {
            Ok(_) => Some(true),
            Err(GetStreamErrorKind::JetStream(error))
                if error.error_code() == ErrorCode::STREAM_NOT_FOUND =>
            {
                Some(false)
            }
            Err(_) => None,
        }
    }

    /// Opens or creates the streams, and returns the consumer that all ingresses of the app share. Existing streams
    /// are not modified: an operator may have configured them differently.
    pub(super) async fn consumer(&self) -> Result<PullConsumer, DurableError> {
        let app = self.dispatcher.app();
        let (ack_wait, in_flight) = (self.config.ack_wait, self.config.in_flight);
        let submitted = self.stream(submitted(app, &self.config)).await?;
        self.stream(results(app, &self.config)).await?;
        self.stream(dead(app, &self.config)).await?;
        let counts = self.stream(failures(app)).await;
        self.failures.set_shared(counts.is_ok());
        if let Err(error) = counts {
            // A user whose permissions predate this stream can still serve.
            tracing::warn!(
                %error,
                "every ingress counts failures of durable requests alone; the permissions of `kaskade auth init` let it share them"
            );
        }
        let config = pull::Config {
            durable_name: Some(subjects::DURABLE_CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            // Every ingress bounds its own requests; the consumer does not bound their sum.
            max_ack_pending: i64::try_from(in_flight).unwrap_or(i64::MAX).saturating_mul(64),
            ..pull::Config::default()
        };
        let consumer = submitted.get_or_create_consumer(subjects::DURABLE_CONSUMER, config);
        let consumer = consumer
            .await
            .map_err(|error| DurableError::refused("creating the consumer of durable requests", error))?;
        let found = consumer.cached_info().config.ack_wait;
        if found != ack_wait {
            tracing::warn!(?found, configured = ?ack_wait, "the consumer of durable requests exists with another ack_wait, which is used");
        }
        self.ack_wait_ms.store(milliseconds(found), Ordering::Relaxed);
        Ok(consumer)
    }

    async fn stream(&self, config: stream::Config) -> Result<stream::Stream, DurableError> {
        let replicas = self.config.replicas.or_else(|| self.bus.replicas());
        let made = replication::create(&self.bus, replicas, |num_replicas| {
            self.jetstream.get_or_create_stream(stream::Config {
                num_replicas,
                ..config.clone()
            })
        });
        // A server that denies the operation sends no answer.
        let refused = |operation: &str| {
            let subject = format!("$JS.API.STREAM.{operation}.{}", config.name);
            self.bus.connection().refused(&subject)
        };
        let (reading, creating) = (refused("INFO"), refused("CREATE"));
        let url = || self.bus.url().to_owned();
        let made = tokio::select! {
            biased;
            made = made => made,
            _ = reading => return Err(DurableError::NotPermitted { url: url() }),
            _ = creating => return Err(DurableError::NotPermitted { url: url() }),
        };
        made.map_err(|error| {
            if lacks_storage(&error) {
                return DurableError::TooLittleStorage {
                    url: self.bus.url().to_owned(),
                    max_bytes: self.config.max_bytes,
                    reason: error.to_string(),
                };
            }
            DurableError::refused("creating the streams of durable requests", error)
        })
    }

    /// Stores the result of a request. Returns false if one is already stored; that one is kept.
    pub(super) async fn store_result(
        &self,
        id: &str,
        mut headers: HeaderMap,
        payload: Bytes,
    ) -> Result<bool, DurableError> {
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, "0");
        let subject = self.dispatcher.app().result(id);
        match self.write(results, subject, headers, payload).await {
            Ok(()) => Ok(true),
            Err(WriteError::AlreadyThere) => Ok(false),
            Err(WriteError::Other(reason)) => Err(DurableError::refused("storing a result", reason)),
        }
    }

    /// Stores a request as a dead letter.
    pub(super) async fn dead_letter(
        &self,
        id: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), DurableError> {
        let subject = self.dispatcher.app().dead(id);
        let written = self.write(dead, subject, headers, payload).await;
        written.map_err(|refused| match refused {
            WriteError::AlreadyThere => DurableError::refused("storing a dead letter", "it already exists"),
            WriteError::Other(reason) => DurableError::refused("storing a dead letter", reason),
        })
    }

    /// Writes a message to the stream of this configuration. If the stream is missing, creates it first: it may have been
    /// deleted since the ingress started.
    async fn write(
        &self,
        stream: fn(&App, &DurableConfig) -> stream::Config,
        subject: Subject,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), WriteError> {
        let mut written = self
            .publish(subject.clone(), headers.clone(), payload.clone())
            .await;
        let is_missing = |error: &PublishError| error.kind() == PublishErrorKind::StreamNotFound;
        if written.as_ref().is_err_and(is_missing) {
            let config = stream(self.dispatcher.app(), &self.config);
            tracing::warn!(
                stream = config.name,
                "a stream of durable requests is missing; creating it again"
            );
            let created = self.stream(config).await;
            created.map_err(|error| WriteError::Other(error.to_string()))?;
            written = self.publish(subject, headers, payload).await;
        }
        written.map_err(|error| match error.kind() {
            PublishErrorKind::WrongLastSequence => WriteError::AlreadyThere,
            _ => WriteError::Other(error.to_string()),
        })
    }

    async fn publish(
        &self,
        subject: Subject,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), PublishError> {
        let sent = self.jetstream.publish_with_headers(subject, headers, payload);
        sent.await?.await?;
        Ok(())
    }

    /// Returns the stored result of a request, if it has one.
    pub(super) async fn result(&self, id: &str) -> Option<async_nats::Message> {
        let subject = subjects::result_query(self.dispatcher.app(), id);
        let request = async_nats::Request::new().payload(Bytes::new());
        let found = self.bus.client().send_request(subject, request).await.ok()?;
        found.status.is_none().then_some(found)
    }

    /// Starts sending progress notices for the request.
    pub(super) fn track(&self, number: u64, ack: Subject) {
        self.in_progress.insert(number, ack);
    }

    /// Stops sending progress notices for this delivery of the request. A later delivery has another ack subject.
    pub(super) fn untrack(&self, number: u64, ack: &Subject) {
        self.in_progress.remove_if(&number, |_, tracked| tracked == ack);
    }

    /// Returns the interval at which [`Streams::send_in_progress`] must be called.
    pub(super) fn in_progress_period(&self) -> Duration {
        let ack_wait = Duration::from_millis(self.ack_wait_ms.load(Ordering::Relaxed));
        ack_wait / IN_PROGRESS_PER_ACK_WAIT
    }

    /// Sends a progress notice for every request in progress, so that the stream does not redeliver those that take
    /// longer than `ack_wait`.
    pub(super) fn send_in_progress(&self) {
        for request in &self.in_progress {
            let ack = request.value().clone();
            self.dispatcher.publish(ack, None, None, AckKind::Progress.into());
        }
    }
}

/// JetStream errors for a stream that reserves more storage than the server or the account has.
const TOO_LITTLE_STORAGE: [ErrorCode; 2] = [
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
];

/// Returns whether JetStream refused a stream because storage is too small.
fn lacks_storage(error: &CreateStreamError) -> bool {
    matches!(error.kind(), CreateStreamErrorKind::JetStream(error) if TOO_LITTLE_STORAGE.contains(&error.error_code()))
}

/// Returns a duration in milliseconds, at least [`IN_PROGRESS_PER_ACK_WAIT`].
fn milliseconds(duration: Duration) -> u64 {
    let whole = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    whole.max(u64::from(IN_PROGRESS_PER_ACK_WAIT))
}

/// Why a message was not stored.
enum WriteError {
    /// The subject already has a message.
    AlreadyThere,
    Other(String),
}

/// Returns the configuration of the stream of waiting requests. Requests leave it when they are settled; a full stream
/// refuses new requests instead of dropping old ones.
fn submitted(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!("Durable requests of the Kaskade app {app}")),
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        ..stream_config(app.submitted_stream(), app.submit())
    }
}

fn results(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!("Results of durable requests of the Kaskade app {app}")),
        max_age: config.results,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        max_messages_per_subject: 1,
        allow_direct: true,
        ..stream_config(app.results_stream(), app.results())
    }
}

fn dead(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!("Dead letters of the Kaskade app {app}")),
        max_age: config.dead,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        ..stream_config(app.dead_stream(), app.dead_letters())
    }
}

fn failures(app: &App) -> stream::Config {
    stream::Config {
        description: Some(format!("Failures at durable requests of the Kaskade app {app}")),
        max_age: RETENTION,
        max_messages: MAX_COUNTED,
        max_messages_per_subject: 1,
        allow_direct: true,
        ..stream_config(app.failures_stream(), app.failures())
    }
}

fn stream_config(name: String, subject: Subject) -> stream::Config {
    stream::Config {
        name,
        subjects: vec![subject.into_string()],
        storage: StorageType::File,
        ..stream::Config::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actor::System;
    use crate::bus::BusConfig;
    use crate::clock::Clock;

    /// Regression: a request redelivered while its first delivery ended got no progress notices, and was delivered a
    /// third time.
    #[test]
    fn the_end_of_a_delivery_leaves_the_notices_of_a_later_one() {
        System::new().block_on(async {
            let bus = Bus::connect(BusConfig::new("deliveries")).await.unwrap();
            let app = App::new("deliveries").unwrap();
            let dispatcher = Dispatcher::new(&bus, app, Clock::start());
            let streams = Streams::new(&bus, DurableConfig::default(), dispatcher, Arc::default());
            let [first, second] = ["ack.1", "ack.2"].map(Subject::from);
            streams.track(7, first.clone());
            streams.track(7, second.clone());
            streams.untrack(7, &first);
            let noticed = |number| streams.in_progress.get(&number).map(|ack| ack.clone());
            assert_eq!(noticed(7), Some(second.clone()));
            streams.untrack(7, &second);
            assert_eq!(noticed(7), None);
        });
    }
}
