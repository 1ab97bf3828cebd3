//! Subscriptions of an ingress: pass requests, results, cancellations and labels to the ingress actor.

use std::sync::Arc;
use std::time::Duration;

use crate::actor::Addr;
use async_nats::{Message, StatusCode};
use bytes::Bytes;
use futures::StreamExt;
use kaskade_policy::fan_in::Branch;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinHandle,
};

use super::actor::Ingress;
use super::config::IngressConfig;
use super::feedback;
use super::messages::{Cancel, Inbound, Reconnected, Undeliverable};
use super::refusal::{ENDED, Refusal, TOO_MANY_BYTES, TOO_MANY_REQUESTS};
use super::reply;
use super::reply_target::{Destination, ReplyTarget};
use super::reservation::RequestReservation;
use crate::{
    bus::{Bus, BusError, Link, Subscription},
    dispatch::dispatcher::{Dispatcher, Finished},
    dispatch::subscribe,
    error::{Code, Fault},
    metrics::Metrics,
    subjects,
    wire::headers,
    wire::{Message as _, StageOutcome, StageReply, TokenKey, chunks::Assembler},
};

/// Capacity for requests in flight, shared by the ingresses of a process.
#[derive(Clone)]
pub struct Capacity {
    /// Permits for requests in flight. If all are free, no request is in flight.
    pub permits: Arc<Semaphore>,
    /// Permits for the bytes of the inputs of requests in flight.
    pub bytes: Arc<Semaphore>,
}

impl Capacity {
    /// Returns the capacity set by a configuration.
    pub fn of(config: &IngressConfig) -> Self {
        let bytes = config.max_in_flight_bytes.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(config.max_in_flight)),
            bytes: Arc::new(Semaphore::new(bytes)),
        }
    }
}

/// Id of an ingress, and the key of the tokens that it issues.
pub struct Identity {
    /// Id of the ingress, unique in the app.
    pub id: String,
    /// Key of the tokens.
    pub key: TokenKey,
}

/// Parts that the intake of an ingress needs.
pub struct IntakeParts {
    /// Connection of the shard.
    pub bus: Bus,
    /// Dispatcher of the shard.
    pub dispatcher: Dispatcher,
    /// The ingress.
    pub ingress: Addr<Ingress>,
    /// Id and token key of the ingress.
    pub identity: Identity,
    /// Capacity for requests in flight.
    pub capacity: Capacity,
    /// Largest budget: the longest time that a partial message is kept.
    pub max_budget: Duration,
    /// Counters of the ingress.
    pub metrics: Arc<Metrics>,
    /// Stops the intake when it turns true.
    pub stop: watch::Receiver<bool>,
}

/// Subscribes to requests in the app's queue group and to results on `done.<ingress>.*.*.*`. The subscription to
/// requests ends when `stop` turns true; the one to results stays, for requests in flight. Results without a valid
/// token of the ingress's key are dropped. Returns the task that accepts requests: once it has ended, no further
/// request is accepted.
///
/// # Errors
/// [`BusError`] if a subscription fails.
pub async fn open(parts: IntakeParts) -> Result<JoinHandle<()>, BusError> {
    let IntakeParts {
        bus,
        dispatcher,
        ingress,
        identity: Identity { id, key },
        capacity,
        max_budget,
        metrics,
        stop,
    } = parts;
    let (app, supervisor) = (dispatcher.app(), dispatcher.supervisor());
    let answers = bus.subscribe(app.done_all(&id)?, None).await?;
    let wanted_us = max_budget.as_micros() as u64;
    let results = Results {
        dispatcher: dispatcher.clone(),
        ingress: ingress.clone(),
        metrics: Arc::clone(&metrics),
        key,
        assembler: Assembler::default(),
        wanted_us,
    };
    supervisor.spawn("subscription to results", results.pump(answers));
    let group = Some(subjects::INGRESS_GROUP.to_owned());
    let requests = Subscription::open(&bus, app.infer(), group).await?;
    let pump = pump_requests(
        requests,
        ingress.clone(),
        dispatcher.clone(),
        metrics,
        capacity,
        stop,
    );
    let taking = supervisor.spawn("subscription to requests", pump);
    let cancelled = bus.subscribe(app.cancel(), None).await?;
    let pump = pump_cancellations(cancelled, ingress.clone());
    supervisor.spawn("subscription to cancellations", pump);
    let labels = bus.subscribe(app.feedback(), None).await?;
    supervisor.spawn(
        "subscription to feedback",
        feedback::pump(labels, ingress.clone(), dispatcher.clone()),
    );
    let watch = watch_link(bus.connection().link(), ingress);
    supervisor.spawn("watch of the connection", watch);
    bus.barrier().await?;
    Ok(taking)
}

/// Tells the ingress about every reconnect. Core NATS stores nothing: messages in transit when a connection breaks are
/// lost without notice.
async fn watch_link(mut link: watch::Receiver<Link>, ingress: Addr<Ingress>) {
    let mut down = false;
    loop {
        let now = *link.borrow_and_update();
        match now {
            Link::Down => down = true,
            Link::Up if down => {
                down = false;
                ingress.do_send(Reconnected);
            }
            Link::Up => {}
            Link::Closed => return,
        }
        if link.changed().await.is_err() {
            return;
        }
    }
}

