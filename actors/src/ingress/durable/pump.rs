//! Pulls durable requests from the stream to the ingress, as many as there are permits.

use std::sync::Arc;
use std::time::Duration;

use crate::actor::{self, Recipient};
use async_nats::Message;
use async_nats::jetstream::consumer::PullConsumer;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::config::{DurableConfig, DurableError};
use super::streams::Streams;
use super::submission::{Submission, Submitted};
use crate::bus::{Bus, Link};
use crate::dispatch::dispatcher::Dispatcher;
use crate::error::{Code, Fault};
use crate::metrics::Metrics;
use crate::subjects;
use crate::wire;
use crate::wire::headers;

/// Most requests pulled at once; single pulls would cost a round trip each.
const BATCH: usize = 64;

/// Expiry of a pull request. A pull that was lost with a broken connection is repeated after this time, unless the
/// connection reports earlier that it is up again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pause after an error of JetStream.
const PAUSE: Duration = Duration::from_millis(500);

/// The running intake of durable requests.
pub(crate) struct DurableIntake {
    /// Permits for durable requests in flight.
    pub(crate) permits: Arc<Semaphore>,
    /// The total number of permits.
    pub(crate) capacity: usize,
}

/// Starts the intake of durable requests. Without a configuration, or without JetStream on an embedded broker,
/// submissions are refused with the reason. The intake stops when `stop` turns true.
///
/// # Errors
/// [`DurableError`] if a nats-server has no JetStream or refuses to create the streams.
pub(crate) async fn open(
    bus: &Bus,
    dispatcher: &Dispatcher,
    ingress: Recipient<Submitted>,
    config: Option<DurableConfig>,
    metrics: Arc<Metrics>,
    stop: watch::Receiver<bool>,
) -> Result<Option<DurableIntake>, DurableError> {
    let Some(config) = config else {
        if Streams::has_stream(bus, dispatcher.app()).await {
            // The stream accepts requests regardless, and keeps them until an ingress with `[durable]` takes them.
            tracing::warn!(
                "this app has a stream of durable requests, but this ingress is not configured to take them"
            );
            return Ok(None);
        }
        let message = "this app accepts no durable requests; add a table `[durable]` to its file";
        refuse_all(bus, dispatcher, metrics, Fault::new(Code::NotDurable, message)).await?;
        return Ok(None);
    };
    if !bus.has_jetstream().await {
        let url = bus.url().to_owned();
        let error = DurableError::NeedsJetStream { url };
        if bus.embedded().is_none() {
            return Err(error);
        }
        tracing::warn!(%error, "durable requests are refused");
        refuse_all(bus, dispatcher, metrics, Fault::from(&error)).await?;
        return Ok(None);
    }
    let capacity = config.in_flight;
    let streams = Arc::new(Streams::new(bus, config, dispatcher.clone(), metrics));
    let consumer = streams.consumer().await?;
    let permits = Arc::new(Semaphore::new(capacity));
    actor::spawn(send_in_progress(Arc::downgrade(&streams)));
    let pump = Pump {
        streams,
        ingress,
        permits: Arc::clone(&permits),
    };
    dispatcher
        .supervisor()
        .spawn("durable requests", pump.run(consumer, stop));
    Ok(Some(DurableIntake { permits, capacity }))
}

/// Answers every submission with one fault.
async fn refuse_all(
    bus: &Bus,
    dispatcher: &Dispatcher,
    metrics: Arc<Metrics>,
    fault: Fault,
) -> Result<(), DurableError> {
    let group = Some(subjects::INGRESS_GROUP.to_owned());
    let mut submitted = bus.subscribe(dispatcher.app().submit(), group).await?;
    let dispatcher = dispatcher.clone();
    actor::spawn(async move {
        while let Some(message) = submitted.next().await {
            metrics.fault(&fault);
            refuse(&dispatcher, &message, &fault);
        }
    });
    Ok(())
}

