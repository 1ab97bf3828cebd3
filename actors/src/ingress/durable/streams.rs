//! The streams of an app's durable requests, and what all submissions of an ingress share.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{
    self, AckKind,
    consumer::{AckPolicy, PullConsumer, pull},
    context::PublishErrorKind,
    stream::{self, DiscardPolicy, RetentionPolicy, StorageType},
};
use async_nats::{HeaderMap, Subject, header};
use bytes::Bytes;
use dashmap::DashMap;

use super::config::{DurableConfig, DurableError};
use crate::bus::Bus;
use crate::dispatch::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::subjects::{self, App};

/// How often whoever works on a request says so, in parts of the silence that is allowed.
const IN_PROGRESS_PER_ACK_WAIT: u32 = 3;

/// What all durable requests of one ingress share.
pub(crate) struct Streams {
    pub(super) config: DurableConfig,
    pub(super) dispatcher: Dispatcher,
    pub(super) metrics: Arc<Metrics>,
    pub(super) bus: Bus,
    jetstream: jetstream::Context,
    /// Requests under way, by their number in the stream: where to say that they are.
    in_progress: DashMap<u64, Subject>,
}

impl Streams {
    pub(crate) fn new(
        bus: &Bus,
        config: DurableConfig,
        dispatcher: Dispatcher,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            config,
            dispatcher,
            metrics,
            bus: bus.clone(),
            jetstream: jetstream::new(bus.client().clone()),
            in_progress: DashMap::new(),
        }
    }

    /// Whether the app has a stream that accepts durable requests.
    pub(super) async fn has_stream(bus: &Bus, app: &App) -> bool {
        let jetstream = jetstream::new(bus.client().clone());
        bus.has_jetstream().await && jetstream.get_stream(app.submitted_stream()).await.is_ok()
    }

    /// Finds the streams, or makes them, and gives the consumer that all ingresses of the app share. What is there stays as it is:
    /// an operator may have made it otherwise, on purpose.
    pub(super) async fn consumer(&self) -> Result<PullConsumer, DurableError> {
        let app = self.dispatcher.app();
        let (ack_wait, in_flight) = (self.config.ack_wait, self.config.in_flight);
        let submitted = self.stream(submitted(app, &self.config)).await?;
        self.stream(results(app, &self.config)).await?;
        self.stream(dead(app, &self.config)).await?;
        let config = pull::Config {
            durable_name: Some(subjects::DURABLE_CONSUMER.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait,
            // Every ingress bounds its own; all of them together are not bounded here.
            max_ack_pending: i64::try_from(in_flight).unwrap_or(i64::MAX).saturating_mul(64),
            ..pull::Config::default()
        };
        let consumer = submitted.get_or_create_consumer(subjects::DURABLE_CONSUMER, config);
        let consumer = consumer.await;
        consumer.map_err(|error| DurableError::refused("making the consumer of durable requests", error))
    }

    async fn stream(&self, config: stream::Config) -> Result<stream::Stream, DurableError> {
        let made = self.jetstream.get_or_create_stream(config).await;
        made.map_err(|error| DurableError::refused("making the streams of durable requests", error))
    }

    /// Keeps the result of a request. False if there is one already, which stays.
    pub(super) async fn store_result(
        &self,
        id: &str,
        mut headers: HeaderMap,
        payload: Bytes,
    ) -> Result<bool, DurableError> {
        headers.insert(header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, "0");
        match self
            .write(self.dispatcher.app().result(id), headers, payload)
            .await
        {
            Ok(()) => Ok(true),
            Err(WriteError::AlreadyThere) => Ok(false),
            Err(WriteError::Other(reason)) => Err(DurableError::refused("keeping a result", reason)),
        }
    }

    /// Puts a request aside.
    pub(super) async fn dead_letter(
        &self,
        id: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), DurableError> {
        let written = self.write(self.dispatcher.app().dead(id), headers, payload).await;
        written.map_err(|refused| match refused {
            WriteError::AlreadyThere => DurableError::refused("keeping a dead letter", "it is there already"),
            WriteError::Other(reason) => DurableError::refused("keeping a dead letter", reason),
        })
    }

    async fn write(&self, subject: Subject, headers: HeaderMap, payload: Bytes) -> Result<(), WriteError> {
        let sent = self
            .jetstream
            .publish_with_headers(subject, headers, payload)
            .await;
        let written = match sent {
            Ok(written) => written.await,
            Err(error) => Err(error),
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => {
                Err(WriteError::AlreadyThere)
            }
            Err(error) => Err(WriteError::Other(error.to_string())),
        }
    }

    /// Whether the request has its result already.
    pub(super) async fn has_result(&self, id: &str) -> bool {
        let subject = subjects::result_query(self.dispatcher.app(), id);
        let request = async_nats::Request::new().payload(Bytes::new());
        let found = self.bus.client().send_request(subject, request).await;
        found.is_ok_and(|message| message.status.is_none())
    }

    /// Begins to say that somebody works on the request.
    pub(super) fn track(&self, number: u64, ack: Subject) {
        self.in_progress.insert(number, ack);
    }

    /// Nobody works on it any more.
    pub(super) fn untrack(&self, number: u64) {
        self.in_progress.remove(&number);
    }

    /// How often [`Streams::send_in_progress`] must be called.
    pub(super) fn in_progress_period(&self) -> Duration {
        self.config.ack_wait / IN_PROGRESS_PER_ACK_WAIT
    }

    /// Says of every request under way that it is. One that takes longer than the silence that is allowed would be delivered again.
    pub(super) fn send_in_progress(&self) {
        for request in &self.in_progress {
            let ack = request.value().clone();
            self.dispatcher.publish(ack, None, None, AckKind::Progress.into());
        }
    }
}

/// Why something was not written.
enum WriteError {
    /// There is a message on that subject.
    AlreadyThere,
    Other(String),
}

/// Requests leave it when they are settled; a full one refuses new ones instead of dropping old ones.
fn submitted(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!("Durable requests of the Kaskade app {app}")),
        retention: RetentionPolicy::WorkQueue,
        discard: DiscardPolicy::New,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        ..stream_config(app.submitted_stream(), app.submit(), config)
    }
}

fn results(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!("Results of durable requests of the Kaskade app {app}")),
        max_age: config.results,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        max_messages_per_subject: 1,
        allow_direct: true,
        ..stream_config(app.results_stream(), app.results(), config)
    }
}

fn dead(app: &App, config: &DurableConfig) -> stream::Config {
    stream::Config {
        description: Some(format!(
            "Durable requests of the Kaskade app {app} that were given up"
        )),
        max_age: config.dead,
        max_bytes: i64::try_from(config.max_bytes).unwrap_or(i64::MAX),
        ..stream_config(app.dead_stream(), app.dead_letters(), config)
    }
}

fn stream_config(name: String, subject: Subject, config: &DurableConfig) -> stream::Config {
    stream::Config {
        name,
        subjects: vec![subject.into_string()],
        storage: StorageType::File,
        num_replicas: config.replicas,
        ..stream::Config::default()
    }
}