async fn pump_requests(
    mut requests: Subscription,
    ingress: Addr<Ingress>,
    dispatcher: Dispatcher,
    metrics: Arc<Metrics>,
    Capacity { permits, bytes }: Capacity,
    mut stop: watch::Receiver<bool>,
) {
    let take = |mut message: Message| {
        metrics.arrived();
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else {
            return refuse(&dispatcher, &metrics, &message, &TOO_MANY_REQUESTS);
        };
        let mut held = RequestReservation::new(permit, &bytes);
        if !ingress.connected() {
            // A dead actor drops its messages silently.
            refuse(&dispatcher, &metrics, &message, &ENDED);
        } else if held.charge(message.payload.len()) {
            message.payload = in_memory_of_its_own(message.payload);
            ingress.do_send(Inbound { message, held });
        } else {
            refuse(&dispatcher, &metrics, &message, &TOO_MANY_BYTES);
        }
    };
    loop {
        tokio::select! {
            message = requests.next() => match message {
                Some(message) => take(message),
                None => return,
            },
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    requests.finish(take).await;
}

/// Size from which a body is copied out of the connection's buffer, bytes.
const LARGE: usize = 256 << 10;

/// Copies a large body into separate memory. The connection reads into a buffer of more than twice the message's size,
/// and a body keeps that whole buffer alive; `max_in_flight_bytes` would then count less than half of the memory.
fn in_memory_of_its_own(body: Bytes) -> Bytes {
    if body.len() < LARGE {
        return body;
    }
    Bytes::copy_from_slice(&body)
}

/// Refuses a request immediately.
fn refuse(dispatcher: &Dispatcher, metrics: &Metrics, message: &Message, refusal: &Refusal) {
    let destination = Destination::inbox(message, RequestReservation::default());
    let target = ReplyTarget::from_message(message, destination);
    reply::refuse_at_once(dispatcher, metrics, target, refusal);
}

/// Passes cancellations to the ingress. Every ingress receives every cancellation; only the owner of the request acts
/// on it.
async fn pump_cancellations(mut cancelled: async_nats::Subscriber, ingress: Addr<Ingress>) {
    while let Some(message) = cancelled.next().await {
        let id = message
            .headers
            .as_ref()
            .and_then(|headers| headers::request_id(headers).ok().flatten());
        if let Some(id) = id {
            ingress.do_send(Cancel { id: id.to_owned() });
        } else {
            tracing::warn!("a cancellation lacks the header Kaskade-Request-Id");
        }
    }
}

/// Receives the results of stages for the ingress.
struct Results {
    dispatcher: Dispatcher,
    ingress: Addr<Ingress>,
    metrics: Arc<Metrics>,
    key: TokenKey,
    assembler: Assembler,
    /// The longest time that a partial message is kept, microseconds.
    wanted_us: u64,
}

impl Results {
    async fn pump(mut self, mut answers: async_nats::Subscriber) {
        while let Some(message) = answers.next().await {
            self.take(&message);
        }
    }

    /// Handles a result. The token is checked first, so that only stages to which the ingress sent the request can make
    /// it use memory.
    fn take(&mut self, message: &Message) {
        let Some((id, attempt, token)) = self.dispatcher.app().parse_done(&message.subject) else {
            return;
        };
        let issued = token
            .parse()
            .ok()
            .filter(|token| self.key.issued(id, attempt, *token));
        let Some(token) = issued else {
            return self.forged(message);
        };
        if message.status == Some(StatusCode::NO_RESPONDERS) {
            return self.ingress.do_send(Undeliverable {
                id,
                attempt,
                dispatch: token.dispatch(),
            });
        }
        let Some(done) = self.read(message) else { return };
        // The subject identifies the request, because a worker may omit the id and the attempt or get them wrong.
        let done = StageReply { id, attempt, ..done };
        // Any branch may fail the whole request. A branch may only answer for itself and the branches below it.
        let answers = !matches!(done.result, StageOutcome::Fault(_));
        if answers && !self.key.permits(id, attempt, token, &done.branch) {
            return self.forged(message);
        }
        self.ingress.do_send(Finished {
            done,
            checked: false,
            dispatch: token.dispatch(),
        });
    }

    /// Decodes a result; an unreadable result becomes a fault with the reason. `None` if chunks are missing.
    fn read(&mut self, message: &Message) -> Option<StageReply> {
        let now = self.dispatcher.clock().now();
        let until = now.saturating_add(self.wanted_us);
        let done = match subscribe::whole(&mut self.assembler, message, now, until) {
            Ok(None) => return None,
            Ok(Some(payload)) => StageReply::decode(&payload).map_err(|error| {
                let reason = format!("the stage's result could not be decoded: {error}");
                Fault::new(Code::BadOutput, reason)
            }),
            Err(unreadable) => Err(unreadable.fault),
        };
        Some(done.unwrap_or_else(|fault| {
            self.metrics.decode_error();
            StageReply {
                id: 0,
                attempt: 0,
                branch: Branch::ROOT,
                stage: String::new(),
                replica: String::new(),
                hops: Vec::new(),
                result: StageOutcome::Fault(fault),
            }
        }))
    }

    fn forged(&self, message: &Message) {
        let count = self.metrics.invalid_token_result();
        // Log repeated ones at 1, 2, 4, 8, ... only.
        if count.is_power_of_two() {
            tracing::warn!(subject = %message.subject, count, "a result without a valid token was dropped");
        }
    }
}