fn refuse(dispatcher: &Dispatcher, message: &Message, fault: &Fault) {
    let inbox = message.reply.clone();
    if let Some(inbox) = inbox.filter(|inbox| subjects::is_reply_allowed(inbox)) {
        let content_type = headers::content_type(message.headers.as_ref()).unwrap_or_default();
        let payload = wire::encode_fault(content_type, fault);
        dispatcher.publish(
            inbox,
            None,
            Some(headers::for_fault(content_type, fault)),
            payload,
        );
    }
}

async fn send_in_progress(streams: std::sync::Weak<Streams>) {
    while let Some(every) = streams.upgrade().map(|streams| streams.in_progress_period()) {
        tokio::time::sleep(every).await;
        if let Some(streams) = streams.upgrade() {
            streams.send_in_progress();
        }
    }
}

/// Waits until the connection is lost. The value of `wait_for` holds a lock that the connection's task needs, so it
/// must be dropped.
async fn broken(link: &mut watch::Receiver<Link>) {
    drop(link.wait_for(|link| *link != Link::Up).await);
}

struct Pump {
    streams: Arc<Streams>,
    ingress: Recipient<Submitted>,
    permits: Arc<Semaphore>,
}

impl Pump {
    async fn run(self, mut consumer: PullConsumer, mut stop: watch::Receiver<bool>) {
        loop {
            let permits = tokio::select! {
                permits = self.permits() => permits,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            if let Err(error) = self.take_up_to(permits, &consumer).await {
                tracing::warn!(%error, "pulling durable requests failed");
                tokio::time::sleep(PAUSE).await;
                // The stream or the consumer may be gone, for instance after a server lost its files.
                match self.streams.consumer().await {
                    Ok(found) => consumer = found,
                    Err(error) => {
                        tracing::warn!(%error, "opening the stream of durable requests failed; retrying");
                    }
                }
            }
        }
    }

    /// Acquires as many permits as are free, up to a batch; waits for the first.
    async fn permits(&self) -> Vec<OwnedSemaphorePermit> {
        let mut permits = Vec::new();
        permits.extend(Arc::clone(&self.permits).acquire_owned().await.ok());
        while permits.len() < BATCH {
            let Ok(another) = Arc::clone(&self.permits).try_acquire_owned() else {
                break;
            };
            permits.push(another);
        }
        permits
    }

    /// Delivers messages until every permit is used, the pull expires, or the connection was lost and renewed: the
    /// pull was lost with the old connection. Requests that were pulled are delivered even after `stop`; otherwise
    /// they would wait for `ack_wait`.
    async fn take_up_to(
        &self,
        mut permits: Vec<OwnedSemaphorePermit>,
        consumer: &PullConsumer,
    ) -> Result<(), String> {
        let asked = consumer.batch().max_messages(permits.len()).expires(PATIENCE);
        let mut delivered = asked.messages().await.map_err(|error| error.to_string())?;
        let mut link = self.streams.bus.connection().link();
        loop {
            let next = tokio::select! {
                next = delivered.next() => next,
                () = broken(&mut link) => return self.until_back().await,
            };
            let Some(message) = next else { return Ok(()) };
            let message = message.map_err(|error| error.to_string())?;
            let Some(permit) = permits.pop() else {
                return Ok(());
            };
            self.take(&message, permit);
        }
    }

    /// Waits until the connection is up again.
    async fn until_back(&self) -> Result<(), String> {
        let mut link = self.streams.bus.connection().link();
        let back = link.wait_for(|link| *link != Link::Down).await;
        match back.map(|link| *link) {
            Ok(Link::Up) => Ok(()),
            _ => Err("the connection is closed".to_owned()),
        }
    }

    fn take(&self, message: &async_nats::jetstream::Message, permit: OwnedSemaphorePermit) {
        self.streams.metrics.arrived();
        let Some(mut submission) = Submission::of(&self.streams, message, permit) else {
            return;
        };
        let (ingress, message) = (self.ingress.clone(), message.message.clone());
        if !submission.is_redelivery() {
            return ingress.do_send(Submitted { message, submission });
        }
        actor::spawn(async move {
            if !submission.ack_if_settled().await {
                ingress.do_send(Submitted { message, submission });
            }
        });
    }
}
